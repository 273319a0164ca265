"""``python -m bench.page``: what an open page costs a worker, of one flow, of fifty flows, and of one with thousands of topics.

Flow: regions -> one process with the flows -> what the page asks, again and again -> seconds of an answer, CPU of the worker for
it -> the share of a core at the page's pace. Then the page itself in Chromium, where there is one, for ``OPEN_S``. The worker's own work
without a page is measured before, with an open page also after, and taken off.
"""

import argparse
import asyncio
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench.clusters import Clusters
from bench.measure import ProcessTree
from bench.mm2py_worker import public_url, start_mm2py
from bench.topics import Topics
from tests.kit.browser import Browser, Chromium, chromium
from tests.kit.kafka.reaper import REAPER

TARGET: Final = "hub"
START_S: Final = 600.0
QUIET_S: Final = 20.0
OPEN_S: Final = 60.0
TURNS: Final = 3
"""How often a page is opened, for ``OPEN_S`` each: the worker's own work varies by as much as a page costs."""
ASKED: Final = 40
OFTEN_S: Final = 2.0
"""How often a page asks for one flow, and for ``/flows`` of up to twelve."""
MANY_FLOWS_S: Final = 5.0
"""How often for more."""
SELDOM_S: Final = 10.0
"""How often for samples and properties, and for one flow with thousands of topics."""
MANY_TOPICS_S: Final = 40.0
RARELY_S: Final = 60.0
"""How often for thousands of topics, and for what retention overtakes of them."""


class Case(NamedTuple):
    """A worker of some flows, with so many topics of one partition each."""

    flows: int
    topics: int

    @property
    def place(self) -> str:
        """Where the page is open."""
        return "" if self.flows > 1 else f"flows/region0-%3E{TARGET}/topics"

    def asks(self) -> Sequence[tuple[str, float]]:
        """Return what a page asks and how often: the overview of many flows, else the topics of one."""
        if self.flows > 1:
            return [("flows", MANY_FLOWS_S if self.flows > 12 else OFTEN_S)]
        flow, large = f"flows/region0-%3E{TARGET}", self.topics > 1_000
        return [
            (flow, SELDOM_S if large else OFTEN_S),
            (f"{flow}/topics", MANY_TOPICS_S if large else OFTEN_S),
            (f"{flow}/forecast", RARELY_S if large else SELDOM_S),
            *((f"{flow}/{it}", SELDOM_S) for it in ("samples", "config")),
        ]


class Costs(NamedTuple):
    """Of each path by itself, and of a page that is open in a browser: percent of a core, None without Chromium."""

    paths: Sequence["Cost"]
    page: float | None


class Cost(NamedTuple):
    """Of one answer: its median time, and the worker's CPU for it."""

    path: str
    every_s: float
    took_ms: float
    cpu_ms: float

    @property
    def share(self) -> float:
        """The part of a core, in percent, while one page is open."""
        return self.cpu_ms / 10 / self.every_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--flows", type=int, default=50, help="of the case with many flows")
    parser.add_argument("--topics", type=int, default=5_000, help="of the case with many topics")
    parser.add_argument("--only", type=int, choices=(0, 1, 2), help="one of the cases")
    options = parser.parse_args(arguments)
    cases = [Case(1, 10), Case(options.flows, 10), Case(1, options.topics)]
    only: int | None = options.only
    for case in cases if only is None else cases[only : only + 1]:
        with tempfile.TemporaryDirectory(prefix="mm2py-page-") as name, ExitStack() as stack:
            folder = Path(name)
            REAPER.watch_folder(folder)
            stack.callback(REAPER.forget_folder, folder)
            costs = _measure(folder, stack, case)
        sys.stdout.write(f"{case.flows} flows with {case.topics} topics each\n")
        for it in costs.paths:
            sys.stdout.write(
                f"  {it.path:32} {it.took_ms:8.1f} ms, CPU {it.cpu_ms:6.1f} ms, each {it.every_s:g} s: {it.share:.2f} %\n"
            )
        computed = sum(it.share for it in costs.paths)
        measured = "not measured" if costs.page is None else f"{costs.page:.2f} %"
        sys.stdout.write(f"  one open page: {computed:.2f} % of a core, in a browser {measured}\n")
        sys.stdout.flush()
    return 0


