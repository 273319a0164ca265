"""Changes from the page: planned, shown as a difference, confirmed; refusals are explained, and readers have no button."""

import json
from dataclasses import replace
from typing import Final
from urllib.parse import quote

import pytest

from mm2py.runtime.herder.api import ConnectorState, WorkState
from mm2py.types import State
from mm2py_jobs.copy.backfill_jobs import CommandEnd
from tests.integration import page_stage
from tests.integration.failovers import PARTITIONS, Shop, Stage, secured_pair, settled, values_of
from tests.integration.flow_questions import Asked, path_of, push, wait_for_records
from tests.integration.mirror_process import Mirror, running, until, until_equal
from tests.integration.page_stage import (
    GOOD,
    HOSTILE,
    LOOKS,
    MARKS,
    OPEN,
    SHOTS,
    assert_quiet,
    confirm,
    done,
    enter,
    gated,
    in_all_looks,
    press,
    served,
)
from tests.integration.rest_asking import public_url
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, commit, committed, copied, ends, write
from tests.kit.browser import Browser
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import NewRegion
from tests.unit.rest.flow_fakes import AB, NAME, Rig
from tests.unit.rest.job_fakes import with_backfill
from tests.unit.rest.rest_fakes import FakeHerder

pytestmark = MARKS

rig = page_stage.rig

ACTIONS: Final = "document.querySelectorAll('button.action:not(.asks)').length"


@pytest.fixture
def job_rig(rig: Rig) -> Rig:
    with_backfill(rig.herders[AB])
    return rig


async def test_readers_see_no_button_who_may_change_is_named(browser: Browser, rig: Rig) -> None:
    async with served(gated(rig.parts)) as url:
        for user, may, said in (("bob", False, "as bob (may only read)"), ("ann", True, "as ann")):
            await browser.open("about:blank")
            await browser.open(f"{url.replace('//', f'//{user}:pw@')}ui/")
            await browser.until_text(said)
            for place in (
                "",
                "flows/A-%3EB/topics/t",
                "flows/A-%3EB/config",
                "flows/A-%3EB/history",
            ):
                await browser.open(f"{url.replace('//', f'//{user}:pw@')}ui/#/{place}")
                await browser.until_text(said)
                await browser.until("document.querySelector('main table, main .empty')")
                if may:
                    await browser.until(f"{ACTIONS} > 0")
                assert may or not await browser.evaluate(ACTIONS), place


async def test_a_plan_is_shown_first_and_texts_stay_texts(browser: Browser, rig: Rig) -> None:
    async with served(gated(rig.parts)) as url:
        own = url.replace("//", "//ann:pw@")
        rig.listed = ["t", "u", "__own"]
        await browser.open(f"{own}ui/#/flows/A-%3EB/topics")
        await press(browser, "Choose topics")
        await enter(browser, "topics", HOSTILE.replace(",", ""))
        await press(browser, "Show what it would change", "dialog[open]")
        await browser.until(f"{OPEN}?.innerText.includes('1 thing would change')")
        assert HOSTILE in await browser.evaluate(f"{OPEN}.innerText")
        stops = "2 topics will not be copied any more, copies stay: t, u"
        assert stops in await browser.evaluate(f"{OPEN}.innerText")
        await press(browser, "Cancel", "dialog[open]")
        await browser.open(f"{own}ui/#/flows/A-%3EB/history")
        await browser.until_text("Nothing was changed: the worker's file is in force.")
        await press(browser, "Pause")
        await confirm(browser, "Pause", "MirrorSourceConnector")
        await done(browser)
        await browser.until(
            "/pause A->B by ann/.test(document.body.innerText.replace(/\\s+/g, ' '))"
        )
        await browser.open(f"{own}ui/#/")
        await press(browser, "Add a flow")
        offered = (
            f"[...{OPEN}?.querySelectorAll('#choices-target option') ?? []].map(it => it.value)"
        )
        await browser.until(f"{offered}.join() === 'A,B'")
        assert "clusters in that file" in await browser.evaluate(f"{OPEN}.innerText")
        await in_all_looks(browser, "add-flow")
        for name, value in (("source", "A"), ("target", "nowhere")):
            await enter(browser, name, value)
        await press(browser, "Show what it would change", "dialog[open]")
        await browser.until(f"{OPEN}?.querySelector('[role=alert]')")
        assert "nowhere" in await browser.evaluate(f"{OPEN}.innerText")
        assert not await browser.evaluate(f"{OPEN}.querySelector('img, script')")


