"""How often the page asks for each path (``pace.js``): a function of what was answered, whatever came before."""

import json
from typing import Any, Final

from mm2py.rest.app import public_app
from tests.integration import page_stage
from tests.integration.page_stage import MARKS, served
from tests.kit.browser import Browser
from tests.unit.rest.flow_fakes import Rig

pytestmark = MARKS

browser, rig = page_stage.browser, page_stage.rig

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


async def test_the_pace_of_a_path_follows_from_what_was_answered_last(
    browser: Browser, rig: Rig
) -> None:
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
