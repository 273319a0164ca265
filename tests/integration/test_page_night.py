"""What an operator sees at night, in a browser: each thing that breaks is on the page with its cause and what mends it, and
nothing is green for what is not copied.

Flow: a worker on real brokers, and the page of its flows -> something is broken -> ``Night.sees``. How long each took is kept
beside the pictures, in ``night.json``: it is this machine's, so no test asserts it.
"""

import json
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import final
from urllib.parse import quote

import pytest

from tests.integration.cluster_changes import (
    delete_topic,
    forbid_writing,
    permit_writing,
    set_config,
)
from tests.integration.flow_questions import Asked, wait_for_records
from tests.integration.mirror_process import PROMPT, Flow, Mirror, running
from tests.integration.night_scenes import AT_START, SOON, at_start
from tests.integration.page_stage import (
    GOOD,
    MARKS,
    SHOTS,
    assert_quiet,
    confirm,
    done,
    named,
    press,
)
from tests.integration.rest_asking import public_url
from tests.integration.secured import SecuredRegion
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, commit, member, numbered, wait_for_copy, write
from tests.kit.browser import Browser
from tests.kit.regions import NewRegion

pytestmark = [*MARKS, pytest.mark.faults, pytest.mark.integration]


@final
class Night:
    """One browser at the page of a worker, and a clock that begins when something is broken."""

    def __init__(self, browser: Browser, mirror: Mirror) -> None:
        self.browser, self._url = browser, public_url(mirror)
        self._broken_at = time.monotonic()

    def place(self, flow: str = "", *more: str) -> str:
        """Return the address of a flow's part, or that of the overview."""
        parts = ["flows", flow, *more] if flow else []
        return f"{self._url}ui/#/{'/'.join(quote(it, safe='') for it in parts)}"

    async def at(self, flow: str = "", *more: str) -> None:
        """Have a place open."""
        await self.browser.look(width=1280, height=900, dark=False)
        await self.browser.open(self.place(flow, *more))

    def broken(self) -> None:
        """Count from now on."""
        self._broken_at = time.monotonic()

    async def sees(self, row: str, *texts: str, green: bool = False) -> None:
        """Wait until a reader sees these texts; unless something else is copied, nothing is green then."""
        wanted = " && ".join(
            f"document.body?.innerText.includes({json.dumps(text)})" for text in texts
        )
        await self.browser.until(wanted if green else f"{wanted} && !{GOOD}")
        self._keep(row, time.monotonic() - self._broken_at)
        await self.browser.screenshot(SHOTS / f"night-{row.replace(' ', '-')}.png")

    def _keep(self, row: str, took_s: float) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        file = SHOTS / "night.json"
        rows: dict[str, float] = json.loads(file.read_text("utf-8")) if file.exists() else {}
        file.write_text(json.dumps({**rows, row: round(took_s, 1)}, indent=1), "utf-8")

    async def well(self) -> None:
        """Wait until something is green."""
        await self.browser.until(GOOD)

    async def quiet(self) -> None:
        """Nothing failed in the page; it asks no more, so that its worker may end."""
        assert_quiet(self.browser, self._url)
        await self.browser.open("about:blank")
        self.browser.requests.clear()


@asynccontextmanager
async def night_of(
    browser: Browser, flow: Flow, *topics: str
) -> AsyncGenerator[tuple[Mirror, Night]]:
    """Run a worker until these topics are copied and the overview is green."""
    with running(flow.file) as mirror:
        for topic in topics:
            wait_for_copy(mirror, flow, topic)
        night = Night(browser, mirror)
        await night.at()
        await night.well()
        yield mirror, night


async def test_what_keeps_a_worker_from_a_cluster_when_it_starts(
    browser: Browser, setup: Setup, secured: SecuredRegion
) -> None:
    flows = at_start(setup, secured)
    with running(flows["login"].file, ready=False) as mirror:
        night = Night(browser, mirror)
        await night.at()
        everything = [text for texts in AT_START.values() for text in texts]
        await night.sees("at start", *everything)
        for row, texts in AT_START.items():
            night.broken()
            await night.at(flows[row].name, "topics")
            await night.sees(f"at start {row}", *texts)
        await night.quiet()


