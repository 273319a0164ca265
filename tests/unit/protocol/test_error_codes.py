"""The error table agrees with the one of kafka-python, which we did not write."""

import pytest
from kafka import errors as theirs

from mm2py.errors import FatalServerError, RetriableServerError
from mm2py.protocol import error_codes
from mm2py.protocol.error_codes import RETRIABLE, error_name, server_error


def test_every_constant_has_the_name_of_its_code() -> None:
    codes = {name: it for name, it in vars(error_codes).items() if isinstance(it, int)}
    assert len(codes) > 50
    assert {name: error_name(it) for name, it in codes.items()} == {name: name for name in codes}


@pytest.mark.parametrize("code", range(1, 121))
def test_names_and_retriable_flags_agree_with_another_table(code: int) -> None:
    other = theirs.for_code(code)
    spelled = error_name(code).replace("_", "").lower().removesuffix("exception")
    renamed = {
        4: "invalidfetchrequest", 6: "notleaderforpartition", 10: "messagesizetoolarge", 2: "corruptrecord",
        39: "invalidreplicationassignment", 13: "networkexception", 40: "invalidconfiguration",
    }  # fmt: skip
    assert other.__name__.lower().removesuffix("error") == renamed.get(
        code, spelled.removesuffix("error")
    )
    # kafka-python does not retry CORRUPT_MESSAGE, Java does; above 120 it knows no code.
    assert (code in RETRIABLE) == (other.retriable or code == 2)


def test_server_error_says_whether_a_retry_helps() -> None:
    again = server_error(6)
    assert isinstance(again, RetriableServerError)
    assert (again.code, str(again)) == (6, "NOT_LEADER_OR_FOLLOWER (6)")
    final = server_error(10, "too big")
    assert isinstance(final, FatalServerError)
    assert str(final).startswith("MESSAGE_TOO_LARGE (10): too big; raise max.message.bytes")


def test_a_code_newer_than_the_table_is_fatal_and_keeps_its_number() -> None:
    error = server_error(4711)
    assert isinstance(error, FatalServerError)
    assert error.name == "ERROR_4711"
    assert error_name(-1) == "UNKNOWN_SERVER_ERROR"


def test_a_session_timeout_that_is_refused_names_the_brokers_limits() -> None:
    assert "group.max.session.timeout.ms" in server_error(26).remedy