async def test_a_backfill_shows_progress_and_is_cancelled(browser: Browser, job_rig: Rig) -> None:
    async with served(gated(job_rig.parts)) as url:
        await browser.open(f"{url.replace('//', '//ann:pw@')}ui/#/flows/A-%3EB/jobs")
        await browser.until_text("its driver is gone and nothing copies what is left")
        await browser.until_text("70 %: 140 of 200 offsets")
        await browser.until_text("80 records in 8.0 KB")
        await browser.until_text("Partitions: 1 copying, 1 handed over.")
        bar = "document.querySelector('progress').value"
        assert await browser.evaluate(bar) == 70
        await press(browser, "Cancel")
        await confirm(browser, "Cancel", "What is copied stays")
        await done(browser)
        await browser.open(f"{url}ui/#/flows/B-%3EA/jobs")
        await browser.until_text("No job of this flow was run.")


async def test_a_backfill_is_planned_and_started_from_the_page(browser: Browser, rig: Rig) -> None:
    part = {
        "topic": "t",
        "partition": 0,
        "target_topic": "A.t",
        "from": 3,
        "to": 7,
        "offsets": 4,
        "bytes": 900,
    }
    plan = {"partitions": [part], "lanes": [{"lane": 0}], "refused": [], "notes": ["a note"], "bytes": 900, "estimated_seconds": 2.5}  # fmt: skip
    rig.commands.planned = CommandEnd(0, json.dumps(plan), ())
    async with served(gated(rig.parts)) as url:
        await browser.open(f"{url.replace('//', '//ann:pw@')}ui/#/flows/A-%3EB/jobs")
        await browser.until_text("mm2py job verify run FILE --flow 'A->B'")
        await press(browser, "Copy history")
        await enter(browser, "rate_limit", "much")
        await press(browser, "Show what it would change", "dialog[open]")
        await browser.until(f"{OPEN}?.innerText.includes('rate_limit: must be a whole number')")
        await enter(browser, "rate_limit", "5000")
        await enter(browser, "from", "offset:3")
        await press(browser, "Show what it would change", "dialog[open]")
        planned = "1 partition in 1 lane: 4 offsets, 900 B, about 2.5 s."
        await browser.until(f"{OPEN}?.innerText.includes({planned!r})")
        assert rig.commands.runs == []
        await in_all_looks(browser, "backfill")
        await confirm(browser, "Start", "t-0: 3 to 6")
        await browser.until(f"{OPEN}?.innerText.includes('Begun')")
        (order,) = rig.commands.runs
        assert (order.start, order.rate_limit, order.by) == ("offset:3", 5_000, "ann")
        rig.commands.end(0)


async def test_a_stopped_flow_leads_to_its_failback_and_says_what_copying_again_does(
    browser: Browser, rig: Rig
) -> None:
    stopped = WorkState(State.STOPPED, "worker:8083", None, None)
    herder = rig.herders[AB]
    herder.states[NAME] = ConnectorState(NAME, stopped, {}, "source")
    herder.info_now = lambda name: replace(FakeHerder.info_now(herder, name), tasks=())  # type: ignore[method-assign, type-var] # a connector without tasks
    async with served(gated(rig.parts)) as url:
        await browser.open(f"{url.replace('//', '//ann:pw@')}ui/#/flows/A-%3EB")
        await browser.until_text("Copy A to B again")
        first = "document.querySelector('.buttons > :first-child')"
        assert await browser.evaluate(f"{first}.getAttribute('href')") == "#/flows/A-%3EB/failover"
        assert "Resume" not in await browser.text()
        await in_all_looks(browser, "stopped")
        await press(browser, "Copy A to B again")
        await browser.until(f"{OPEN}?.innerText.includes('start a failback instead')")


