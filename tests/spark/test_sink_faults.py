"""``format("mm2py")`` writes to brokers that throttle, stand still, have no room, are old, or refuse the login from now on.

Flow: a topic of two partitions -> ``held_rows`` keeps the second half of each back until the fault has begun -> the sink -> ``Fault.ends``. What
waits arrives once and in order; a write that fails names the cause, and the same one again completes it.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from mm2py.errors import FatalError
from mm2py_jobs.spark.data_sink import WriteOptions, write_rows
from mm2py_jobs.spark.session import OpenSession, cause_of
from tests.integration.mirror_process import until
from tests.integration.other_releases import region_of
from tests.integration.secured import ODD_WORD, SCRAM, SESSION_MS, SecuredRegion
from tests.integration.setups import Setup
from tests.integration.small_disk import FEW_INDEXES, fill, small_disk
from tests.integration.test_quotas import WINDOWS, throttled
from tests.integration.traffic import Logs, Sent, ends, read, write
from tests.kit.kafka.region import KafkaAddress, Region
from tests.kit.matrix import matrix
from tests.kit.regions import ANY_SESSION
from tests.spark.lane_functions import held_rows

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.java,
    pytest.mark.timeout(600),
]

SERVERS: Final = "kafka.bootstrap.servers"
ROWS, VALUE_BYTES = 1_000, 300
"""Of each partition; half of them are more than Spark keeps back for the sink."""
RATE: Final = 50_000
FAULT_S: Final = 7.0
"""Longer than ``request.timeout.ms`` of these writes, and than a session of the login."""
GIVES_UP: Final = {"kafka.delivery.timeout.ms": "5000"}


def nothing() -> None:
    """A fault that is there from the beginning."""


class Fault(NamedTuple):
    """What happens to the cluster of a sink; ``cause`` of a write that ends meanwhile, empty for one that waits."""

    at: KafkaAddress
    happens: Callable[[], None] = nothing
    ends: Callable[[], None] = nothing
    cause: str = ""
    options: Mapping[str, str] = {}


@pytest.fixture(scope="module")
def own() -> Iterator[Region]:
    """A cluster to stand still and to throttle."""
    with Region("sunk", properties=ANY_SESSION | WINDOWS) as region:
        yield region


@pytest.fixture(scope="module")
def old() -> Iterator[Region]:
    with region_of("2.4.1") as region:
        yield region


def pause() -> None:
    threading.Event().wait(FAULT_S)


def full(setup: Setup, stack: ExitStack) -> Fault:
    disk = stack.enter_context(small_disk(setup.folder))
    properties = ANY_SESSION | FEW_INDEXES
    region = stack.enter_context(Region("full", properties=properties, folder=disk, min_free_bytes=1))  # fmt: skip
    ballast = disk / "ballast"

    def ends() -> None:
        until(lambda: not region.node(1).is_running, 90, "the broker to give up")
        ballast.unlink()
        region.start()

    return Fault(region, partial(fill, ballast), ends, "the target has taken nothing for 5 s")


def locked_out(setup: Setup, secured: SecuredRegion) -> Fault:
    user = setup.unique("guest")
    given = secured.properties("SHORT", "SCRAM-SHA-512", SCRAM, username=user, password=ODD_WORD)
    secured.set_scram_user(user, ODD_WORD)

    def happens() -> None:
        secured.set_scram_user(user, f"{ODD_WORD}!")
        pause()  # the session ends

    assert SESSION_MS / 1000 < FAULT_S
    return Fault(
        secured.region,
        happens,
        partial(secured.set_scram_user, user, ODD_WORD),
        f"refused the login of user {user}",
        {f"kafka.{key}": text for key, text in given.items()},
    )


@pytest.fixture
def fault(setup: Setup, request: pytest.FixtureRequest) -> Iterator[Fault]:
    with ExitStack() as stack:
        match str(request.param):
            case "throttled":
                region: Region = request.getfixturevalue("own")
                stack.enter_context(throttled((region, "producer"), rate=RATE))
                yield Fault(region)
            case "frozen" | "silent" as kind:
                region = request.getfixturevalue("own")
                stack.callback(region.thaw)
                cause = "the target has taken nothing for 5 s" if kind == "silent" else ""
                yield Fault(region, region.freeze, region.thaw, cause)
            case "frozen, TLS":
                secured: SecuredRegion = request.getfixturevalue("secured")
                region = secured.region
                stack.callback(region.thaw)
                given = secured.with_client_key("MUTUAL").items()
                options = {f"kafka.{key}": text for key, text in given}
                yield Fault(region, region.freeze, region.thaw, options=options)
            case "login":
                yield locked_out(setup, request.getfixturevalue("secured"))
            case "full":
                yield full(setup, stack)
            case _:
                region = request.getfixturevalue("old")
                yield Fault(region, region.restart)


class Sink(NamedTuple):
    """A write that can be begun again: rows of one topic into another one, each into its partition."""

    session: OpenSession
    kind: str
    source: Mapping[str, str]
    target: Mapping[str, str]
    go: str

    def run(self) -> None:
        spark, rows = self.session.spark, "value binary, partition int"
        held = held_rows(self.go, ROWS // 2)
        if self.kind == "write":
            frame = spark.read.format("mm2py").options(**self.source).load()
            frame = frame.select("value", "partition").mapInArrow(held, rows)
            frame.write.format("mm2py").options(**self.target).mode("append").save()
            return
        stream = spark.readStream.format("mm2py").options(**self.source).load()
        stream = stream.select("value", "partition").mapInArrow(held, rows)
        out = stream.writeStream.format("mm2py").options(**self.target)
        out.trigger(availableNow=True).start().awaitTermination()


def raised_by(work: Callable[[], None]) -> Exception | None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the test compares it
        return error
    return None


def values(logs: Logs) -> dict[int, list[bytes]]:
    return {number: [it.value or b"" for it in log.records] for number, log in logs.items()}


@pytest.fixture
def small_batches(lanes_session: OpenSession) -> Iterator[OpenSession]:
    """The session, which hands rows on by hundreds."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    lanes_session.spark.conf.set(name, "100")
    yield lanes_session
    lanes_session.spark.conf.unset(name)


