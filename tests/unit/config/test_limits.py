"""How long names, keys, values and configs may be, and that hostile texts are judged in linear time."""

import pytest

from mm2py.config.limits import (
    MAX_CONFIG_BYTES,
    MAX_KEY_CHARS,
    MAX_NAME_CHARS,
    MAX_VALUE_BYTES,
    limit_problem,
)
from mm2py.config.providers import Providers, placeholders
from mm2py.config.remote_allow_list import remote_problems

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
def test_placeholders_are_those_of_javas_pattern(
    text: str, found: list[tuple[str, str, str]]
) -> None:
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
