"""MirrorMaker 1 side by side: Java's ``kafka.tools.MirrorMaker`` of Kafka 3.9 and ``mirror-maker-py``, the same command line.

Flow: both properties files -> a process with two streams -> rounds that warm it up -> it is stopped (SIGSTOP) while a topic is filled ->
continued, measured until the last record is on the target -> ``CopyCost``. The brokers are those of the other measures; only the mirror
is of Kafka 3.9, the last release that has it. Its jars are those that jgo resolves for kafka_2.13 and slf4j-simple.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.clusters import Clusters
from bench.java_mm2 import SCRIPT_FLAGS
from bench.measure import CopyCost, ProcessTree, measure_copy
from bench.mirror_process import MirrorProcess
from bench.steady import wait_until
from bench.topics import Topics
from bench.workloads import PARTITIONS, Workload, fill
from mm2py_jobs.spark.java import find_java
from tests.kit.kafka.jars import Jar, cache_dir, fetch

RECORD_BYTES: Final = 500
STREAMS: Final = 2
COPY_DEADLINE_S: Final = 180.0
_JARS: Final = Path(__file__).parent / "kafka-3.9.2-jars.json"
_HEAP: Final = ("-Xmx256M",)
"""What ``kafka-run-class.sh`` gives a tool."""
_SETTLED: Final = 0.05
_ROUNDS: Final = range(4, 10)
_QUICK_ROUNDS: Final = range(3, 5)
_WORKLOAD: Final = Workload(
    name="mm1",
    title="500 B",
    value_bytes=RECORD_BYTES,
    codec="none",
    records=600_000,
    quick_records=240_000,
    warm_up_records=80_000,
)


def measure_mirror_maker_1(
    tool: str, clusters: Clusters, folder: Path, *, quick: bool
) -> tuple[CopyCost, Sequence[float]]:
    """Measure one of ``java`` and ``mm2py``; return the copy's cost and the CPU per record of each warm-up round, in us.

    Raises:
        CopyFailedError: something did not arrive in time.
        RetriableError: the jars of Kafka 3.9 cannot be fetched.
    """
    topic = f"mm1-{tool}"
    source, target = clusters.source.bootstrap_servers, clusters.target.bootstrap_servers
    for servers in (source, target):
        Topics(servers).create(topic, PARTITIONS)
    copied = Topics(target)
    with MirrorProcess(
        tool, _command(tool, folder, topic, clusters), folder / f"{topic}.log"
    ) as it:
        counted = it.counting(lambda: copied.count(topic, PARTITIONS))
        tree = ProcessTree(it.pid)
        rounds = _QUICK_ROUNDS if quick else _ROUNDS
        warm: list[float] = []
        while len(warm) < rounds.stop and not (len(warm) >= rounds.start and _is_settled(warm)):
            there, cpu_s = counted(), tree.cpu_s()
            fill(source, topic, _WORKLOAD, _WORKLOAD.warm_up_records)
            wait_until(lambda: counted() >= there + _WORKLOAD.warm_up_records, f"{topic} copied")  # noqa: B023 - called at once
            warm.append((tree.cpu_s() - cpu_s) * 1e6 / _WORKLOAD.warm_up_records)
        there = counted()
        records = _WORKLOAD.quick_records if quick else _WORKLOAD.records
        os.kill(it.pid, signal.SIGSTOP)
        try:
            fill(source, topic, _WORKLOAD, records)
        finally:
            os.kill(it.pid, signal.SIGCONT)
        cost = measure_copy(tree, lambda: counted() - there, records, deadline_s=COPY_DEADLINE_S)
    for servers in (source, target):
        Topics(servers).empty(topic, PARTITIONS)
    return cost, warm


def _is_settled(warm: Sequence[float]) -> bool:
    return abs(warm[-1] / warm[-2] - 1) <= _SETTLED


def _command(tool: str, folder: Path, topic: str, clusters: Clusters) -> list[str]:
    consumer, producer = (
        folder / f"{topic}-{side}.properties" for side in ("consumer", "producer")
    )
    consumer.write_text(
        f"bootstrap.servers={clusters.source.bootstrap_servers}\ngroup.id={topic}\nauto.offset.reset=earliest\n"
    )
    producer.write_text(f"bootstrap.servers={clusters.target.bootstrap_servers}\n")
    words = [
        "--consumer.config", str(consumer), "--producer.config", str(producer),
        "--whitelist", topic, "--num.streams", str(STREAMS),
    ]  # fmt: skip
    if tool == "mm2py":
        return [str(Path(sys.executable).parent / "mirror-maker-py"), *words]
    listed: dict[str, str] = json.loads(_JARS.read_text(encoding="utf-8"))
    jars = [Jar(coordinate, digest) for coordinate, digest in listed.items()]
    paths = fetch(jars, cache_dir() / "jars", os.environ.get("MM2PY_MAVEN_URL", ""))
    flags = [flag for flag in SCRIPT_FLAGS if not flag.startswith(("-Xm", "-Dcom.sun"))]
    classpath = os.pathsep.join(map(str, paths))
    java = str(find_java().executable)
    return [java, *_HEAP, *flags, "-cp", classpath, "kafka.tools.MirrorMaker", *words]
