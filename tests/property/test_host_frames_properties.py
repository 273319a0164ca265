"""Messages between worker and task host: every one survives the pipe, everything else is refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2py.api.context import LossEvent
from mm2py.errors import ProtocolError
from mm2py.observability.metrics import PartitionSnapshot
from mm2py.runtime.hosts.frames import HEADER, Envelope, body_size, decode_body, encode_frame
from mm2py.runtime.hosts.messages import (
    FlowSpec,
    Hold,
    Incarnation,
    IncarnationsAnswer,
    LedgerEntry,
    LogLine,
    Meters,
    OpenFlow,
    Resume,
    StartTask,
    Suspend,
    TaskStatus,
)
from mm2py.runtime.tasks.task_host import TaskSpec
from mm2py.types import TaskId, TopicPartition

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
number = st.integers(-(2**53), 2**53)
partition = st.builds(TopicPartition, text, st.integers(-1, 2**31 - 1))
task = st.builds(TaskId, text, st.integers(0, 9_999))
config = st.dictionaries(text, text, max_size=4)
snapshot = st.builds(
    PartitionSnapshot,
    source=partition,
    target=st.none() | partition,
    records_per_s=st.floats(-1, 1e12),
    bytes_per_s=st.floats(-1, 1e12),
    **dict.fromkeys(("task", "state", "cause"), text),
    **dict.fromkeys(("records", "size_bytes", "lag_records", "lag_ms", "newest_ms"), number),
)
event = st.builds(
    LossEvent, partition=partition, first_offset=number, last_offset=number, policy=text
)
messages = st.one_of(
    st.builds(OpenFlow, number, st.builds(FlowSpec, worker=config, secrets=st.tuples(text, text))),
    st.builds(
        StartTask, number, st.builds(TaskSpec, id=task, connector_config=config, config=config)
    ),
    st.builds(Hold, st.frozensets(partition, max_size=5)),
    st.builds(Suspend),
    st.builds(Resume),
    st.builds(IncarnationsAnswer, number, st.dictionaries(partition, st.binary(max_size=16))),
    st.builds(Incarnation, partition, st.binary(max_size=16)),
    st.builds(TaskStatus, task=task, error_message=text, trace=text),
    st.builds(Meters, st.tuples(snapshot, snapshot), st.tuples(snapshot)),
    st.builds(LedgerEntry, number, event),
    st.builds(LogLine, level=text, logger=text, scope=text, text=text, trace=text),
)


def read(frame: bytes) -> Envelope:
    header, body = frame[: HEADER.size], frame[HEADER.size :]
    assert body_size(header) == len(body)
    return decode_body(body)


@given(st.integers(0, 1_000), messages)
def test_every_message_survives_the_pipe(channel: int, message: Hold) -> None:
    envelope = read(encode_frame(channel, message))
    assert envelope == Envelope(channel, message)
    assert type(envelope.message) is type(message)


@given(messages, st.integers(0, 10_000))
def test_a_frame_that_was_cut_is_refused(message: Hold, at: int) -> None:
    body = encode_frame(1, message)[HEADER.size :]
    with pytest.raises(ProtocolError):
        decode_body(body[: at % len(body)])


@given(st.binary(max_size=60))
def test_foreign_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_body(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"t":"start","f":1,"id":1}',
        b'{"t":"dance","f":1}',
        b'{"t":"suspend"}',
        b'{"t":["suspend"],"f":1}',
        b'{"t":"incarnation","f":1,"partition":["a",0],"topic_id":"zz"}',
        b'{"t":"incarnations","f":1,"id":1,"known":[["a"]]}',
    ],
)
def test_a_message_that_lacks_something_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_body(body)


@pytest.mark.parametrize("header", [HEADER.pack(5, 2), HEADER.pack(1, 1), HEADER.pack(2**31, 1)])
def test_another_version_and_impossible_lengths_are_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError, match="same version"):
        body_size(header)


def test_what_is_refused_is_not_quoted_for_it_may_be_a_secret() -> None:
    spec = TaskSpec(id=TaskId("c", 0), connector_config={"p": "hunter2"}, config={})
    frame = encode_frame(1, StartTask(1, replace(spec, version="hunter2")))
    body = frame[HEADER.size :].replace(b'"paused":false', b'"paused":"hunter2"')
    with pytest.raises(ProtocolError) as caught:
        decode_body(body)
    assert "hunter2" not in str(caught.value)