async def test_a_target_that_stops_freezes_or_refuses_to_be_written(
    browser: Browser, setup: Setup, new_region: NewRegion
) -> None:
    target = new_region("night", properties={"super.users": "User:nobody"})
    prefix = setup.unique("night")
    closed, open_ = f"{prefix}-closed", f"{prefix}-open"
    for topic in (closed, open_):
        setup.create_topic(setup.a, topic)
        write(setup.a, topic, numbered(0, 10))
    flow = setup.flow(f"{prefix}-.*", SOON | PROMPT, target=target)
    async with night_of(browser, flow, closed, open_) as (_, night):
        forbid_writing(target, flow.remote(closed))
        write(setup.a, closed, numbered(0, 10))
        night.broken()
        copy = flow.remote(closed)
        refused = (f"may not Write topic {copy}", "kafka-acls.sh", f"--topic {copy}")
        await night.sees("acl", *refused)
        await night.at(flow.name, "topics", closed)
        await night.sees("acl topic", "HELD", *refused, green=True)  # the other topic is
        await browser.until(row_is(closed, green=False))
        await browser.until(row_is(open_, green=True))
        permit_writing(target, copy)
        await night.at()
        await night.well()
        for row, how, back in (
            ("target frozen", target.freeze, target.thaw),
            ("target stopped", target.stop, target.start),
        ):
            write(setup.a, open_, numbered(0, 10))
            how()
            night.broken()
            try:
                await night.sees(row, f"the target {flow.target_alias} does not answer")
                await night.at(flow.name, "topics")
                await night.sees(f"{row} topics", f"{flow.target_alias} does not answer")
                await night.at()
            finally:
                back()
            await night.well()


def row_is(topic: str, *, green: bool) -> str:
    """An expression: the row of a topic is there, and is green or not."""
    row = f"[...document.querySelectorAll('.rows tbody tr')].find(it => it.innerText.includes({json.dumps(topic)}))"
    sign = "" if green else "!"
    return f"{row} && {sign}{row}.querySelector('.good')"


async def test_a_record_too_large_is_named_stops_alone_and_is_cured_from_the_page(
    browser: Browser, setup: Setup
) -> None:
    topic, other = setup.topic("orders", 2), setup.topic("bills")
    # Groups that other tests have left on the source are a note, where the flow leaves all of them out.
    properties = SOON | {"{source}->{target}.emit.checkpoints.enabled": "false"}
    flow = named(setup.flow(f"{topic},{other}", properties), "north", "south")
    setup.create_topic(setup.b, flow.remote(topic), 2, config={"max.message.bytes": "5000"})
    write(setup.a, topic, numbered(0, 10, 2))
    write(setup.a, other, numbered(0, 10))
    async with night_of(browser, flow, topic, other) as (mirror, night):
        write(setup.a, topic, [Sent(1, os.urandom(20_000))])
        night.broken()
        copy = flow.remote(topic)
        cause = (f"{topic}-1 at offset 5", "max.message.bytes", copy)
        await night.sees("too large", *cause, f"{flow.name} not ready")
        await night.at(flow.name, "topics", topic)
        await night.sees("too large topic", "FAILED", *cause, green=True)
        await browser.look(width=1120, height=840, dark=False)
        await browser.screenshot(SHOTS / "broken.png", whole=False)
        await browser.until(row_is(topic, green=False))
        write(setup.a, other, numbered(0, 10))
        wait_for_records(mirror, flow, other, 20)
        await browser.until(row_is(other, green=True))
        await night.at(flow.name, "ledger")
        await night.sees(
            "too large ledger", f"{topic}-1", "larger than", "stopped at 1 record or batch."
        )
        await night.at(flow.name, "failover")
        # What the other partitions have is ordinary lag, not a loss.
        await night.sees(
            "too large failover", "Not ready", "1 offset would stay behind", green=True
        )
        set_config(setup.b, copy, "max.message.bytes", "100000")
        night.broken()
        await night.at(flow.name, "topics")
        await press(browser, "Restart what failed")
        await confirm(browser, "Restart what failed", "")
        await done(browser)
        await browser.until(row_is(topic, green=True))
        await night.sees("too large cured", "RUNNING: all is copied", green=True)
        wait_for_records(mirror, flow, topic, 11)
        await night.at(flow.name, "ledger")
        await browser.until_text("stopped at 1 record or batch, cured")
        await browser.screenshot(SHOTS / "cured.png")
        await night.quiet()


