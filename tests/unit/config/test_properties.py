"""Properties files: the JVM's recorded answers, line numbers, duplicates, refusals."""

import json
from pathlib import Path

import pytest

from mm2py.config.properties import load, parse
from mm2py.errors import ConfigError

DATA = Path(__file__).parents[2] / "data" / "config"
ANSWERS: dict[str, dict[str, str]] = json.loads(
    (DATA / "java_answers.json").read_text(encoding="utf-8")
)["properties"]


@pytest.mark.parametrize("name", ANSWERS)
def test_a_file_is_read_as_java_reads_it(name: str) -> None:
    assert load(DATA / name).values == ANSWERS[name]


def test_the_corpus_and_the_recorded_answers_cover_the_same_files() -> None:
    assert {path.name for path in DATA.glob("*.properties")} == set(ANSWERS)


def test_an_entry_knows_the_line_it_starts_on() -> None:
    file = parse(b"# c\n\na=1\r\nb=2,\\\r\n  3\r\rc=4\n")
    assert [(e.key, e.value, e.line) for e in file.entries] == [
        ("a", "1", 3),
        ("b", "2,3", 4),
        ("c", "4", 7),
    ]


def test_the_last_of_two_equal_keys_counts_and_the_first_is_reported() -> None:
    file = parse(b"a=1\nb=2\na=3\n")
    assert file.values == {"a": "3", "b": "2"}
    assert [(e.value, e.line) for e in file.duplicates] == [("1", 1)]


def test_a_value_is_also_known_as_it_was_written() -> None:
    entry = parse(rb"topics : a\.b \= c").get("topics")
    assert entry is not None
    assert (entry.value, entry.raw_value) == ("a.b = c", r"a\.b \= c")


def test_a_decorated_comment_is_a_comment() -> None:
    assert parse(b"#::::::: banner :::::::\n#: x\na=1\n").values == {"a": "1"}


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.properties does not exist"):
        load(tmp_path / "nowhere.properties")
    with pytest.raises(ConfigError, match="is a directory"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xef\xbb\xbfclusters=A", "byte order mark"),
        ("clusters=A".encode("utf-16"), "UTF-16"),
        (b"a=1\nb=\\u00g1", r"mm2:2: \\u is not followed by four hexadecimal digits"),
        (b"a=1\n\nb=\\ud83d", "mm2:3: .* without its other half"),
    ],
)
def test_what_is_no_properties_file_is_refused_with_its_line(data: bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(data, path="mm2")


def test_an_escaped_backslash_in_front_of_u_is_text() -> None:
    assert parse(rb"a=\\users").values == {"a": r"\users"}
