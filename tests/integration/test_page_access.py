"""The page measured by axe-core: no finding of WCAG 2.1 A or AA at any place, in both sizes and themes.

Flow: flows over fakes, well and broken -> a place -> ``axe.run`` in the page -> its violations.
"""

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from mm2py.observability.metrics import FlowSample, Forecast
from mm2py.testing.clock import FakeClock
from mm2py_jobs.failover.plan import FailoverRequest
from tests.integration import page_stage
from tests.integration.page_stage import (
    DENIED,
    LEDGER,
    LOOKS,
    MARKS,
    OPEN,
    PLANNED,
    SHOTS,
    Jobs,
    group,
    press,
    served,
)
from tests.kit.axe import AxeMissingError, axe_script
from tests.kit.browser import Browser
from tests.unit.rest.flow_fakes import AB, BA, Rig, partition
from tests.unit.rest.job_fakes import PLAN, with_backfill

pytestmark = MARKS

rig = page_stage.rig

RULES: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")
PLACES: Final = [
    ("", "What is wrong"),
    ("flows/A-%3EB/topics/t", DENIED),
    ("flows/A-%3EB/groups/skipper", "Group skipper"),
    ("flows/A-%3EB/failover", "Not ready"),
    ("flows/A-%3EB/ledger", "120 offsets lost"),
    ("flows/A-%3EB/jobs", "70 %"),
    ("flows/A-%3EB/tasks", "MirrorSourceConnector"),
    ("flows/A-%3EB/config", "connector.class"),
    ("flows/A-%3EB/history", "by anonymous"),
    ("flows/B-%3EA/topics", "all is copied"),
    ("flows/B-%3EA/history", "Nothing was changed"),
    ("flows/none", "has no flow none"),
    ("api", "openapi.json"),
]


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return axe_script()
    except AxeMissingError as error:
        pytest.skip(f"no axe-core: {error}")


@pytest.fixture
def jobs(rig: Rig) -> Jobs:
    """Of A->B everything has something to say; B->A is well."""
    with_backfill(rig.herders[AB])
    at_ms = FakeClock().now_ms()
    soon = Forecast(by="retention.ms", limit=1_000, at_ms=at_ms, records=1, size_bytes=1)
    held = partition("t", 0, 9, state="HELD", cause=DENIED)
    rig.herders[AB].show(partitions=(held, replace(partition("u", 0, 7), forecast=soon)))
    rig.herders[BA].show(partitions=(partition("t", 0, 0),))
    rig.sampled[AB] = [
        FlowSample(at_ms=number * 15_000, lag_records=lag, lag_ms=lag, records=lag, size_bytes=0)
        for number, lag in enumerate((0, 5_000, 3_000))
    ]
    changed = rig.ask("PATCH", "/flows/A->B", body={"config": {"topics": "t,u"}})
    assert changed.status == 200
    jobs = Jobs(rig)
    jobs.failovers.planned, jobs.ledger = PLANNED, LEDGER
    jobs.groups = [group("skipper", skips=3), group("kept", not_synced="it has members")]
    return jobs


async def violations(browser: Browser, axe: str) -> list[tuple[str, Any]]:
    """Return what axe-core finds on the page as it is now."""
    if not await browser.evaluate("'axe' in window"):
        await browser.evaluate(f"{axe}; 0")
    only = json.dumps({"runOnly": list(RULES), "resultTypes": ["violations"]})
    found = await browser.evaluate(f"axe.run(document, {only})")
    assert found["passes"] or found["inapplicable"]
    return [(it["id"], [node["html"] for node in it["nodes"][:3]]) for it in found["violations"]]


async def test_axe_finds_what_is_wrong_in_a_page(browser: Browser, axe: str, jobs: Jobs) -> None:
    async with served(jobs) as url:
        await browser.open(f"{url.replace('//', '//ann:pw@')}ui/")
        await browser.until_text("What is wrong")
        await browser.evaluate(
            "document.querySelector('h1').insertAdjacentElement('afterend', document.createElement('img'))"
        )
        assert [name for name, _ in await violations(browser, axe)] == ["image-alt"]


# Each size and each theme once; what they do together, with the faults.
@pytest.mark.parametrize(
    ("width", "height", "dark"),
    [
        pytest.param(*look, marks=[pytest.mark.faults] if crossed else [])
        for look, crossed in zip(LOOKS, (False, True, True, False), strict=True)
    ],
)
async def test_no_place_of_the_page_has_a_finding_of_wcag_aa(
    browser: Browser, axe: str, jobs: Jobs, width: int, height: int, *, dark: bool
) -> None:
    async with served(jobs) as url:
        own = url.replace("//", "//ann:pw@")
        await browser.look(width=width, height=height, dark=dark)
        for place, seen in PLACES:
            await browser.open(f"{own}ui/#/{place}")
            await browser.until_text(seen)
            assert await violations(browser, axe) == [], place
            name = "-".join(place.replace("A-%3EB", "ab").replace("B-%3EA", "ba").split("/"))
            shade = "dark" if dark else "light"
            await browser.screenshot(SHOTS / f"place-{name or 'overview'}-{width}-{shade}.png")
        await browser.open(f"{own}ui/#/flows/A-%3EB/history")
        await press(browser, "Pause")
        await browser.until(f"{OPEN}?.innerText.includes('would change')")
        assert await violations(browser, axe) == [], "a plan"
        await press(browser, "Cancel", "dialog[open]")
        jobs.failovers.planned = PLAN
        await jobs.service.start(AB, FailoverRequest(id="f-1"))
        await browser.open(f"{own}ui/#/flows/A-%3EB/failover")
        await browser.until_text("Failover f-1")
        assert await violations(browser, axe) == [], "a failover under way"
        await jobs.service.close()
    await browser.until_text("This worker does not answer.")
    assert await violations(browser, axe) == [], "no answer"
