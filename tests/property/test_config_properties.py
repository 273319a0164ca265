"""Properties files, patterns and intervals on generated input."""

from hypothesis import given
from hypothesis import strategies as st

from mm2py.config.java_regex import JavaPattern, PatternList
from mm2py.config.java_values import JavaType, parse_list, parse_value
from mm2py.config.old_names import modern_name
from mm2py.config.properties import parse
from mm2py.errors import ConfigError

LATIN1 = st.text(st.characters(min_codepoint=1, max_codepoint=0xFF), max_size=30)
TOPIC = st.text(st.sampled_from("abzABZ059._-"), min_size=1, max_size=20)


def stored(text: str) -> str:
    """Write a text as ``Properties.store`` does, every special character escaped."""
    plain = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    return "".join(plain.get(c, f"\\{c}" if c in " \\:=#!" else c) for c in text)


@given(st.lists(st.tuples(LATIN1.filter(bool), LATIN1), max_size=8))
def test_what_is_stored_is_read_back_with_the_last_of_equal_keys(
    pairs: list[tuple[str, str]],
) -> None:
    text = "".join(f"{stored(key)}={stored(value)}\n" for key, value in pairs)
    file = parse(text.encode("iso-8859-1"))
    assert file.values == dict(pairs)
    assert len(file.entries) + len(file.duplicates) == len(pairs)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_with_one_line(data: bytes) -> None:
    refusal = ""
    try:
        file = parse(data, path="f")
    except ConfigError as error:
        refusal, file = str(error), parse(b"", path="f")
    assert not refusal or (refusal.startswith("f:") and "\n" not in refusal)
    lines = [entry.line for entry in (*file.entries, *file.duplicates)]
    assert len(set(lines)) == len(lines)


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_a_pattern_or_refused_and_never_crashes(pattern: str, name: str) -> None:
    refusal = repr(pattern)
    try:
        JavaPattern(pattern).matches(name)
    except ConfigError as error:
        refusal = str(error)
    assert repr(pattern) in refusal


@given(TOPIC, TOPIC)
def test_a_quoted_name_matches_itself_and_nothing_else(name: str, other: str) -> None:
    pattern = JavaPattern(rf"\Q{name}\E")
    assert pattern.matches(name)
    assert pattern.matches(other) == (name == other)


@given(st.lists(TOPIC.filter(lambda t: "." not in t), min_size=1, max_size=5), TOPIC)
def test_a_list_of_names_matches_exactly_these(names: list[str], other: str) -> None:
    patterns = PatternList.of(" , ".join(names))
    assert all(patterns.matches(name) for name in names)
    assert patterns.matches(other) == (other in names)


@given(st.integers(min_value=0, max_value=10**12))
def test_milliseconds_are_rounded_up_to_whole_seconds(interval_ms: int) -> None:
    modern = modern_name("x.interval.ms", str(interval_ms), {"x.interval.seconds"})
    assert modern is not None
    seconds = int(modern.value)
    assert seconds >= 1
    assert (seconds - 1) * 1_000 < max(interval_ms, 1) <= seconds * 1_000


@given(st.lists(TOPIC, min_size=1, max_size=6))
def test_a_joined_list_is_split_into_its_items(items: list[str]) -> None:
    assert parse_list(",".join(items)) == parse_list(" , ".join(items)) == tuple(items)


@given(st.integers(min_value=-(1 << 31), max_value=(1 << 31) - 1))
def test_every_int_of_java_is_read(number: int) -> None:
    assert parse_value(JavaType.INT, f" {number} ") == number
