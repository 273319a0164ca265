"""``mm2py verify --continuous`` beside a running flow on real brokers: no Spark, and every change on the target is named."""

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

import pytest

from mm2py.client.connect.group_admin import GroupAdmin
from mm2py.errors import Mm2pyError
from mm2py.mirror.proofs import Proof, proof_group, proofs_of
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_jobs.spark.reading import ask_cluster
from tests.integration.flow_questions import Asked, path_of
from tests.integration.mirror_process import Flow, Mirror, write_flow
from tests.integration.traffic import Load, Sent, wait_for_copy, wait_for_progress, write
from tests.integration.transactions import write_mixed
from tests.kit.kafka.reaper import REAPER
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(400)]

COMMAND: Final = str(Path(sys.executable).parent / "mm2py")
WAIT_S: Final = 90.0
Line = Mapping[str, object]


class Proving:
    """The command, and the lines of JSON that it prints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self._lines.put(cast("Line", json.loads(text)))

    def until(self, condition: Callable[[Line], bool], what: str) -> Line:
        """Return the first line for which it is true."""
        deadline, line = time.monotonic() + WAIT_S, None
        while True:
            try:
                line = self._lines.get(timeout=max(0.1, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not seen: {what}; the last line was {line}") from None
            if condition(line):
                return line

    def close(self) -> None:
        """Read what the ended process has printed."""
        self._reading.join(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> int:
        """SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


@contextmanager
def proving(flow: Flow) -> Generator[Proving]:
    name = f"{flow.source_alias}->{flow.target_alias}"
    arguments = ["--flow", name, "--continuous", "--every", "0.3", "-o", "json"]
    process = subprocess.Popen(
        [COMMAND, "verify", str(flow.file), *arguments], stdout=subprocess.PIPE, text=True
    )
    REAPER.watch_process(process.pid)
    found = Proving(process)
    try:
        yield found
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        found.close()
        REAPER.forget_process(process.pid)


def rows(line: Line, member: str) -> Sequence[Mapping[str, object]]:
    return cast("Sequence[Mapping[str, object]]", line[member])


def proved(line: Line) -> dict[object, int]:
    return {row["partition"]: int(str(row["source_to"])) for row in rows(line, "partitions")}


def kept(flow: Flow) -> Mapping[TopicPartition, Proof]:
    group = proof_group(FlowName(ClusterAlias(flow.source_alias), ClusterAlias(flow.target_alias)))
    target = {"bootstrap.servers": flow.target.bootstrap_servers}
    found = ask_cluster(target, lambda it: GroupAdmin(it).committed([group]))[group]
    assert not isinstance(found, Mm2pyError)
    return proofs_of(found)


def test_copies_are_proved_beside_the_flow_across_a_restart_until_a_foreign_record_is_named(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topic = unique("continuous")
    create_topic(region_a, topic, 2)
    properties = {
        "{source}.consumer.isolation.level": "read_committed",
        "{target}.producer.compression.type": "lz4",
    }
    flow = write_flow(tmp_path, region_a, region_b, topic, properties)
    write_mixed(region_a, topic, 20, 10)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with Load(flow.source, topic, 2, rate=300) as load:
            wait_for_progress(mirror, flow, topic)
            with proving(flow) as first:
                load.wait_acked(300)
                before = first.until(lambda it: len(proved(it)) == 2, "both partitions")
                grown = first.until(
                    lambda it: all(proved(it)[n] > proved(before)[n] for n in proved(before)),
                    "proofs grow with the traffic",
                )
                assert grown["equal"] is True
                assert not rows(grown, "differences")
                assert first.stop() == 0
            stored = kept(flow)
            assert {tp.partition for tp in stored} == {0, 1}
            with proving(flow) as second:
                line = second.until(lambda it: len(proved(it)) == 2, "the first round again")
                froms = {row["partition"]: row["source_from"] for row in rows(line, "partitions")}
                for tp, proof in stored.items():
                    assert proved(line)[tp.partition] >= proof.source_to, "it continues"
                    assert froms[tp.partition] == proof.source_from
                load.stop()
                wait_for_copy(mirror, flow, topic, committed=True)
                write(region_b, flow.remote(topic), [Sent(1, b"foreign")])
                found = second.until(lambda it: bool(it["differences"]), "the foreign record")
                (extra,) = rows(found, "differences")
                assert (extra["partition"], extra["kind"]) == (1, "extra")
                assert found["equal"] is False
                status, proof = Asked(mirror)("GET", f"{path_of(flow)}/proof")
                assert (status, proof["equal"]) == (200, False)
                assert "extra" in proof["text"]
                assert second.stop() == 4
        assert mirror.stop() == 0
    by_partition = {tp.partition: proof for tp, proof in kept(flow).items()}
    assert by_partition[0].equal
    assert not by_partition[1].equal
    assert "extra" in by_partition[1].first
