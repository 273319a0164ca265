"""The pipe between worker and task host: every call survives it, everything else is refused."""

import asyncio
import socket
from collections.abc import Callable, Coroutine

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2py.api.context import LossEvent
from mm2py.client.connect.broker_errors import BrokerError
from mm2py.errors import ConfigError, FatalError, Mm2pyError, PartitionError, ProtocolError
from mm2py.observability.metrics import PartitionSnapshot
from mm2py.runtime.hosts.pipe import (
    HEADER,
    Channel,
    Failure,
    Frame,
    HostPipe,
    body_size,
    decode_body,
    encode_frame,
)
from mm2py.runtime.hosts.reports import HostReports, TaskReports
from mm2py.runtime.hosts.service import FlowSpec, HostService
from mm2py.runtime.tasks.task_host import InProcessTaskHost, TaskSpec
from mm2py.types import ClusterAlias, FlowName, State, TaskId, TopicPartition

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
task_spec = st.builds(TaskSpec, id=task, connector_config=config, config=config)
flow_spec = st.builds(
    FlowSpec,
    flow=st.builds(FlowName, text.map(ClusterAlias), text.map(ClusterAlias)),
    worker=config,
)
failure = st.builds(Failure, causes=st.tuples(st.tuples(text, text)))

Call = tuple[str, tuple[object, ...], Callable[[Channel], None]]


def post(
    method: Callable[..., None], *values: st.SearchStrategy[object]
) -> st.SearchStrategy[Call]:
    return st.tuples(*values).map(
        lambda args: (method.__name__, args, lambda channel: channel.post(method, *args))
    )


calls = st.one_of(
    post(InProcessTaskHost.hold, st.frozensets(partition, max_size=5)),
    post(HostService.permit, st.integers(0, 99), st.integers(0, 2**31), st.floats(0, 1e15)),
    post(HostReports.lives),
    post(HostReports.broker_errors, st.tuples(st.tuples(st.builds(BrokerError), st.integers(1)))),
    post(TaskReports.status_changed, task, st.sampled_from(State), st.none() | failure),
    post(TaskReports.measured, st.tuples(snapshot, snapshot), st.tuples(snapshot)),
    post(TaskReports.happened, event),
    post(TaskReports.note_incarnation, partition, st.binary(max_size=16)),
    post(HostReports.log_line, text, text, text, text),
)


class Recorder:
    """Has the served methods by name and types, and notes what arrives."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, tuple[object, ...]]] = []
        self.answer: dict[TopicPartition, bytes] = {}
        self.error: Exception | None = None

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        self.seen.append(("hold", (partitions,)))

    def permit(self, number: int, term: int, until_s: float) -> None:
        self.seen.append(("permit", (number, term, until_s)))

    def lives(self) -> None:
        self.seen.append(("lives", ()))

    def broker_errors(self, errors: tuple[tuple[BrokerError, int], ...]) -> None:
        self.seen.append(("broker_errors", (errors,)))

    def status_changed(self, task: TaskId, state: State, failure: Failure | None) -> None:
        self.seen.append(("status_changed", (task, state, failure)))

    def measured(
        self, partitions: tuple[PartitionSnapshot, ...], gone: tuple[PartitionSnapshot, ...]
    ) -> None:
        self.seen.append(("measured", (partitions, gone)))

    def happened(self, event: LossEvent) -> None:
        self.seen.append(("happened", (event,)))

    def note_incarnation(self, partition: TopicPartition, topic_id: bytes) -> None:
        self.seen.append(("note_incarnation", (partition, topic_id)))

    def log_line(self, level: str, logger: str, scope: str, text: str) -> None:
        self.seen.append(("log_line", (level, logger, scope, text)))

    async def start_task(self, spec: TaskSpec) -> None:
        self.seen.append(("start_task", (spec,)))
        if self.error is not None:
            raise self.error

    def open_flow(
        self,
        number: int,
        spec: FlowSpec,
        *,
        held: frozenset[TopicPartition],
        kept_out: frozenset[TopicPartition],
        term: int,
        until_s: float,
    ) -> None:
        self.seen.append(("open_flow", (number, spec, held, kept_out, term, until_s)))
        if self.error is not None:
            raise self.error

    async def incarnations(self) -> tuple[tuple[TopicPartition, bytes], ...]:
        return tuple(self.answer.items())

    def serve(self, channel: Channel) -> None:
        channel.serve(
            self.hold,
            self.permit,
            self.lives,
            self.broker_errors,
            self.status_changed,
            self.measured,
            self.happened,
            self.note_incarnation,
            self.log_line,
            self.start_task,
            self.open_flow,
            self.incarnations,
        )


def play(scenario: Callable[[HostPipe, HostPipe, Recorder], Coroutine[None, None, None]]) -> None:
    """Run a scenario over a caller's and a served end, whose channel 7 is the recorder."""

    async def run() -> None:
        here, there = socket.socketpair()
        near, far = await HostPipe.over(here), await HostPipe.over(there)
        recorder = Recorder()
        recorder.serve(far.channel(7))
        listening = [asyncio.create_task(end.listen()) for end in (near, far)]
        try:
            async with asyncio.timeout(90):
                await scenario(near, far, recorder)
        finally:
            await near.close()
            await far.close()
            await asyncio.wait(listening)
            for end in listening:
                end.exception()  # scenarios look at it themselves

    asyncio.run(run())


