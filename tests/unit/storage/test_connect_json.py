"""Records of the config topic, byte for byte as Java writes them (kcr 2.2)."""

import pytest

from mm2py.errors import ProtocolError
from mm2py.storage.config_state import RestartRequest, SessionKey
from mm2py.storage.connect_json import (
    Commit,
    ConfigRecord,
    ConnectorPut,
    Fenced,
    LoggerLevel,
    TargetPut,
    TaskPut,
    decode_config_record,
    encode_config_record,
)
from mm2py.types import TargetState, TaskId

VECTORS: list[tuple[ConfigRecord, bytes, bytes | None]] = [
    (
        ConnectorPut("c", {"name": "c", "x": None, "topics": "größe"}),
        b"connector-c",
        '{"properties":{"name":"c","x":null,"topics":"größe"}}'.encode(),
    ),
    (ConnectorPut("c", None), b"connector-c", None),
    (TaskPut(TaskId("my-c", 3), {"a": '"1"'}), b"task-my-c-3", b'{"properties":{"a":"\\"1\\""}}'),
    (Commit("c", 2), b"commit-c", b'{"tasks":2}'),
    (
        TargetPut("c", TargetState.STARTED),
        b"target-state-c",
        b'{"state":"STARTED","state.v2":"STARTED"}',
    ),
    (
        TargetPut("c", TargetState.STOPPED),
        b"target-state-c",
        b'{"state":"PAUSED","state.v2":"STOPPED"}',
    ),
    (TargetPut("c", None), b"target-state-c", None),
    (
        RestartRequest("c", only_failed=True, include_tasks=False),
        b"restart-connector-c",
        b'{"include-tasks":false,"only-failed":true}',
    ),
    (Fenced("c", 4), b"tasks-fencing-c", b'{"task-count":4}'),
    (
        SessionKey(b"\x00\xff1", "HmacSHA256", 1_700_000_000_000),
        b"session-key",
        b'{"key":"AP8x","algorithm":"HmacSHA256","creation-timestamp":1700000000000}',
    ),
    (LoggerLevel("org.x", "DEBUG"), b"logger-cluster-org.x", b'{"level":"DEBUG"}'),
]


@pytest.mark.parametrize(("record", "key", "value"), VECTORS)
def test_every_record_is_written_and_read_as_java_does(
    record: ConfigRecord, key: bytes, value: bytes | None
) -> None:
    assert encode_config_record(record) == (key, value)
    assert decode_config_record(key, value) == record


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (b'{"state":"PAUSED"}', TargetState.PAUSED),
        (b'{"state":"PAUSED","state.v2":7}', TargetState.PAUSED),
        (b'{"state":"PAUSED","state.v2":null,"more":[1]}', TargetState.PAUSED),
        (b'{"state.v2":"STOPPED"}', TargetState.STOPPED),
    ],
)
def test_the_newer_state_field_wins_if_it_is_text(value: bytes, state: TargetState) -> None:
    assert decode_config_record(b"target-state-c", value) == TargetPut("c", state)


def test_missing_and_non_boolean_flags_of_a_restart_are_false() -> None:
    for value in (b"{}", b'{"include-tasks":"true","only-failed":1}'):
        assert decode_config_record(b"restart-connector-c", value) == RestartRequest(
            "c", only_failed=False, include_tasks=False
        )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"\xff", b"{}"),
        (b"something", b"{}"),
        (b"session-keys", b"{}"),
        (b"task-c", b'{"properties":{}}'),
        (b"task-c-", b'{"properties":{}}'),
        (b"task-c-x", b'{"properties":{}}'),
        (b"task-c-" + b"9" * 5_000, b'{"properties":{}}'),
        (b"task-c-0", None),
        (b"task-c-0", b'{"properties":[]}'),
        (b"connector-c", b"not json"),
        (b"connector-c", b"\xff"),
        (b"connector-c", b"[" * 100_000),
        (b"connector-c", b"7"),
        (b"connector-c", b'{"properties":{"a":1}}'),
        (b"connector-c", b"{}"),
        (b"commit-c", None),
        (b"commit-c", b'{"tasks":true}'),
        (b"commit-c", b'{"tasks":1.0}'),
        (b"commit-c", b'{"tasks":-1}'),
        (b"commit-c", b'{"tasks":2147483648}'),
        (b"target-state-c", b"{}"),
        (b"target-state-c", b'{"state":"RUNNING"}'),
        (b"restart-connector-c", None),
        (b"tasks-fencing-c", b"{}"),
        (b"session-key", None),
        (b"session-key", b'{"key":"secret!","algorithm":"x","creation-timestamp":1}'),
        (b"session-key", b'{"key":"AP8x","algorithm":"x"}'),
        (b"logger-cluster-x", b'{"level":null}'),
    ],
)
def test_what_is_not_in_form_is_refused_without_quoting_it(
    key: bytes | None, value: bytes | None
) -> None:
    with pytest.raises(ProtocolError) as refused:
        decode_config_record(key, value)
    assert "secret" not in str(refused.value)


def test_a_lone_surrogate_does_not_stop_a_write() -> None:
    assert (
        encode_config_record(ConnectorPut("c", {"a": "\ud800"}))[1] == b'{"properties":{"a":"?"}}'
    )