def _measure(folder: Path, stack: ExitStack, case: Case) -> Costs:
    clusters = stack.enter_context(Clusters(folder))
    source, target = clusters.source.bootstrap_servers, clusters.target.bootstrap_servers
    Topics(source).create_all([f"orders.{number:04d}" for number in range(case.topics)], 1)
    regions = [f"region{number}" for number in range(case.flows)]
    lines = [
        f"clusters = {', '.join([*regions, TARGET])}",
        f"{TARGET}.bootstrap.servers = {target}",
        "listeners = http://127.0.0.1:0",
        *("tasks.max = 1", "emit.heartbeats.enabled = false", "replication.factor = 1"),
        *(
            f"{what}.replication.factor = 1"
            for what in ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic")
        ),
        *(f"{what}.storage.replication.factor = 1" for what in ("offset", "status", "config")),
    ]
    for region in regions:
        lines += [
            f"{region}.bootstrap.servers = {source}",
            f"{region}->{TARGET}.enabled = true",
            f"{region}->{TARGET}.topics = orders.*",
        ]
    file = folder / "page.properties"
    file.write_text("\n".join(lines) + "\n", encoding="latin-1")
    worker = stack.enter_context(start_mm2py(file, folder / "page.log"))
    url, tree = public_url(worker), ProcessTree(worker.pid)
    deadline = time.monotonic() + START_S
    while worker.log().count("source task started") < case.flows:
        worker.check_running()
        if time.monotonic() > deadline:
            raise RuntimeError("the flows do not copy")
        time.sleep(1)
    time.sleep(QUIET_S)  # what a start leaves to be done
    own = _share(tree, QUIET_S)
    paths = [_cost(url, tree, own, *asked) for asked in case.asks()]
    return Costs(paths, asyncio.run(_open(f"{url}ui/#/{case.place}", tree)))


def _share(tree: ProcessTree, seconds: float) -> float:
    """Return which part of a core a worker needs for so long."""
    before_s, began = tree.cpu_s(), time.monotonic()
    time.sleep(seconds)
    return (tree.cpu_s() - before_s) / (time.monotonic() - began)


async def _open(url: str, tree: ProcessTree) -> float | None:
    """Return which part of a core, in percent, a worker needs more while a page is open."""
    path = chromium()
    if path is None:
        return None
    closed, opened = [await asyncio.to_thread(_share, tree, OPEN_S)], list[float]()
    for _ in range(TURNS):
        with Chromium(path) as process:
            async with Browser(process) as browser:
                await browser.open(url)
                await browser.until("document.querySelector('main table')")
                opened.append(await asyncio.to_thread(_share, tree, OPEN_S))
                assert await browser.evaluate("!document.hidden")
        closed.append(await asyncio.to_thread(_share, tree, OPEN_S))
    shown = " / ".join(f"{it:.3f}" for it in (*closed, *opened))
    sys.stdout.write(f"  cores of the worker without a page, then with one: {shown}\n")
    return (median(opened) - median(closed)) * 100


def _cost(url: str, tree: ProcessTree, own: float, path: str, every_s: float) -> Cost:
    took: list[float] = []
    before_s, began = tree.cpu_s(), time.monotonic()
    for _ in range(ASKED):
        asked_at = time.monotonic()
        with urllib.request.urlopen(url.rstrip("/") + "/" + path, timeout=60) as answer:  # noqa: S310 - http to ourselves
            answer.read()
        took.append(time.monotonic() - asked_at)
    cpu_s = tree.cpu_s() - before_s - own * (time.monotonic() - began)
    return Cost(path, every_s, median(took) * 1000, cpu_s * 1000 / ASKED)


if __name__ == "__main__":
    sys.exit(main())
