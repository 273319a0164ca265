"""Java patterns: the JVM's recorded answers, lists, refusals and the time limit."""

import json
from pathlib import Path

import pytest

from mm2py.config.java_regex import JavaPattern, PatternList, translate
from mm2py.errors import ConfigError

DATA = Path(__file__).parents[2] / "data" / "config"
NAMES = (DATA / "names.txt").read_text(encoding="utf-8").split("\n")[:-1]
ANSWERS: dict[str, str | list[str]] = json.loads(
    (DATA / "java_answers.json").read_text(encoding="utf-8")
)["patterns"]

# What Java compiles and we refuse rather than risk another meaning.
REFUSED_HERE = {
    "$*", "^*", r"\b*a",                        # a repetition of an anchor
    "(?U)foo", "(?x)foo",                       # Unicode classes, comments inside of patterns
    r"(a)\2", r"(a\1)", r"\1(a)",               # a reference that can never match
    "[&&a]", "[a&&]", "[a&&&b]+", "[^a[b]]+",   # read differently by Java versions
    r"\N{LATIN SMALL LETTER A}", r"\X", r"\b{g}", r"\p{InGreek}+", r"\p{Script=Latin}+",
    "a{2}{3}",
}  # fmt: skip


@pytest.mark.parametrize("pattern", ANSWERS)
def test_a_pattern_matches_the_names_that_java_matches(pattern: str) -> None:
    java = ANSWERS[pattern]
    if isinstance(java, str) or pattern in REFUSED_HERE:
        with pytest.raises(ConfigError):
            JavaPattern(pattern)
        return
    compiled = JavaPattern(pattern)
    assert [name for name in NAMES if compiled.matches(name)] == java


def test_everything_that_is_refused_here_is_compiled_by_java() -> None:
    assert all(isinstance(ANSWERS[pattern], list) for pattern in REFUSED_HERE)


def test_an_empty_list_matches_nothing_not_even_the_empty_name() -> None:
    assert not PatternList.of("").matches("")
    assert not PatternList.of("  ").matches("a")


def test_a_list_matches_the_whole_name_by_any_of_its_patterns() -> None:
    topics = PatternList.of("orders , pay.*")
    assert [topics.matches(name) for name in ("orders", "payments", "orders2", "xpay")] == [
        True,
        True,
        False,
        False,
    ]


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
    "pattern",
    [
        "(" * 40 + "a" + ")+" * 40,
        "(?:" * 40 + "a|b" + "){1,2}" * 40,
        "((a{1000}){1000}){1000}",
        "a{2000000000}",
        "[ab]{300}" * 100,
    ],
)
def test_repetitions_that_unfold_to_gigabytes_are_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="more than 20000 steps together"):
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
    found = ["orders.7.eu", "orders.7-eu", "ordersx7.eu", "pay.x", "a", "bxc", "bc", "orders.7.eux"]
    assert [topics.matches(name) for name in found] == [
        True, True, False, True, True, True, False, False,
    ]  # fmt: skip


def test_brackets_of_other_regex_dialects_are_plain_characters() -> None:
    assert translate("[[:alpha:]]") == r"[[\:alph\:]]".replace("alph", "alpha")
    assert JavaPattern("[a||b]").matches("|")


def test_a_pattern_of_absurd_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="too long"):
        JavaPattern("a" * 70_000)


def test_groups_nested_too_deep_are_refused_and_not_a_stack_overflow() -> None:
    with pytest.raises(ConfigError, match="nested"):
        JavaPattern("(" * 5_000 + ")" * 5_000)


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
            try:
                pattern.matches(f"{'a' * letters}.{number:03d}")
            except ConfigError as error:
                refused += "on names such as" in str(error)
                break
        if refused:
            break
    assert refused == 1
    assert JavaPattern("a+").matches("aaa")