async def test_a_source_topic_that_is_deleted_and_a_copy_that_cannot_be_created(
    browser: Browser, setup: Setup
) -> None:
    prefix = setup.unique("night")
    old, gone = f"{prefix}-old", f"{prefix}-gone"
    flow = setup.flow(f"{prefix}-.*", SOON | {"replication.factor": "2"})
    for topic in (old, gone):
        setup.create_topic(setup.a, topic)
        setup.create_topic(setup.b, flow.remote(topic))
        write(setup.a, topic, numbered(0, 10))
    async with night_of(browser, flow, old, gone) as (_, night):
        delete_topic(setup.a, gone)
        night.broken()
        await night.sees("deleted", "gone on the source", gone, "copies stay", green=True)
        night.broken()
        setup.create_topic(setup.a, f"{prefix}-new")
        write(setup.a, f"{prefix}-new", numbered(0, 10))
        copy = flow.remote(f"{prefix}-new")
        await night.sees("replication factor", copy, "replication.factor (now 2)")
        await night.at(flow.name, "topics")
        await browser.until(row_is(f"{prefix}-new", green=False))
        await night.quiet()


async def test_a_wrong_topic_name_and_a_flow_not_enabled(browser: Browser, setup: Setup) -> None:
    beats = {"emit.heartbeats.enabled": "true", "heartbeats.replication.enabled": "true"}
    mistyped = setup.flow("ordes-misspelt", SOON | beats)
    disabled = setup.flow(
        setup.topic("night"), SOON | beats | {"{source}->{target}.enabled": "false"}
    )
    for row, flow, texts in (
        (
            "typing error",
            mistyped,
            ("no source topic is chosen", "ordes-misspelt", "mm2py flow set"),
        ),
        ("not enabled", disabled, ("not enabled", "mm2py flow create")),
    ):
        with running(flow.file, ready=False) as mirror:
            night = Night(browser, mirror)
            await night.at()
            await night.sees(row, *texts)
            await night.at(flow.name, "tasks")
            await night.sees(f"{row} tasks", texts[0])
            await night.quiet()


async def test_groups_that_are_not_synced_and_a_failover_with_records_left(
    browser: Browser, setup: Setup
) -> None:
    topic, busy, ahead = setup.topic("night"), setup.unique("busy"), setup.unique("ahead")
    flow = setup.flow(topic, SOON)
    write(setup.a, topic, numbered(0, 100))
    for group in (busy, ahead):
        commit(setup.a, group, topic, {0: 50})
    with running(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        ask, night = Asked(mirror), Night(browser, mirror)
        with member(setup.b, busy, flow.remote(topic)):
            commit(setup.a, busy, topic, {0: 60})
            night.broken()
            await night.at(flow.name, "groups", busy)
            await night.sees("group active", "members on the target", green=True)
            await browser.until(row_is(busy, green=False))
        ask.pause(flow, topic=topic)
        write(setup.a, topic, numbered(0, 58))
        commit(setup.a, ahead, topic, {0: 140})
        night.broken()
        await night.at(flow.name, "groups", ahead)
        await night.sees("group not translated", "ahead of the copy, which ends at 100")
        night.broken()
        await night.at(flow.name, "failover")
        await night.sees("failover behind", "Not ready", "58 offsets")
        await night.quiet()
