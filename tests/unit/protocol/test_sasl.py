import pytest

from mm2py.errors import AuthenticationError
from mm2py.protocol.sasl import SaslExchange


def test_plain_is_one_message_that_an_empty_answer_ends() -> None:
    exchange = SaslExchange.with_password("PLAIN", "u=,", "p,=ä")
    assert exchange.message() == "u=,\0u=,\0p,=ä".encode()
    exchange.take(b"")
    assert exchange.is_done


def test_scram_names_are_escaped() -> None:
    exchange = SaslExchange.with_password("SCRAM-SHA-256", "a=b,c", "p")
    assert exchange.message().startswith(b"n,,n=a=3Db=2Cc,r=")


@pytest.mark.parametrize(
    "answer",
    [b"", b"junk", b"e=unknown-user", b"r=other,s=c2FsdA==,i=4096", b"r=,i=4096", b"\xff"],
)
def test_a_scram_answer_that_is_no_challenge_is_refused(answer: bytes) -> None:
    exchange = SaslExchange.with_password("SCRAM-SHA-512", "u", "p")
    exchange.message()
    with pytest.raises(AuthenticationError, match="SCRAM-SHA-512 exchange is wrong"):
        exchange.take(answer)


def test_a_broker_that_does_not_know_the_password_is_refused() -> None:
    exchange = SaslExchange.with_password("SCRAM-SHA-256", "u", "p")
    nonce = exchange.message().split(b"r=")[1]
    exchange.take(b"r=" + nonce + b"more,s=c2FsdA==,i=4096")
    assert b",p=" in exchange.message()
    with pytest.raises(AuthenticationError):
        exchange.take(b"v=AAAA")


def test_a_refused_token_is_answered_before_the_broker_gives_its_error() -> None:
    exchange = SaslExchange.with_token("t", {"logicalCluster": "lkc"})
    assert exchange.message() == b"n,,\x01auth=Bearer t\x01logicalCluster=lkc\x01\x01"
    exchange.take(b'{"status":"invalid_token"}')
    assert not exchange.is_done
    assert exchange.message() == b"\x01"


@pytest.mark.parametrize("count", [b"0", b"1", b"4095", b"1000001", b"9" * 5_000])
def test_a_broker_that_asks_for_a_proof_that_is_easy_to_crack_or_endless_gets_none(
    count: bytes,
) -> None:
    exchange = SaslExchange.with_password("SCRAM-SHA-256", "u", "p")
    nonce = exchange.message().rpartition(b"r=")[2]
    with pytest.raises(AuthenticationError, match="SCRAM iterations, 4096 to 1000000"):
        exchange.take(b"r=" + nonce + b"more,s=c2FsdA==,i=" + count)