@given(st.lists(calls, max_size=5))
def test_every_call_arrives_in_order_with_its_arguments(made: list[Call]) -> None:
    async def scenario(near: HostPipe, _far: HostPipe, recorder: Recorder) -> None:
        for _, _, make in made:
            make(near.channel(7))
        await near.channel(7).ask(TaskReports.incarnations)
        assert recorder.seen == [(name, arguments) for name, arguments, _ in made]

    play(scenario)


@given(task_spec, flow_spec, st.frozensets(partition, max_size=5), st.floats(0, 1e15))
def test_specs_survive_the_pipe(
    spec: TaskSpec, flow: FlowSpec, held: frozenset[TopicPartition], until_s: float
) -> None:
    async def scenario(near: HostPipe, _far: HostPipe, recorder: Recorder) -> None:
        await near.channel(7).ask(InProcessTaskHost.start_task, spec)
        await near.channel(7).confirm(
            HostService.open_flow, 3, flow, held=held, kept_out=held, term=2, until_s=until_s
        )
        assert recorder.seen == [
            ("start_task", (spec,)),
            ("open_flow", (3, flow, held, held, 2, until_s)),
        ]

    play(scenario)


@given(st.dictionaries(partition, st.binary(max_size=16)))
def test_an_answer_survives_the_pipe(known: dict[TopicPartition, bytes]) -> None:
    async def scenario(near: HostPipe, _far: HostPipe, recorder: Recorder) -> None:
        recorder.answer = known
        assert dict(await near.channel(7).ask(TaskReports.incarnations)) == known

    play(scenario)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ConfigError("a", remedy="b"), "a; b"),
        (PartitionError("no", topic="t", partition=0, offset=7), "t-0 at offset 7: no"),
        (ZeroDivisionError("by 0"), "ZeroDivisionError: by 0"),
        (FatalError("name \udcff"), "name ?"),
    ],
)
def test_an_error_of_a_method_is_raised_at_its_caller(raised: Exception, expected: str) -> None:
    async def scenario(near: HostPipe, _far: HostPipe, recorder: Recorder) -> None:
        recorder.error = raised
        spec = TaskSpec(id=TaskId("c", 0), connector_config={}, config={})
        flow = FlowSpec(
            flow=FlowName(ClusterAlias("A"), ClusterAlias("B")), worker={}, log_level=""
        )
        kind = type(raised) if isinstance(raised, Mm2pyError) else FatalError
        with pytest.raises(kind) as caught:
            await near.channel(7).ask(InProcessTaskHost.start_task, spec)
        assert str(caught.value) == expected
        with pytest.raises(kind):
            await near.channel(7).confirm(
                HostService.open_flow,
                1,
                flow,
                held=frozenset(),
                kept_out=frozenset(),
                term=0,
                until_s=0.0,
            )

    play(scenario)


