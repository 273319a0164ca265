"""What the JVM makes of properties files and patterns, beside what we make of them.

The answers for the corpus in tests/data/config are recorded there (``RECORD_JAVA_ANSWERS=1`` writes
them anew) and checked without a JVM by tests/unit/config; generated inputs are only asked here.
"""

import json
import os
import random
from pathlib import Path

import pytest

from mm2py.config.java_regex import JavaPattern
from mm2py.config.properties import parse
from mm2py.errors import ConfigError
from tests.kit.kafka.java import compile_java, run_java

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[1]
DATA = ROOT / "data" / "config"
ANSWERS = DATA / "java_answers.json"
FILES = sorted(DATA.glob("*.properties"))
PATTERNS = (DATA / "patterns.txt").read_text(encoding="utf-8").split("\n")[:-1]
NAMES = (DATA / "names.txt").read_text(encoding="utf-8").split("\n")[:-1]

Answer = dict[str, str] | list[bool] | str


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("classes")
    compile_java([ROOT / "java" / "ConfigTruth.java"], into)
    return into


def ask(classes: Path, questions: list[str]) -> list[Answer]:
    done = run_java("ConfigTruth", classpath=[classes], stdin="\n".join(questions) + "\n")
    return [json.loads(line) for line in done.check().splitlines()]


def about_properties(data: bytes) -> str:
    return f"P {data.hex()}"


def about_pattern(pattern: str, names: list[str]) -> str:
    return " ".join(["R", *(text.encode().hex() for text in (pattern, *names))])


def ours_of_properties(data: bytes) -> Answer:
    try:
        return dict(parse(data).values)
    except ConfigError as error:
        return str(error)


def ours_of_pattern(pattern: str, names: list[str]) -> Answer:
    try:
        compiled = JavaPattern(pattern)
        return [compiled.matches(name) for name in names]
    except ConfigError as error:
        return str(error)


def test_the_recorded_answers_are_what_this_jvm_says(classes: Path) -> None:
    questions = [about_properties(path.read_bytes()) for path in FILES]
    questions += [about_pattern(pattern, NAMES) for pattern in PATTERNS]
    answers = ask(classes, questions)
    files = dict(zip([p.name for p in FILES], answers, strict=False))
    patterns = {
        pattern: answer
        if isinstance(answer, str)
        else [name for name, hit in zip(NAMES, answer, strict=True) if hit]
        for pattern, answer in zip(PATTERNS, answers[len(FILES) :], strict=True)
    }
    if os.environ.get("RECORD_JAVA_ANSWERS"):
        said = {"properties": files, "patterns": patterns}
        ANSWERS.write_text(json.dumps(said, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    recorded = json.loads(ANSWERS.read_text(encoding="utf-8"))
    assert files == recorded["properties"]
    # The texts of Java's errors differ between its versions; that it refuses does not.
    for pattern, answer in patterns.items():
        if isinstance(answer, str):
            assert isinstance(recorded["patterns"][pattern], str), pattern
        else:
            assert answer == recorded["patterns"][pattern], pattern


def test_generated_properties_files_are_read_as_java_reads_them(classes: Path) -> None:
    chance = random.Random(20_260_721)
    pieces = ["a", "B", "->", ".", "=", ":", " ", "\t", "\f", "\\", "\\\\", "#", "!", "\n", "\r"]
    pieces += ["\r\n", "\\\n", "\\u0041", "\\u00e9", "é", "\x0b", "\xa0", "true ", "x", "\\t", "#:"]
    files = [
        "".join(chance.choice(pieces) for _ in range(chance.randint(0, 40))).encode("iso-8859-1")
        for _ in range(4_000)
    ]
    answers = ask(classes, [about_properties(data) for data in files])
    for data, java in zip(files, answers, strict=True):
        ours = ours_of_properties(data)
        if isinstance(java, str):
            assert isinstance(ours, str), (data, java, ours)
        else:
            assert ours == java, data


def test_generated_patterns_match_the_same_names_or_are_refused(classes: Path) -> None:
    chance = random.Random(20_260_722)
    pieces = ["a", "b", "foo", ".", ".*", "\\.", "[", "]", "[a-c]", "[^a]", "^", "$", "|", "(", ")"]
    pieces += ["(?:", "(?!", "(?i)", "*", "+", "?", "{2}", "{1,2}", "\\d", "\\w", "&&", "-", "_"]
    pieces += ["\\Q", "\\E", "(?<n>", "\\k<n>", "\\1", "{", "}", "#", "\\b", "[a", "\\s", "B", "--"]
    patterns = [
        "".join(chance.choice(pieces) for _ in range(chance.randint(1, 8))) for _ in range(6_000)
    ]
    names = [
        "",
        "a",
        "b",
        "B",
        "ab",
        "aa",
        "bb",
        "foo",
        "afoo",
        "a.b",
        "foo-a",
        "_",
        "-",
        "9",
        "aab",
    ]
    names += ["abab", "A", "FOO", "a|b", "a#", "[a", "&", "&&", "foofoo", "a-b", "^a", "$"]
    answers = ask(classes, [about_pattern(pattern, names) for pattern in patterns])
    compared = 0
    for pattern, java in zip(patterns, answers, strict=True):
        ours = ours_of_pattern(pattern, names)
        if isinstance(java, str):
            assert isinstance(ours, str), (pattern, java)
        elif not isinstance(ours, str):
            assert ours == java, pattern
            compared += 1
    assert compared > 1_000
