"""The values that the distributed mode's parts hand to each other."""

import itertools

import pytest

from mm2py.config.connect_definitions import ConfigInfos, ConfigValue
from mm2py.errors import ConfigError, ProtocolError
from mm2py.observability.metrics import UNKNOWN, NodeSnapshot, PartitionSnapshot
from mm2py.runtime.errors import SignatureError
from mm2py.runtime.group.request_signing import (
    SeenRequests,
    SignedHead,
    check_algorithms,
    new_session_key,
    rotation_due,
    sign_request,
    verify_request,
)
from mm2py.storage.config_state import EMPTY, ConfigSnapshot, RestartRequest, SessionKey
from mm2py.types import ClusterAlias, FlowName, TargetState, TaskId, TopicPartition


def test_the_impact_of_restarts_is_javas() -> None:
    flags = itertools.product((True, False), (False, True))
    assert [RestartRequest("c", failed, tasks).impact for failed, tasks in flags] == [0, 1, 2, 3]


def test_an_inconsistent_connector_has_no_tasks() -> None:
    snapshot = ConfigSnapshot(task_counts={"a": 2, "b": 1}, inconsistent=frozenset({"b"}))
    assert snapshot.tasks("a") == (TaskId("a", 0), TaskId("a", 1))
    assert snapshot.tasks("b") == snapshot.tasks("c") == ()
    assert EMPTY.target("a") is TargetState.STARTED


def test_a_session_key_is_not_printed() -> None:
    assert "secret" not in repr(SessionKey(b"secret", "HmacSHA256", 1))


def test_a_node_snapshot_survives_the_way_to_another_node() -> None:
    partition = PartitionSnapshot(
        source=TopicPartition("t", 1),
        target=None,
        task="c-0",
        state="RUNNING",
        cause="",
        records=3,
        size_bytes=30,
        lag_records=UNKNOWN,
        lag_ms=0,
        newest_ms=UNKNOWN,
        records_per_s=1.5,
        bytes_per_s=15.0,
    )
    snapshot = NodeSnapshot(
        worker="h:1",
        flow=FlowName(ClusterAlias("A"), ClusterAlias("B")),
        at_ms=7,
        state="RUNNING",
        partitions=(partition,),
        events={"retention": 1},
        records_lost=2,
    )
    read = NodeSnapshot.from_json(snapshot.to_json())
    assert read == snapshot
    assert str(read.flow) == "A->B"
    with pytest.raises(ProtocolError, match="same version"):
        NodeSnapshot.from_json(b"{}")


def test_a_refusal_lists_all_errors_in_javas_words() -> None:
    value = ConfigValue(name="k", value="v", errors=("one", "two"))
    infos = ConfigInfos(name="c", error_count=2, groups=(), configs=((None, value), (None, None)))
    assert infos.refusal() == (
        "Connector configuration is invalid and contains the following 2 error(s):\none\ntwo\n"
        "You can also find the above list of errors at the endpoint "
        "`/connector-plugins/{connectorType}/config/validate`"
    )
    assert ConfigInfos(name="c", error_count=0, groups=(), configs=()).refusal() is None


# ---- signed requests between workers


KEY = SessionKey(b"Jefe", "HmacSHA256", 1_000)


@pytest.mark.parametrize(
    ("algorithm", "size"), [("HmacSHA256", 32), ("HmacSHA512", 64), ("HmacSHA1", 64)]
)
def test_a_new_key_has_the_size_that_java_s_has(algorithm: str, size: int) -> None:
    key = new_session_key(5, algorithm)
    assert (len(key.key), key.algorithm, key.created_ms) == (size, algorithm, 5)
    assert key.key != new_session_key(5, algorithm).key
    assert key.key.hex() not in repr(key)


def test_a_key_of_an_unknown_algorithm_is_not_made() -> None:
    with pytest.raises(ConfigError, match="Rot13"):
        new_session_key(5, "Rot13")


def test_a_key_is_due_when_old_or_not_as_configured() -> None:
    key = new_session_key(1_000)
    assert not rotation_due(key, 1_059, 60, "HmacSHA256")
    assert rotation_due(key, 1_060, 60, "HmacSHA256")
    assert rotation_due(key, 1_000, 60, "HmacSHA1")


TARGET = "/connectors/a%2Fb/config?forward=true"


NOW_MS = 1_700_000_000_000


