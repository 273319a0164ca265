"""``python -m bench.observing``: what metrics and the forecast cost a worker, with one topic and with a thousand, idle and all behind.

Flow: regions -> topics of three partitions -> a worker, with or without the forecast -> its CPU, and that of a scrape, as shares of a
core. Tasks run in the worker, so that one switch is enough.
"""

import argparse
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Producer

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.measure import ProcessTree
from bench.mirror_process import MirrorProcess
from bench.mm2py_worker import public_url
from bench.topics import Topics
from tests.kit.kafka.reaper import REAPER

PARTITIONS: Final = 3
RECORDS: Final = 3
TARGET: Final = "B"
SETTLE_S: Final = 12.0
START_S: Final = 300.0
SCRAPE_EACH_S: Final = 15.0
SCRAPES: Final = 10
SLOW: Final = "flow.max.bytes.per.second = 1000"
"""So that nearly all stays behind."""
LAG: Final = re.compile(r"^mm2py_source_lag_records\{[^}]*\} (\d+)$", re.MULTILINE)
WORKER: Final = """\
import sys
from mm2py_connectors import retention_watch
from mm2py_workers.entry import connect_mirror_maker
if sys.argv.pop() == "without":
    retention_watch.CHECK_S = 1e9
sys.exit(connect_mirror_maker())
"""


class Cost(NamedTuple):
    """Shares of a core, in percent; ``behind``: partitions with a lag at the end."""

    worker: float
    scrape: float
    scrape_own: float
    behind: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.observing", description=__doc__)
    parser.add_argument("--topics", type=int, default=1_000, help="of the case with many topics")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mm2py-observing-") as name, ExitStack() as stack:
        folder = Path(name)
        REAPER.watch_folder(folder)
        stack.callback(REAPER.forget_folder, folder)
        clusters = stack.enter_context(Clusters(folder))
        for count in (1, options.topics):
            _fill(clusters, [f"of{count}.{number:04d}" for number in range(count)])
        for count, behind, forecast in product(
            (1, options.topics), (False, True), ("with", "without")
        ):
            cost = _measure(folder, clusters, count, options.seconds, forecast, behind=behind)
            sys.stdout.write(
                f"{count} topics, {cost.behind} partitions behind, {forecast} forecast: worker {cost.worker:.2f} %,"
                f" a scrape each {SCRAPE_EACH_S:.0f} s {cost.scrape:.2f} %, compat=none {cost.scrape_own:.2f} %\n"
            )
            sys.stdout.flush()
    return 0


def _fill(clusters: Clusters, topics: Sequence[str]) -> None:
    servers = clusters.source.bootstrap_servers
    limits = {"retention.bytes": "1000000000"}
    for begin in range(0, len(topics), 100):
        Topics(servers).create_all(topics[begin : begin + 100], PARTITIONS, limits)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    for topic, partition, _ in product(topics, range(PARTITIONS), range(RECORDS)):
        producer.produce(topic, bytes(1000), partition=partition)
        producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("records were not taken")


def _measure(
    folder: Path, clusters: Clusters, count: int, seconds: float, forecast: str, *, behind: bool
) -> Cost:
    alias = f"{'slow' if behind else 'idle'}{forecast}{count}"
    file = folder / f"{alias}.properties"
    write_flow_file(
        file,
        source=(alias, clusters.source_endpoint()),
        target=(TARGET, clusters.target_endpoint()),
        topics=rf"of{count}\..*",
    )
    with file.open("a", encoding="latin-1") as more:
        more.write("listeners = http://127.0.0.1:0\ntask.host.processes = 0\n")
        more.write(f"{alias}->{TARGET}.{SLOW}\n" if behind else "")
    command = [sys.executable, "-c", WORKER, str(file), forecast]
    with MirrorProcess(alias, command, folder / f"{alias}.log") as worker:
        url, tree, until = public_url(worker), ProcessTree(worker.pid), time.monotonic() + START_S
        while True:
            lags = [int(lag) for lag in LAG.findall(_scraped(url))]
            if len(lags) >= count * PARTITIONS and (behind or not any(lags)):
                break
            if time.monotonic() > until:
                raise RuntimeError(f"{len(lags)} partitions are copied")
            time.sleep(1)
        time.sleep(SETTLE_S)
        before_s, began = tree.cpu_s(), time.monotonic()
        time.sleep(seconds)
        own = (tree.cpu_s() - before_s) / (time.monotonic() - began)
        every, ours = (_of_scrapes(url, tree, own, it) for it in ("", "?compat=none"))
        lags = [int(lag) for lag in LAG.findall(_scraped(url))]
    return Cost(own * 100, every, ours, sum(lag > 0 for lag in lags))


def _of_scrapes(url: str, tree: ProcessTree, own: float, query: str) -> float:
    """Return the share of a core of one each ``SCRAPE_EACH_S``, in percent, without what the worker does besides."""
    before_s, began = tree.cpu_s(), time.monotonic()
    for _ in range(SCRAPES):
        _scraped(url, query)
    cpu_s = tree.cpu_s() - before_s - own * (time.monotonic() - began)
    return cpu_s / SCRAPES / SCRAPE_EACH_S * 100


def _scraped(url: str, query: str = "?compat=none") -> str:
    with urllib.request.urlopen(f"{url}metrics{query}", timeout=60) as answer:  # noqa: S310 - http to ourselves
        return str(answer.read(), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
