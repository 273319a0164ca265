"""Reading values: properties files and patterns beside the JVM's recorded answers, config models, and the limits of texts."""

import json
import time
from pathlib import Path
from typing import Annotated

import pytest

from mm2py.config.definitions import (
    ConfigModel,
    Option,
    check_config,
    options_of,
    parse_config,
    property_name,
)
from mm2py.config.java_regex import SLOW_S, JavaPattern, PatternList, translate
from mm2py.config.java_values import JavaType, parse_boolean_leniently, parse_value
from mm2py.config.limits import (
    MAX_CONFIG_BYTES,
    MAX_KEY_CHARS,
    MAX_NAME_CHARS,
    MAX_VALUE_BYTES,
    limit_problem,
)
from mm2py.config.properties import load, parse
from mm2py.config.providers import Providers, placeholders
from mm2py.config.remote_allow_list import remote_problems
from mm2py.errors import ConfigError

DATA = Path(__file__).parents[2] / "data" / "config"
JAVA = json.loads((DATA / "java_answers.json").read_text(encoding="utf-8"))
ANSWERS: dict[str, dict[str, str]] = JAVA["properties"]


@pytest.mark.parametrize("name", ANSWERS)
def test_a_file_is_read_as_java_reads_it(name: str) -> None:
    assert load(DATA / name).values == ANSWERS[name]


def test_the_corpus_and_the_recorded_answers_cover_the_same_files() -> None:
    assert {path.name for path in DATA.glob("*.properties")} == set(ANSWERS)


def test_an_entry_knows_the_line_it_starts_on() -> None:
    file = parse(b"# c\n\na=1\r\nb=2,\\\r\n  3\r\rc=4\n")
    found = [(e.key, e.value, e.line) for e in file.entries]
    assert found == [("a", "1", 3), ("b", "2,3", 4), ("c", "4", 7)]


def test_the_last_of_two_equal_keys_counts_and_the_first_is_reported() -> None:
    file = parse(b"a=1\nb=2\na=3\n")
    assert file.values == {"a": "3", "b": "2"}
    assert [(e.value, e.line) for e in file.duplicates] == [("1", 1)]


def test_a_value_is_also_known_as_it_was_written() -> None:
    entry = parse(rb"topics : a\.b \= c").get("topics")
    assert entry is not None
    assert (entry.value, entry.raw_value) == ("a.b = c", r"a\.b \= c")


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


# ---- java regex

NAMES = (DATA / "names.txt").read_text(encoding="utf-8").split("\n")[:-1]
JAVA_REGEX_ANSWERS: dict[str, str | list[str]] = JAVA["patterns"]

# What Java compiles and we refuse rather than risk another meaning.
REFUSED_HERE = {
    "$*", "^*", r"\b*a",                        # a repetition of an anchor
    "(?U)foo", "(?x)foo",                       # Unicode classes, comments inside of patterns
    r"(a)\2", r"(a\1)", r"\1(a)",               # a reference that can never match
    "[&&a]", "[a&&]", "[a&&&b]+", "[^a[b]]+",   # read differently by Java versions
    r"\N{LATIN SMALL LETTER A}", r"\X", r"\b{g}", r"\p{InGreek}+", r"\p{Script=Latin}+",
    "a{2}{3}",
}  # fmt: skip


@pytest.mark.parametrize("pattern", JAVA_REGEX_ANSWERS)
def test_a_pattern_matches_the_names_that_java_matches(pattern: str) -> None:
    java = JAVA_REGEX_ANSWERS[pattern]
    if isinstance(java, str) or pattern in REFUSED_HERE:
        with pytest.raises(ConfigError):
            JavaPattern(pattern)
        return
    compiled = JavaPattern(pattern)
    assert [name for name in NAMES if compiled.matches(name)] == java