def test_a_forwarded_request_is_signed_with_path_query_caller_and_body() -> None:
    headers = sign_request(KEY, "put", TARGET, "ann;operator", b"{}", NOW_MS)
    assert headers["X-Mm2py-Caller"] == "ann;operator"
    head = verify_request(headers, "PUT", TARGET, KEY)
    assert (head.caller, head.time_ms) == ("ann;operator", NOW_MS)
    head.check_body(b"{}")
    for method, target in (("POST", TARGET), ("PUT", TARGET.replace("true", "false"))):
        with pytest.raises(SignatureError) as raised:
            verify_request(headers, method, target, KEY)
        assert raised.value.status == 403
    with pytest.raises(SignatureError):
        head.check_body(b"{ }")


def test_neither_caller_nor_stamp_can_be_exchanged_or_left_out() -> None:
    headers = sign_request(KEY, "GET", "/", "ann;reader", b"", NOW_MS)
    other = sign_request(KEY, "GET", "/", "ann;reader", b"", NOW_MS)
    for forged in (
        {**headers, "X-Mm2py-Caller": "ann;operator"},
        {**headers, "X-Mm2py-Stamp": other["X-Mm2py-Stamp"]},
        {**headers, "X-Mm2py-Authorization": "*"},
        *({key: text for key, text in headers.items() if key != left} for left in headers),
    ):
        with pytest.raises(SignatureError) as raised:
            verify_request(forged, "GET", "/", KEY)
        assert raised.value.status == 403


def test_our_form_waits_for_a_key_too() -> None:
    with pytest.raises(SignatureError) as raised:
        verify_request(sign_request(KEY, "GET", "/", "a;reader", b"", 0), "GET", "/", None)
    assert raised.value.status == 503


def test_a_caller_with_a_newline_is_not_signed() -> None:
    with pytest.raises(ValueError, match="control characters"):
        sign_request(KEY, "GET", "/", "a;reader\nX-Other: 1", b"", 0)


def test_a_request_is_taken_once_and_remembered_for_the_time_it_is_valid() -> None:
    seen = SeenRequests()

    def head(now_ms: int) -> SignedHead:
        return verify_request(sign_request(KEY, "GET", "/", "a", b"", now_ms), "GET", "/", KEY)

    first, later = head(NOW_MS), head(NOW_MS + 60_000)
    seen.take(first, NOW_MS)
    seen.take(later, NOW_MS)
    for again in (first, later):
        with pytest.raises(SignatureError, match="sent again"):
            seen.take(again, NOW_MS + 60_000)
    with pytest.raises(SignatureError, match="was signed 61 s ago"):
        seen.take(first, NOW_MS + 61_000)
    # The one that is ahead of us stays valid for longer than its minute here.
    seen.take(head(NOW_MS + 100_000), NOW_MS + 100_000)
    with pytest.raises(SignatureError, match="sent again"):
        seen.take(later, NOW_MS + 119_000)


def test_a_request_for_another_worker_is_refused() -> None:
    headers = sign_request(KEY, "GET", "/", "a", b"", NOW_MS, receiver="n1:8084")
    head = verify_request(headers, "GET", "/", KEY)
    with pytest.raises(SignatureError, match="signed for n1:8084, this is n2:8084"):
        SeenRequests("n2:8084").take(head, NOW_MS)
    SeenRequests("n1:8084").take(head, NOW_MS)


def test_what_is_remembered_is_bounded_by_what_is_valid() -> None:
    seen = SeenRequests()
    for second in range(300):
        now_ms = NOW_MS + second * 1_000
        headers = sign_request(KEY, "GET", "/", "a", b"", now_ms)
        seen.take(verify_request(headers, "GET", "/", KEY), now_ms)
        assert len(seen) <= 61


def test_algorithms_of_signatures_have_to_be_known_and_to_fit_each_other() -> None:
    check_algorithms("HmacSHA512", ("HmacSHA256", "HmacSHA512"))
    for signature, verification, prop in (
        ("HmacSHA512", ("HmacSHA256",), "is not in inter.worker.verification.algorithms"),
        ("Rot13", ("HmacSHA256",), "inter.worker.signature.algorithm=Rot13"),
        ("HmacSHA256", ("HmacSHA256", "x"), "inter.worker.verification.algorithms"),
        ("HmacSHA256", (), "inter.worker.verification.algorithms"),
    ):
        with pytest.raises(ConfigError, match=prop):
            check_algorithms(signature, verification)
