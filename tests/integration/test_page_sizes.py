"""The page of fifty flows and of five thousand topics: soon there, no frame held up while it updates, no more asked than before.

Flow: flows over fakes -> a page of few and one of many -> what the browser measures, compared with each other. What a machine
makes of that in seconds, and what an open page costs a worker: ``bench.page``.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final

import pytest

from mm2py.rest.app import public_app
from tests.integration import page_stage
from tests.integration.page_stage import MARKS, assert_quiet, heal, in_all_looks, served
from tests.kit.browser import Browser
from tests.unit.rest.flow_fakes import AB, Rig, partition
from tests.unit.rest.rest_fakes import flow

pytestmark = MARKS

rig = page_stage.rig

FLOWS: Final = 50
TOPICS: Final = 5_000
LOOKS: Final = 5
UPDATES: Final = 10
FRAME_MS: Final = 100
RATIO: Final = 3
"""The page of many against that of nothing: one more request, and a table of what is visible."""
SEEN: Final = """\
addEventListener('DOMContentLoaded', () => new MutationObserver(() => {
  if (!window.seenAt && document.querySelector('main h2, main .empty code')) {
    requestAnimationFrame(() => { window.seenAt ??= performance.now(); });
  }
}).observe(document.body, {childList: true, subtree: true}));
"""
"""Notes when the first numbers are drawn, in ms since the navigation."""
FRAMES: Final = """\
new Promise(done => {
  let longest = 0, last = performance.now();
  const until = last + 400;
  const frame = now => {
    longest = Math.max(longest, now - last);
    last = now;
    now < until ? requestAnimationFrame(frame) : done(longest);
  };
  requestAnimationFrame(frame);
  document.dispatchEvent(new Event('visibilitychange'));
})
"""
"""Asks for new numbers at once; the longest time between two frames while they come and are drawn."""


PACES: Final = """\
window.paces = [];
const set = window.setTimeout;
window.setTimeout = (then, ms) => { window.paces.push(ms); return set(then, ms); };
"""
"""Notes how long each path waits until it is asked again, in ms."""


@pytest.fixture
def many() -> Rig:
    """Fifty flows from ten clusters; one in seven needs a look."""
    rig = Rig()
    for number in range(FLOWS):
        name = flow(f"region{number % 10}", f"hub{number // 10}")
        rig.add(name)
        heal(rig, name)
        if number % 7 == 3:
            rig.herders[name].show(partitions=(partition("t", 0, 9, state="HELD", cause="full"),))
    return rig


async def seen_at(browser: Browser, url: str) -> float:
    """Return the shortest of some times from the navigation to the first numbers, in ms."""
    times_ms: list[float] = []
    for _ in range(LOOKS):
        await browser.open("about:blank")
        await browser.open(url)
        await browser.until("window.seenAt")
        times_ms.append(await browser.evaluate("window.seenAt"))
    return min(times_ms)


async def frames(browser: Browser, rig: Rig, name: Any, parts: Sequence[Any]) -> list[float]:
    """Return the longest time between two frames of each update, in ms."""
    found: list[float] = []
    chance = random.Random(1)
    for _ in range(UPDATES):
        rig.herders[name].show(
            partitions=tuple(replace(it, lag_records=chance.randrange(9)) for it in parts)
        )
        found.append(await browser.evaluate(FRAMES))
    return found


async def test_fifty_flows_are_a_list_by_cluster_that_is_there_about_as_soon_as_an_empty_page(
    browser: Browser, many: Rig
) -> None:
    await browser.send("Page.addScriptToEvaluateOnNewDocument", source=SEEN)
    async with served(public_app(Rig().parts)) as url:
        empty_ms = await seen_at(browser, f"{url}ui/")
    browser.requests.clear()
    async with served(public_app(many.parts)) as url:
        full_ms = await seen_at(browser, f"{url}ui/")
        assert full_ms < RATIO * empty_ms, (full_ms, empty_ms)
        groups = "[...document.querySelectorAll('tr.group')].map(it => it.innerText.trim())"
        assert await browser.evaluate(groups) == [f"from region{number}" for number in range(10)]
        assert await browser.evaluate("document.querySelectorAll('svg.map').length") == 0
        assert (
            await browser.evaluate("document.querySelectorAll('main table th a').length") == FLOWS
        )
        await browser.until_text("7 of 50 flows need a look.")
        took = await frames(browser, many, flow("region0", "hub0"), [partition("t", 0, 1)])
        assert median(took) < FRAME_MS, took
        await in_all_looks(browser, "fifty")
        assert_quiet(browser, url)


async def test_five_thousand_topics_hold_up_no_frame_updating(browser: Browser, rig: Rig) -> None:
    parts = [partition(f"orders.{number:04d}", 0, 0) for number in range(TOPICS)]
    rig.herders[AB].show(partitions=tuple(parts))
    async with served(public_app(rig.parts)) as url:
        await browser.open(f"{url}ui/#/flows/A-%3EB/topics")
        await browser.until_text("5,000 of 5,000 topics")
        took = await frames(browser, rig, AB, parts)
        assert median(took) < FRAME_MS, took
        assert_quiet(browser, url)


@pytest.mark.parametrize(
    ("topics", "place", "paces_ms"),
    [(0, "", {5_000}), (TOPICS, "flows/A-%3EB/topics", {10_000, 40_000, 60_000})],
)
async def test_a_page_asks_seldom_for_fifty_flows_and_for_thousands_of_topics(
    browser: Browser, many: Rig, rig: Rig, topics: int, place: str, paces_ms: set[int]
) -> None:
    parts = [partition(f"orders.{number:04d}", 0, 0) for number in range(topics)]
    if topics:
        rig.herders[AB].show(partitions=tuple(parts))
    await browser.send("Page.addScriptToEvaluateOnNewDocument", source=PACES)
    async with served(public_app((rig if topics else many).parts)) as url:
        await browser.open(f"{url}ui/#/{place}")
        await browser.until("document.querySelector('main table a')")
        await browser.evaluate("window.paces.length = 0")
        # What was asked before the size was known is asked once more.
        await browser.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        wanted = sorted(paces_ms)
        await browser.until(
            f"JSON.stringify([...new Set(window.paces)].sort((a, b) => a - b)) === '{json.dumps(wanted, separators=(',', ':'))}'"
        )


USUAL: Final = 3_000
FLOW: Final = "flows/A-%3EB"
JOBS: Final = "jobs?flow=A-%3EB"
ROWS: Final[list[dict[str, object]]] = [{}] * 1_001
CASES: Final[list[tuple[str, Any, bool, int]]] = [
    ("jobs/failover/A-%3EB", {"failover": {"step": "DRAIN"}}, False, 2_000),
    ("jobs/failback/A-%3EB", {"failover": {"step": "DONE"}}, False, 10_000),
    ("jobs/failover/A-%3EB", {"failover": None}, False, USUAL),
    ("jobs/failover/A-%3EB/plan", {"failover": {"step": "DRAIN"}}, False, USUAL),
    ("flows", [{}] * 12, False, USUAL),
    ("flows", [{}] * 13, False, 5_000),
    ("flows", [{"partitions": 1_001}, *[{}] * 12], True, 5_000),
    ("flows", [{"partitions": 1_001}], True, 5_000),
    (JOBS, [{"partitions_by_state": {"DONE": 500, "COPYING": 501}}, {}], False, 10_000),
    (JOBS, [{"partitions_by_state": {"DONE": 500, "COPYING": 500}}, {}], False, USUAL),
    (JOBS, None, False, USUAL),
    (FLOW, {"partitions": 1_000}, False, USUAL),
    (FLOW, {"partitions": 1_001}, True, 10_000),
    (f"{FLOW}/forecast", [], True, 60_000),
    (f"{FLOW}/forecast", [], False, USUAL),
    (f"{FLOW}/topics", ROWS, True, 40_000),
    (f"{FLOW}/forecast", ROWS, True, 60_000),
    (f"{FLOW}/partitions?topic=t", [], True, 10_000),
    (f"{FLOW}/partitions?topic=t", [], False, USUAL),
    (f"{FLOW}/history", None, False, USUAL),
]


async def test_the_pace_of_a_path_follows_from_the_last_answer(browser: Browser, rig: Rig) -> None:
    async with served(public_app(rig.parts)) as url:
        await browser.open(f"{url}ui/")
        await browser.until("document.querySelector('main')")
        asked = [
            {"path": path, "data": data, "usualMs": USUAL, "large": large}
            for path, data, large, _ in CASES
        ]
        found = await browser.evaluate(
            f"import('./pace.js').then(it => {json.dumps(asked)}.map(it.pace))"
        )
        assert found == [wanted for *_, wanted in CASES]
        slow: dict[str, Any] = {"path": "x", "data": ROWS, "usualMs": 60_000, "large": False}
        found = await browser.evaluate(
            f"import('./pace.js').then(it => it.pace({json.dumps(slow)}))"
        )
        assert found == 60_000