@pytest.mark.parametrize(
    ("fault", "kind"),
    matrix(
        [
            ("throttled", "writeStream"),
            ("frozen", "write"),
            ("silent", "writeStream"),
            ("login", "write"),
            ("full", "writeStream"),
            ("old", "write"),
        ],
        [
            ("throttled", "write"),
            ("frozen", "writeStream"),
            ("frozen, TLS", "write"),
            ("frozen, TLS", "writeStream"),
            ("silent", "write"),
            ("login", "writeStream"),
            ("full", "write"),
            ("old", "writeStream"),
        ],
    ),
    indirect=["fault"],
)
def test_a_fault_amid_a_write_ends_it_with_the_cause_or_is_waited_for_and_no_row_is_lost(
    setup: Setup, small_batches: OpenSession, fault: Fault, kind: str
) -> None:
    source, target, go = setup.topic("rows", 2), setup.topic("sunk", 2, on=fault.at), setup.folder / "go"  # fmt: skip
    write(setup.a, source, [Sent(n % 2, b"%0*d" % (VALUE_BYTES, n)) for n in range(2 * ROWS)])
    given = {SERVERS: fault.at.bootstrap_servers, "kafka.request.timeout.ms": "2000", "topic": target}  # fmt: skip
    given |= {**fault.options, **(GIVES_UP if fault.cause else {})}
    if kind == "writeStream":
        given["checkpointLocation"] = str(setup.folder / "state")
    read_from = {SERVERS: setup.a.bootstrap_servers, "subscribe": source, "startingOffsets": "earliest"}  # fmt: skip
    sink = Sink(small_batches, kind, read_from, given, str(go))
    ended = threading.Event()

    def strike() -> None:
        until(lambda: any(ends(fault.at, target).values()) or ended.is_set(), 120, "the first rows")
        fault.happens()
        go.touch()
        if not fault.cause and fault.ends is not nothing:
            pause()
            fault.ends()

    # Not the other way round: a thread of its own finds no source in Python.
    with ThreadPoolExecutor(1) as threads:
        struck = threads.submit(strike)
        error = raised_by(sink.run)
        ended.set()
        struck.result()
    if fault.cause:
        assert error is not None
        assert fault.cause in cause_of(error)
        fault.ends()
        sink.run()
        copies = {it: {*found} for it, found in values(read(fault.at, target)).items()}
        assert copies == {it: {*found} for it, found in values(read(setup.a, source)).items()}
    else:
        assert error is None
        assert values(read(fault.at, target)) == values(read(setup.a, source))


def test_a_topic_whose_message_format_has_no_idempotent_producers_is_named(
    setup: Setup, old: Region
) -> None:
    topic = setup.topic("old-format", on=old, config={"message.format.version": "0.10.2"})
    schema = StructType([StructField("value", BinaryType())])
    options = WriteOptions({SERVERS: old.bootstrap_servers, "topic": topic}, schema)
    rows = pa.RecordBatch.from_pydict({"value": [b"v"]})
    with pytest.raises(FatalError, match=f"not taken by topic {topic}: .*message format older than 0.11"):  # fmt: skip
        write_rows(options, iter([rows]))