def test_everything_that_is_refused_here_is_compiled_by_java() -> None:
    assert all(isinstance(JAVA_REGEX_ANSWERS[pattern], list) for pattern in REFUSED_HERE)


def test_an_empty_list_matches_nothing_not_even_the_empty_name() -> None:
    assert not PatternList.of("").matches("")
    assert not PatternList.of("  ").matches("a")


def test_a_list_matches_the_whole_name_by_any_of_its_patterns() -> None:
    topics = PatternList.of("orders , pay.*")
    names = ("orders", "payments", "orders2", "xpay")
    assert [name for name in names if topics.matches(name)] == ["orders", "payments"]


def test_a_list_is_joined_before_it_is_compiled_as_in_java() -> None:
    # Java joins the items with `|`, so a group may span a comma and a flag reaches the next item.
    assert PatternList.of(r"(a,b)\.x").matches("b.x")
    assert PatternList.of("(?i)a,b").matches("B")


def test_a_bad_item_is_named_and_a_comma_inside_of_it_explained() -> None:
    with pytest.raises(ConfigError, match=r"pattern 'b\(' has a group that is not closed"):
        PatternList.of("a,b(")
    with pytest.raises(ConfigError, match=r"\{1,3\} or \(a,b\) cannot be written"):
        PatternList.of("a{1,3}")