@pytest.mark.integration
async def test_a_flow_is_paused_changed_and_rolled_back_from_the_page_alone(
    browser: Browser, setup: Setup
) -> None:
    first, second = setup.topic("page-first"), setup.topic("page-second")
    flow = setup.flow(first)
    with running(flow.file) as mirror:
        ask, url = Asked(mirror), public_url(mirror)
        place = f"{url}ui/#/flows/{quote(flow.name, safe='')}"
        await browser.look(width=1280, height=900, dark=False)
        await browser.open(f"{place}/topics")
        await press(browser, "Pause")
        await confirm(browser, "Pause", "RUNNING")
        await done(browser)
        await browser.until_text("PAUSED: it copies nothing until it is resumed")
        await press(browser, "Resume")
        await confirm(browser, "Resume", "PAUSED")
        await done(browser)
        await browser.until_text("Pause")

        await press(browser, "Choose topics")
        await enter(browser, "topics", f"{first},{second}")
        await press(browser, "Show what it would change", "dialog[open]")
        await browser.until(f"{OPEN}?.innerText.includes({second!r})")
        for width, height, dark in LOOKS:
            await browser.look(width=width, height=height, dark=dark)
            shade = "dark" if dark else "light"
            await browser.screenshot(SHOTS / f"change-{width}-{shade}.png", whole=False)
        await browser.look(width=1280, height=900, dark=False)
        # Somebody else is first.
        ask.done("PATCH", path_of(flow), {"config": {"offset.lag.max": "50"}})
        await press(browser, "Change", "dialog[open]")
        await browser.until(f"{OPEN}?.innerText.includes('The flow was changed after')")
        await press(browser, "Show what it would change", "dialog[open]")
        await confirm(browser, "Change", second)
        await done(browser)
        push(flow, second, 5)
        await browser.until_text(second)
        await browser.open(f"{place}/history")
        await browser.until_text("Go back to the worker's file")
        await browser.screenshot(SHOTS / "history.png")
        await press(browser, "Go back to the worker's file")
        await confirm(browser, "Go back", second)
        await done(browser)
        assert ask.properties(flow)["topics"] == first
        actions = [it["action"] for it in ask.done("GET", f"{path_of(flow)}/history")]
        assert actions == ["rollback", "change", "change", "resume", "pause"]
        assert copied(flow, first) == 0
        assert [it for it in browser.errors if "412" not in it] == []
        browser.errors.clear()
        assert_quiet(browser, url)


async def start(browser: Browser, kind: str, button: str = "") -> None:
    """Start a failover or failback, or continue one, from its part of the page."""
    await press(browser, button or f"Start {kind}")
    said = (f"Continue the {kind}", "It goes on at") if button else (f"Start {kind}", "Writers of")
    await confirm(browser, *said)
    await browser.until(f"{OPEN}?.innerText.includes('Begun')")
    await press(browser, "Close", "dialog[open]")


async def ended(browser: Browser, kind: str) -> None:
    await browser.until(f"/{kind.capitalize()} .*DONE/s.test(document.body.innerText)")


def written(region: KafkaAddress, topic: str, first: int, count: int = 5) -> None:
    """Write numbers to a topic of one partition; each is acknowledged."""
    write(region, topic, [Sent(0, b"%d" % number) for number in range(first, first + count)])


def holds(mirror: Mirror, region: KafkaAddress, topic: str, *ranges: range) -> None:
    """Wait until a topic has these numbers and no others, in this order."""
    wanted = [[number for each in ranges for number in each]]
    until(lambda: ends(region, topic).get(0, 0) >= len(wanted[0]), 90, topic, alive=mirror)
    until_equal(lambda: values_of(region, topic), wanted, alive=mirror)


@pytest.mark.faults
@pytest.mark.integration
async def test_clients_move_to_the_other_region_and_back_from_the_page_alone(
    browser: Browser, setup: Setup
) -> None:
    topic = setup.topic_on_both("page-moves")
    group = f"group-of-{topic}"
    back = {"{target}->{source}.topics": topic}
    flow = setup.flow(topic, {"{source}->{target}.sync.group.offsets.enabled": "true"} | back)
    written(setup.a, topic, 0, 20)
    commit(setup.a, group, topic, {0: 7})
    with running(flow.file) as mirror:
        wait_for_records(mirror, flow, topic, 20)
        url = public_url(mirror)
        await browser.look(width=1280, height=900, dark=False)
        await browser.open(f"{url}ui/#/flows/{quote(flow.name, safe='')}/failover")
        await browser.until_text("Ready: a failover now would lose nothing")
        await start(browser, "failover")
        await browser.until_text("Start failback")
        assert committed(setup.b, group, flow.remote(topic)) == {0: 7}
        await browser.screenshot(SHOTS / "failover-done.png")
        written(setup.b, topic, 20)
        await start(browser, "failback")
        await ended(browser, "failback")
        written(setup.a, topic, 25)
        holds(mirror, setup.b, flow.remote(topic), range(20), range(25, 30))
        holds(mirror, setup.b, topic, range(20, 25))
        holds(mirror, setup.a, f"{flow.target_alias}.{topic}", range(20, 25))
        holds(mirror, setup.a, topic, range(20), range(25, 30))
        assert_quiet(browser, url)


