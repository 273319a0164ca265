"""A login by Kerberos is refused in one line where librdkafka was built without it."""

import pytest
from confluent_kafka import KafkaException, Producer

from mm2py.errors import ConfigError
from mm2py_connectors import record_sender
from mm2py_connectors.record_sender import check_kerberos


def has_gssapi() -> bool:
    try:
        Producer({"builtin.features": "sasl_gssapi", "log_level": 0})
    except KafkaException:
        return False
    return True


@pytest.mark.skipif(has_gssapi(), reason="this librdkafka has Kerberos")
def test_a_library_without_kerberos_refuses_such_a_login_with_what_to_do() -> None:
    login = {"sasl.mechanism": "GSSAPI", "bootstrap.servers": "h:1"}
    with pytest.raises(ConfigError, match=r"built without Kerberos.*docs/guide/security\.md"):
        check_kerberos(login)


def test_other_logins_are_not_concerned() -> None:
    check_kerberos({"sasl.mechanism": "PLAIN"})
    check_kerberos({})


@pytest.mark.skipif(not has_gssapi(), reason="this librdkafka has no Kerberos")
def test_two_principals_in_one_process_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_sender, "_principals", {})
    login = {"sasl.mechanism": "GSSAPI", "sasl.kerberos.keytab": "/k"}
    for _ in range(2):
        check_kerberos({**login, "sasl.kerberos.principal": "one@A"})
    check_kerberos({"sasl.mechanism": "GSSAPI"})
    with pytest.raises(ConfigError, match="as one@A and two@B"):
        check_kerberos({**login, "sasl.kerberos.principal": "two@B"})
