from pathlib import Path

import pytest

from mm2py.config.jaas import LoginKind, LoginModule, file_secrets, jaas_secrets, parse_jaas
from mm2py.errors import ConfigError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "password"),
    [
        ('password="a b";', "a b"),
        ("password='a\"b';", 'a"b'),
        (r'password="a\"b\\c";', r'a"b\c'),
        ('password="x=y;z,#";', "x=y;z,#"),
        (r'password="\101\n\t";', "A\n\t"),
        ("password=word-1.x_$y;", "word-1.x_$y"),
        ('password = "p" ;  // a comment', "p"),
        ('/* a\ncomment */ password="/* p */";', "/* p */"),
        ('\n  password="pässword"\n;', "pässword"),
        ('password="";', ""),
    ],
)
def test_values_are_read_as_the_jvm_reads_them(text: str, password: str) -> None:
    found = parse_jaas(f"{PLAIN} required {text}")
    assert found.kind is LoginKind.PASSWORD
    assert found.options == {"password": password}


def test_every_known_module_and_flag_is_taken() -> None:
    oauth = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    assert parse_jaas(f"{oauth} Sufficient;").kind is LoginKind.OAUTH
    krb5 = "com.sun.security.auth.module.Krb5LoginModule"
    assert parse_jaas(f"{krb5} optional useKeyTab=true;").kind is LoginKind.KERBEROS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no login module"),
        (PLAIN, "no control flag"),
        (f'{PLAIN} username="a";', "no control flag"),
        (f'{PLAIN} required username="a"', "does not end with a semicolon"),
        (f'{PLAIN} required password=1234; other="s3cret";', "no value for option password"),
        (f"{PLAIN} required password;", "no value for option password"),
        (f'{PLAIN} required password="s3cret', "does not end with a semicolon"),
        (f"{PLAIN} required; {PLAIN} required;", "more than one login module"),
        ("com.sun.security.auth.module.JndiLoginModule required;", "is not known here"),
        ("com.sun.security.auth.module.LdapLoginModule required;", "is not known here"),
    ],
)
def test_what_is_no_single_known_entry_is_refused_without_quoting_values(
    text: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        parse_jaas(text)
    assert "s3cret" not in str(refusal.value)
    assert refusal.value.remedy


def test_secrets_inside_are_known_to_the_log_mask() -> None:
    text = f'{PLAIN} required username="u" password="p1" clientSecret="p2";'
    assert jaas_secrets(text) == {"p1", "p2"}
    assert jaas_secrets("no jaas") == frozenset()
    assert "p1" not in repr(parse_jaas(text))


def test_the_secrets_of_a_jaas_file_are_known_for_masking(tmp_path: Path) -> None:
    file = tmp_path / "jaas.conf"
    environ = {"KAFKA_OPTS": f"-Djava.security.auth.login.config={file}"}
    assert file_secrets({}) == file_secrets(environ) == frozenset()
    file.write_text(f'KafkaClient {{ {PLAIN} required username="u" password="hidden"; }};')
    assert file_secrets(environ) == {"hidden"}


@pytest.mark.parametrize(
    "value", ["word", "", "two words", 'a "b"', "back\\slash", "line\nend\t", "ümläut", "a;b=c//d"]
)
def test_a_login_is_written_as_it_is_read(value: str) -> None:
    login = LoginModule(
        LoginKind.KERBEROS,
        "com.sun.security.auth.module.Krb5LoginModule",
        {"useKeyTab": "true", "keyTab": value},
    )
    assert parse_jaas(login.text()) == login