def test_a_call_on_a_channel_that_is_closed_is_refused_and_a_post_ignored() -> None:
    async def scenario(near: HostPipe, far: HostPipe, recorder: Recorder) -> None:
        far.channel(7).close()
        near.channel(7).post(HostReports.lives)
        with pytest.raises(FatalError, match="not open"):
            await near.channel(7).ask(TaskReports.incarnations)
        assert recorder.seen == []

    play(scenario)


def test_calls_fail_when_the_other_end_is_gone() -> None:
    async def scenario(near: HostPipe, _far: HostPipe, _recorder: Recorder) -> None:
        asking = asyncio.ensure_future(near.channel(7).ask(TaskReports.incarnations))
        await asyncio.sleep(0)
        near.fail(FatalError("ended with signal 9"))
        with pytest.raises(FatalError, match="ended with signal 9"):
            await asking
        with pytest.raises(FatalError, match="ended with signal 9"):
            await near.channel(7).ask(TaskReports.incarnations)

    play(scenario)


async def heard(frame: Frame) -> None:
    """Send a frame to a recorder and return when it stopped listening.

    Raises:
        ProtocolError: it refused the frame.
    """
    here, there = socket.socketpair()
    near, far = await HostPipe.over(here), await HostPipe.over(there)
    Recorder().serve(far.channel(7))
    try:
        near.send(frame)
        await near.close()
        await far.listen()
    finally:
        await far.close()


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("dance", b"[]"),
        ("close", b"[]"),
        ("answer", b"[]"),
        ("__init__", b"[]"),
        ("lives", b"[1]"),
        ("lives", b"{}"),
        ("lives", b"["),
        ("start_task", b'[{"id":["c",0]}]'),
        ("note_incarnation", b'[["a",0],"zz"]'),
        ("note_incarnation", b'[["a"],"00"]'),
    ],
)
def test_a_call_of_something_else_is_refused(name: str, payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="damaged message"):
        asyncio.run(heard(Frame(7, 0, name, payload)))


def test_what_is_refused_is_not_quoted_for_it_may_be_a_secret() -> None:
    payload = b'[{"id":["c",0],"connector_config":{"p":"hunter2"},"config":{},"paused":"hunter2"}]'
    with pytest.raises(ProtocolError) as caught:
        asyncio.run(heard(Frame(7, 1, "start_task", payload)))
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


frames = st.builds(
    Frame,
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.text(st.characters(max_codepoint=127), max_size=255),
    st.binary(min_size=1),
)


@given(frames)
def test_a_frame_survives_encoding(frame: Frame) -> None:
    encoded = encode_frame(frame)
    body = encoded[HEADER.size :]
    assert body_size(encoded[: HEADER.size]) == len(body)
    assert decode_body(body) == frame


@given(st.binary(max_size=60))
def test_foreign_bytes_are_a_frame_or_refused(body: bytes) -> None:
    try:
        frame = decode_body(body)
    except ProtocolError:
        return
    assert encode_frame(frame)[HEADER.size :] == body


@given(frames, st.integers(0, 10_000))
def test_a_frame_that_was_cut_before_its_arguments_is_refused(frame: Frame, at: int) -> None:
    body = encode_frame(frame)[HEADER.size :]
    with pytest.raises(ProtocolError):
        decode_body(body[: at % (len(body) - len(frame.payload) + 1)])


@pytest.mark.parametrize("header", [HEADER.pack(50, 1), HEADER.pack(1, 2), HEADER.pack(2**31, 2)])
def test_another_version_and_impossible_lengths_are_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError, match="same version"):
        body_size(header)


def test_a_call_that_is_too_long_for_the_other_end_is_refused_at_its_caller() -> None:
    with pytest.raises(FatalError, match="too long for the pipe"):
        encode_frame(Frame(1, 1, "start_task", bytes(64 << 20)))