def test_a_repetition_that_explodes_is_stopped_by_the_time_limit() -> None:
    pattern = JavaPattern(r"(.*)(.*)(.*)(.*)(.*)\1\2\3[xy]")
    with pytest.raises(ConfigError, match=r"needs more than 0\.1 s on 'abab"):
        pattern.matches("ab" * 60 + "!")


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        *(
            (it, "more than 20000 steps together")
            for it in (
                "(" * 40 + "a" + ")+" * 40,
                "(?:" * 40 + "a|b" + "){1,2}" * 40,
                "((a{1000}){1000}){1000}",
                "a{2000000000}",
                "[ab]{300}" * 100,
            )
        ),
        ("a" * 70_000, "too long"),
        ("(" * 5_000 + ")" * 5_000, "nested"),
    ],
)
def test_a_pattern_that_unfolds_to_gigabytes_is_too_long_or_nested_too_deep_is_refused(
    pattern: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        JavaPattern(pattern)


def test_repetitions_of_the_size_of_names_are_taken() -> None:
    assert JavaPattern("|".join(f"t{n}-[a-z]{{1,63}}" for n in range(200))).matches("t7-abc")
    assert JavaPattern("(([a-z]+-)+[0-9]{4}[.])*x+").matches("ab-cd-2024.xx")


def test_classes_and_groups_of_any_depth_are_refused_or_taken_in_order() -> None:
    for pattern in ("[" * 10_000, "[" * 10_000 + "a" + "]" * 10_000, "(?=" * 5_000):
        with pytest.raises(ConfigError):
            JavaPattern(pattern[:16_000])


def test_thousands_of_names_in_a_list_are_matched_as_java_does() -> None:
    names = [rf"orders\.{number}.eu" for number in range(3_000)]
    topics = PatternList((*names, "pay.*", "a|b.c"))
    taken, others = "orders.7.eu orders.7-eu pay.x a bxc", "ordersx7.eu bc orders.7.eux"
    assert all(topics.matches(name) for name in taken.split())
    assert not any(topics.matches(name) for name in others.split())


def test_brackets_of_other_regex_dialects_are_plain_characters() -> None:
    assert translate("[[:alpha:]]") == r"[[\:alph\:]]".replace("alph", "alpha")
    assert JavaPattern("[a||b]").matches("|")


def test_a_pattern_of_very_many_groups_is_refused_before_it_is_compiled() -> None:
    JavaPattern("|".join(f"(t{number})" for number in range(2_000)))
    for group in ("()", "(?:a)", "(?=a)"):
        with pytest.raises(ConfigError, match="more than 2000 groups"):
            JavaPattern(group * 2_001)


def test_slow_matches_of_many_names_have_a_budget_together() -> None:
    """Each name stays below its own limit: a thousand would hold the loop for longer than a session."""
    pattern, refused = PatternList.of(r"(a|aa)+\.x"), 0
    for letters in range(12, 32):
        for number in range(500):
            began_s = time.thread_time()
            try:
                pattern.matches(f"{'a' * letters}.{number:03d}")
            except ConfigError as error:
                refused += "on names such as" in str(error)
                break
            if time.thread_time() - began_s < SLOW_S:
                break  # more letters
        if refused:
            break
    assert refused == 1
    assert JavaPattern("a+").matches("aaa")


# ---- definitions


class Sample(ConfigModel):
    """Options of every type."""

    offset_syncs_topic_location: Annotated[
        str, Option(JavaType.STRING, "Where.", choices=("source", "target"))
    ] = "source"
    count_max: Annotated[int, Option(JavaType.SHORT, "How many.", low=1, unit="s")] = 1
    switch: Annotated[bool, Option(JavaType.BOOLEAN, "Whether.")] = False
    items: Annotated[tuple[str, ...], Option(JavaType.LIST, "Which.")] = ("x",)
    password: Annotated[str, Option(JavaType.PASSWORD, "Secret.", choices=("a",))] = "a"  # noqa: S105 -- no secret
    needed: Annotated[str, Option(JavaType.CLASS, "What.")]


def test_a_field_is_named_by_its_java_property() -> None:
    assert property_name("emit_offset_syncs_enabled") == "emit.offset-syncs.enabled"
    assert list(options_of(Sample))[:2] == ["offset-syncs.topic.location", "count.max"]
    assert options_of(Sample)["items"].default == "x"
    assert options_of(Sample)["needed"].required


def test_texts_become_values_and_unknown_keys_are_left_alone() -> None:
    config = parse_config(
        Sample,
        {"needed": " a.B ", "count.max": " +7 ", "switch": " TRUE", "items": "a , b,", "x": "y"},
    )
    assert (config.needed, config.count_max, config.switch) == ("a.B", 7, True)
    assert config.items == ("a", "b", "")
    assert config.offset_syncs_topic_location == "source"


@pytest.mark.parametrize(
    ("props", "said"),
    [
        ({}, "mm2:7: needed: is missing; set needed"),
        ({"needed": "x", "count.max": "40000"}, "mm2:7: count.max=40000: must be a whole number"),
        ({"needed": "x", "count.max": "0"}, "mm2:7: count.max=0: must be at least 1 s"),
        ({"needed": "x", "count.max": "1_0"}, "count.max=1_0: must be a whole number"),
        ({"needed": "x", "switch": "on"}, "switch=on: must be true or false"),
        (
            {"needed": "x", "offset-syncs.topic.location": "sourc"},
            "offset-syncs.topic.location=sourc: must be one of source, target",
        ),
        ({"needed": "x", "password": "hunter2"}, r"password=\*\*\*\*\*\*\*\*: must be one of"),
    ],
)
def test_a_wrong_value_is_refused_by_name_value_and_place(props: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_config(Sample, props, lambda name: "mm2:7")
    assert len(check_config(Sample, props)) == 1


def test_numbers_and_texts_are_read_as_java_does() -> None:
    assert parse_value(JavaType.LONG, "9223372036854775807") == (1 << 63) - 1
    assert parse_value(JavaType.DOUBLE, "0.5d") == 0.5
    for kind in (JavaType.STRING, JavaType.PASSWORD, JavaType.CLASS):
        assert parse_value(kind, " x y ") == "x y"
    with pytest.raises(ConfigError):
        parse_value(JavaType.LONG, "9223372036854775808")
    with pytest.raises(ConfigError):
        parse_value(JavaType.INT, "٣")


def test_the_driver_takes_anything_but_true_for_false() -> None:
    assert parse_boolean_leniently("True ", absent=False)
    assert not parse_boolean_leniently("yes", absent=True)
    assert parse_boolean_leniently(None, absent=True)


# ---- limits

MIB = 1024 * 1024
HOSTILE = {
    "colons behind an open placeholder": "${" + ":" * MIB,
    "open placeholders": "${" * (MIB // 2),
    "open placeholders with colons": "${:" * (MIB // 3),
    "nested placeholders": "${a:b" * (MIB // 5) + "}",
    "braces": "{}" * (MIB // 2),
    "login modules": "org.apache.kafka.common.security.plain.PlainLoginModule required " * 16_000,
    "options": "x=" * (MIB // 2),
    "quotes": '"' * MIB,
    "escapes": "\\" * MIB,
    "commas": "," * MIB,
    "digits and dots": "0." * (MIB // 2),
    "wide characters": "\U0001f600" * (MIB // 4),
}
KEYS = {
    "a url after many oauthbearers": "oauthbearer" * 90_000,
    "many jwt prefixes": "sasl.oauthbearer.jwt." * 40_000,
    "dots": "." * MIB,
    "interceptors": "interceptor." * 80_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("key", ["x.note", "sasl.jaas.config", "bootstrap.servers"])
def test_a_value_of_a_mebibyte_is_judged_in_linear_time(key: str, text: str) -> None:
    remote_problems({key: text}, dedicated=False, file_texts={}, providers=())
    placeholders(text)
    assert Providers({}).resolve_text(text) == text


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_a_key_that_is_too_long_is_refused_before_it_is_judged(key: str) -> None:
    assert limit_problem("c", {key: "x"}).startswith(f"A configuration key has {len(key)}")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("${env:A}", [("env", "", "A")]),
        ("a ${file:/x:k} b ${env:A}", [("file", "/x", "k"), ("env", "", "A")]),
        ("${file:/x:k:l}", [("file", "/x", "k:l")]),
        ("${::}", [("", "", "")]),
        ("${plain} ${env:A", []),
        ("${a ${env:X}", [("a ${env", "", "X")]),
        ("${a}${b:c}}", [("b", "", "c")]),
        ("$${env:A}", [("env", "", "A")]),
        ("${env:\n}", [("env", "", "\n")]),
    ],
)
def test_placeholders_are_those_of_java(text: str, found: list[tuple[str, str, str]]) -> None:
    # ConfigTransformer: \$\{([^}]*?):(([^}]*?):)?([^}]*?)\}
    assert [(it.provider, it.path, it.key) for it in placeholders(text)] == found


def test_what_is_too_long_is_refused_with_its_size_and_the_limit() -> None:
    assert limit_problem("c" * MAX_NAME_CHARS, {"k" * MAX_KEY_CHARS: "v" * MAX_VALUE_BYTES}) == ""
    assert "256 characters, at most 255" in limit_problem("c" * 256, {})
    assert "256 characters, at most 255" in limit_problem("c", {"k" * 256: None})
    assert "2001 keys, at most 2000" in limit_problem("c", {f"k{n}": "" for n in range(2001)})
    longer = limit_problem("c", {"x.note": "é" * (MAX_VALUE_BYTES // 2 + 1)})
    assert longer == "The value of x.note has 524290 bytes, at most 524288 are allowed"


def test_values_that_fit_alone_but_not_together_are_refused() -> None:
    config = {"a": "x" * 500_000, "b": "y" * 450_000}
    assert limit_problem("mirror", config) == (
        "The configuration of connector mirror would have 950018 bytes, at most"
        f" {MAX_CONFIG_BYTES} fit a record of the config topic"
    )


def test_a_long_key_is_not_quoted_whole_and_not_with_control_characters() -> None:
    problem = limit_problem("c", {"\x1b[2K" + "k" * 1000: "v"})
    assert problem.isprintable()
    assert len(problem) < 200
