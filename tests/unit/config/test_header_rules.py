import pytest

from mm2py.config.header_rules import HeaderRule, allowed_methods, allowed_origins, header_rules
from mm2py.errors import ConfigError


def test_rules_are_read_as_connects_example_writes_them() -> None:
    text = (
        'add X-XSS-Protection: 1; mode=block, "add Cache-Control: no-cache, no-store", '
        "SETDATE Expires:31540000000,set  X-Frame-Options : DENY, add X-Empty:"
    )
    assert header_rules(text) == (
        HeaderRule("add", "X-XSS-Protection", "1; mode=block"),
        HeaderRule("add", "Cache-Control", "no-cache, no-store"),
        HeaderRule("setDate", "Expires", "31540000000"),
        HeaderRule("set", "X-Frame-Options", "DENY"),
        HeaderRule("add", "X-Empty", ""),
    )
    assert header_rules("  ") == ()


@pytest.mark.parametrize(
    "text",
    [
        "drop a:b",
        "a:b",
        "add",
        "add a b: c",
        "add : c",
        "add a",
        "add a:b,",
        "add a:b\nadd c:d",
        "add a:b\r\nX: y",
        "add a:\u20ac",
        "add a:\u0000",
        "setDate a: soon",
        '"add a:b',
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        header_rules(text)
    assert caught.value.remedy


def test_origins_are_written_in_full() -> None:
    assert allowed_origins("https://UI.example:8443, *") == {"https://ui.example:8443", "*"}
    assert allowed_origins("") == frozenset()
    for text in ("ui.example", "http://*.example", "http://a/b", ".*", "null", "http://a b"):
        with pytest.raises(ConfigError, match="is no origin"):
            allowed_origins(text)


def test_methods_are_sent_as_given_or_as_jetty_does() -> None:
    assert allowed_methods("get, POST") == "GET,POST"
    assert allowed_methods("") == "POST,HEAD,GET"
    with pytest.raises(ConfigError, match="is no method"):
        allowed_methods("G\r\nET")