@pytest.mark.faults
@pytest.mark.integration
async def test_what_clients_write_while_the_page_moves_them_is_on_both_sides_once_and_in_order(
    browser: Browser, setup: Setup
) -> None:
    with secured_pair("page") as (a, b):
        topic = setup.unique("page-orders")
        stage = Stage(a, b, setup.unique, setup.create_topic, setup.folder)
        with stage.home(topic) as drivers:
            await browser.open(
                f"{drivers.worker}/ui/#/flows/{quote(drivers.name, safe='')}/failover"
            )
            with Shop(drivers.flow, topic, PARTITIONS) as shop:
                shop.wait_acked(20)
                for kind, side in (("failover", "target"), ("failback", "source")):
                    await start(browser, kind)
                    await ended(browser, kind)
                    shop.wait_acked(20)
                    assert shop.side == side
            settled(a, b, topic, shop.acked, drivers.mirror)


@pytest.mark.faults
@pytest.mark.integration
async def test_a_region_is_lost_clients_move_and_return_when_it_is_back_from_the_page_alone(
    browser: Browser, setup: Setup, new_region: NewRegion
) -> None:
    lost = new_region("lost")
    topic = setup.topic("page-lost", on=lost)
    setup.create_topic(setup.b, topic)
    group = f"group-of-{topic}"
    both_ways = {"{target}->{source}.enabled": "true", "{target}->{source}.topics": topic}
    synced = {"{source}->{target}.sync.group.offsets.enabled": "true"}
    flow = setup.flow(topic, both_ways | synced, source=lost)
    written(lost, topic, 0, 20)
    commit(lost, group, topic, {0: 7})
    with running(flow.file) as mirror:
        wait_for_records(mirror, flow, topic, 20)
        url = public_url(mirror)
        place = f"{url}ui/#/flows/{quote(flow.name, safe='')}"
        await browser.look(width=1280, height=900, dark=False)
        await browser.open(f"{place}/failover")
        await browser.until_text("Ready: a failover now would lose nothing")
        lost.kill()
        await browser.until_text("the source does not answer")
        await browser.screenshot(SHOTS / "lost.png")
        assert not await browser.evaluate(GOOD)
        await browser.until_text("none of its topics is copied")
        await browser.until_text("Groups that skip\nnot known")
        accept = f"Start failover without {flow.source_alias}"
        await press(browser, accept)
        await press(browser, "Show what it would change", "dialog[open]")
        await confirm(browser, accept, "It would be accepted.")
        await browser.until(f"{OPEN}?.innerText.includes('Begun')")
        await press(browser, "Close", "dialog[open]")
        await browser.until("/Failover .*TAIL/s.test(document.body.innerText)")
        await browser.until(f"{step('SWITCH')}.includes('done')")
        # No writer was kept from a region that is gone.
        assert "left out" in await browser.evaluate(step("FENCE"))
        await browser.screenshot(SHOTS / "lost-switched.png")
        assert committed(setup.b, group, flow.remote(topic)) == {0: 7}
        written(setup.b, topic, 20)
        # A driver that still waits for the region would end the failover itself, and nothing was left to continue.
        await browser.until_text("This worker does not drive it")
        lost.start()
        await start(browser, "failover", "Continue it")
        await browser.until(f"/\\d s$/.test({step('REVERSE')})")
        await start(browser, "failback")
        await ended(browser, "failback")
        written(lost, topic, 25)
        holds(mirror, setup.b, flow.remote(topic), range(20), range(25, 30))
        holds(mirror, lost, f"{flow.target_alias}.{topic}", range(20, 25))
        assert [it for it in browser.errors if " 503 " not in it and " 504 " not in it] == []


def step(name: str) -> str:
    """An expression: the line of one step of a failover, empty while it is not there."""
    lines = "[...document.querySelectorAll('.steps li')].map(it => it.innerText)"
    return f"({lines}.find(it => it.includes('{name}')) || '')"
