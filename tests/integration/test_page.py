"""The page at ``/ui`` in a headless Chromium: what a reader sees of healthy and broken flows, and what it never does.

Flow: flows over fakes (or a worker on real brokers) behind a real listener -> ``Browser`` -> texts, requests, errors.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import quote, urlsplit

import pytest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from mm2py.config.rest_settings import RestSettings
from mm2py.mirror.failovers import Failover, FailoverKind, Step, Tail
from mm2py.observability.metrics import Finding, FlowSample, Forecast, PartitionSnapshot
from mm2py.rest.app import public_app
from mm2py.rest.credentials import RestCredentials
from mm2py.rest.security import gate_for
from mm2py.runtime.herder.api import ConnectorState
from mm2py.storage.flow_overrides_store import held_edit
from mm2py.testing.clock import FakeClock
from mm2py.types import State, TopicPartition
from tests.integration import page_stage
from tests.integration.mirror_process import running
from tests.integration.page_stage import (
    DENIED,
    GOOD,
    HOSTILE,
    LEDGER,
    LOOKS,
    MARKS,
    OPEN,
    PLANNED,
    SHOTS,
    Jobs,
    ask_now,
    assert_quiet,
    confirm,
    enter,
    group,
    heal,
    in_all_looks,
    named,
    press,
    served,
)
from tests.integration.rest_asking import public_url
from tests.integration.setups import Setup
from tests.integration.traffic import Load, commit
from tests.kit.browser import Browser
from tests.unit.rest.flow_fakes import AB, BA, NAME, Rig, partition
from tests.unit.rest.job_fakes import PLAN
from tests.unit.rest.rest_fakes import flow, state

pytestmark = MARKS

rig = page_stage.rig

PAUSED = held_edit(TopicPartition("t", -1), paused=True)


@pytest.fixture
def evil_rig(rig: Rig) -> Rig:
    evil = flow(f"A{HOSTILE}", "B")
    rig.add(evil).show(
        partitions=(partition("t", 0, 7, state="FAILED", cause=f"refused {HOSTILE}"),)
    )
    changed = rig.ask("PATCH", "/flows/A->B", body={"config": {"topics": "<b>x</b>"}})
    assert changed.status == 200
    return rig


async def test_a_half_loaded_page_says_so_and_is_loaded_again(browser: Browser, rig: Rig) -> None:
    """Else it reads its flows for ever, as if it had none."""
    app, is_ending = public_app(rig.parts), True

    async def ending(scope: Scope, receive: Receive, send: Send) -> None:
        if is_ending and str(scope.get("path", "")).endswith("/words.js"):
            await JSONResponse({}, status_code=503)(scope, receive, send)
        else:
            await app(scope, receive, send)

    async with served(ending) as url:
        await browser.open(f"{url}ui/")
        await browser.until_text("This page is not loaded")
        is_ending = False
        await browser.until_text("Nothing is wrong: 2 of 2 flows copy.")


async def test_a_browser_at_the_root_sees_flows_state_lag_rate(browser: Browser, rig: Rig) -> None:
    async with served(public_app(rig.parts)) as url:
        await browser.open(url)
        await browser.until_text("Nothing is wrong: 2 of 2 flows copy.")
        assert await browser.evaluate("location.pathname") == "/ui/"
        arrows = "[...document.querySelectorAll('a.arrow')].map(a => a.getAttribute('aria-label'))"
        assert await browser.evaluate(arrows) == [
            "A->B: RUNNING 0.1 s behind 4.0 records/s: copies what comes",
            "B->A: RUNNING 0.1 s behind 4.0 records/s: copies what comes",
        ]
        await browser.until_text("as of ")
        await browser.until_text("GMT")
        assert_quiet(browser, url)


async def test_a_drawing_between_a_new_address_and_its_event_shows_the_old_place(
    browser: Browser, rig: Rig
) -> None:
    async with served(public_app(rig.parts)) as url:
        await browser.open(url)
        await browser.until_text("2 of 2 flows copy.")
        await browser.evaluate(
            "history.replaceState(null, '', '#/flows/A-%3EB/tasks');"
            "document.dispatchEvent(new Event('visibilitychange'));"
            "new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
        )
        assert "2 of 2 flows copy." in await browser.text()
        await browser.evaluate("dispatchEvent(new HashChangeEvent('hashchange'))")
        await browser.until("document.title === 'A->B - mm2py'")
        assert_quiet(browser, url)


def _disabled(rig: Rig) -> None:
    rig.herders[AB].configs[NAME]["enabled"] = "false"


def _shows(*partitions: PartitionSnapshot) -> Callable[[Rig], None]:
    return lambda rig: rig.herders[AB].show(partitions=partitions)


def _task_failed(rig: Rig) -> None:
    # As of the heartbeats: the records of topics flow on.
    work = state(NAME).connector
    failed = replace(work, state=State.FAILED, trace="no right")
    rig.herders[AB].states[NAME] = ConnectorState(NAME, work, {0: failed}, "source")


async def test_nothing_is_green_while_nothing_is_copied_and_the_cause_and_remedy_are_there(
    browser: Browser, rig: Rig
) -> None:
    del rig.herders[BA]
    still, denied = partition("t", 0, 9_000, records_per_s=0.0), partition("t", 0, 9, cause=DENIED)
    scenes: list[tuple[Callable[[Rig], None], str, str, str]] = [
        (lambda rig: rig.herders[AB].show(state="SUSPENDED"), "the target B does not answer: it copies nothing", "mm2py flow describe A/B", "not ready"),
        (_disabled, "not enabled: it sends heartbeats", "mm2py flow create A/B", ""),
        (_shows(partition("heartbeats", 0, 0)), "no source topic is chosen", "mm2py flow set A/B topics='...'", "not ready"),
        (_shows(partition("t", 0, -1)), "its lag is not known", "mm2py flow describe A/B -o wide", "not known"),
        (_shows(still, partition("u", 0, 0, records_per_s=0.0)), "9,000 records behind, and nothing is copied now", "mm2py flow describe A/B", "not ready"),
        # An open transaction below all that the log has, from before the flow's first start.
        (_shows(replace(still, newest_ms=-1, lag_ms=0)), "9,000 records behind, and nothing is copied now", "mm2py flow describe A/B", "not ready"),
        (_shows(replace(denied, state="FAILED")), DENIED, "mm2py flow restart A/B --only-failed", "not ready"),
        (_shows(replace(denied, state="HELD")), DENIED, "mm2py flow describe A/B -o wide", "not ready"),
        (_task_failed, "part of it failed, topics are copied", "mm2py flow restart A/B --only-failed", "not ready"),
    ]  # fmt: skip
    async with served(public_app(rig.parts)) as url:
        await browser.open(f"{url}ui/")
        for break_it, cause, remedy, ready in scenes:
            heal(rig, AB)
            await ask_now(browser)
            await browser.until(GOOD)
            await browser.until_text("1 of 1 ready. By their own numbers")
            break_it(rig)
            await ask_now(browser)
            await browser.until(f"!{GOOD}")
            for seen in (cause, remedy, f"0 of 1 ready; A->B {ready}: " if ready else ""):
                await browser.until_text(seen)
            assert ready or "0 of 1 ready" not in await browser.text()
            assert await browser.evaluate(
                "document.querySelector('td a[href=\"#/flows/A-%3EB/failover\"]').innerText"
            ) in (f"✖\ufe0e {ready}", f"? {ready}", "‖ none")
            for part, title in (("tasks", "Connectors and tasks"), ("topics", "Topics")):
                await browser.open(f"{url}ui/#/flows/A-%3EB/{part}")
                await browser.until(f"document.querySelector('section[aria-label=\"{title}\"] td')")
                assert not await browser.evaluate(GOOD), part
                await browser.until_text(cause)
            await browser.open(f"{url}ui/#/")
            await browser.until_text("What is wrong")
        assert_quiet(browser, url)


async def test_what_retention_overtakes_and_what_stands_still_is_on_the_page_of_the_flow(
    browser: Browser, rig: Rig
) -> None:
    said = Forecast(
        by="retention.bytes",
        limit=1_000_000,
        at_ms=FakeClock().now_ms() + 600_000,
        records=1_234,
        size_bytes=56_000,
    )
    text = "at this rate retention.bytes=1000000 of the source overtakes t-0 in 10.0 min"
    soon = Finding(task=f"{NAME}-0", what="retention", text=text, count=1, harms=True)
    still = Finding(task=f"{NAME}-0", what="stalled", text="nothing of u-0", count=1, harms=True)
    rig.herders[AB].show(
        partitions=(replace(partition("t", 0, 7), forecast=said), partition("u", 0, 0)),
        findings=(soon, still),
    )
    async with served(public_app(rig.parts)) as url:
        await browser.open(f"{url}ui/#/flows/A-%3EB")
        await browser.until_text("Retention overtakes")
        row = "document.querySelector('section[aria-labelledby=forecast] tbody').innerText"
        cells = str(await browser.evaluate(row)).split()
        assert {"t", "0", "10", "min", "1,234", "56", "KB", "1.0", "MB"} <= set(cells)
        shown = await browser.text()
        assert text in shown
        assert "nothing of u-0" in shown
        assert not await browser.evaluate("document.querySelector('.verdict .good')")
        await browser.open(f"{url}ui/#/flows/B-%3EA")
        await browser.until_text("Flow B->A")
        await browser.until(GOOD)
        assert "Retention overtakes" not in await browser.text()
        assert_quiet(browser, url)


async def test_a_flow_with_all_topics_paused_is_not_green(browser: Browser, rig: Rig) -> None:
    del rig.herders[BA]
    async with served(public_app(rig.parts)) as url:
        await browser.open(f"{url}ui/")
        await browser.until(GOOD)
        await rig.stores[AB].edit("pause", "t", PAUSED, actor="ann")
        copying = partition("u", 0, 0)
        rig.herders[AB].show(partitions=(partition("t", 0, 0, state="PAUSED"), copying))
        await ask_now(browser)
        await browser.until_text("copies, without what is paused: t")
        await browser.until_text("Nothing is wrong, but topics are paused: A->B.")
        beats = partition("heartbeats", 0, 0)
        rig.herders[AB].show(partitions=(partition("t", 0, 0, state="PAUSED"), beats))
        await ask_now(browser)
        await browser.until_text("all its topics are paused: it copies nothing")
        for place, seen in (("", "Nothing is copied"), ("flows/A-%3EB/topics", "2 of 2 topics")):
            await browser.open(f"{url}ui/#/{place}")
            await browser.until_text(seen)
            await browser.until_text("mm2py flow resume A/B --all-topics")
            assert not await browser.evaluate(GOOD), place


async def test_the_overview_names_a_flow_that_copies_nothing_and_a_cluster_that_is_away_once(
    browser: Browser, rig: Rig
) -> None:
    away = "no broker of cluster A (a:1) can be reached"
    async with served(public_app(rig.parts)) as url:
        await browser.open(f"{url}ui/")
        rig.herders[AB].show(partitions=(partition("t", 0, 9, state="PAUSED"),))
        await rig.stores[AB].edit("pause", "t", PAUSED, actor="ann")
        await browser.until_text("1 of 2 flows copies nothing: A->B.")
        assert not await browser.evaluate("document.querySelector('.verdict .good')")
        held = tuple(
            partition("t", n, -1, state="HELD", cause=f"{away}: cause {n}") for n in range(5)
        )
        rig.herders[AB].show(partitions=held)
        await browser.until_text("3 more causes: the flow's page has them")
        text = await browser.text()
        assert (text.count(away), "paused: t" in text, "since" in text) == (2, True, True)
        await in_all_looks(browser, "first")
        await browser.open(f"{url}ui/#/flows/A-%3EB")
        await browser.until_text(f"{away}: cause 4")
        assert_quiet(browser, url)


async def test_the_last_numbers_stay_grey_with_their_age_while_the_worker_does_not_answer(
    browser: Browser, rig: Rig
) -> None:
    app = public_app(rig.parts)
    async with served(app) as url:
        await browser.open(f"{url}ui/")
        await browser.until(GOOD)
    await browser.until_text("This worker does not answer.")
    await browser.until_text("Last known: Nothing is wrong")
    await browser.until_text("records/s")
    assert not await browser.evaluate(GOOD)
    shown = "getComputedStyle(document.querySelector('main')).filter"
    assert await browser.evaluate(shown) == "grayscale(1)"
    await browser.until("/numbers below are ([3-9]|\\d\\d) s old/.test(document.body.innerText)")
    async with served(app, urlsplit(url).port or 0):
        await browser.until(GOOD)
        assert "does not answer" not in await browser.text()


async def test_a_hidden_tab_asks_nothing_and_at_once_when_seen(browser: Browser, rig: Rig) -> None:
    def hide(hidden: str) -> str:
        return (
            f"Object.defineProperty(document, 'hidden', {{value: {hidden}, configurable: true}});"
            " document.dispatchEvent(new Event('visibilitychange'))"
        )

    async with served(public_app(rig.parts)) as url:
        await browser.open(f"{url}ui/")
        await browser.until(GOOD)
        before = len(browser.requests)
        await browser.until_requests(before + 1)
        await browser.evaluate(hide("true"))
        hidden_at = len(browser.requests)
        await browser.pass_time(60_000)
        # One that was under way may have been counted late, none was begun.
        assert len(browser.requests) <= hidden_at + 1
        await browser.evaluate(hide("false"))
        await browser.until_requests(hidden_at + 2)


async def test_whether_a_failover_is_ready_what_it_would_lose_and_how_far_one_is(
    browser: Browser, rig: Rig
) -> None:
    jobs = Jobs(rig)
    async with served(jobs) as url:
        own = url.replace("//", "//ann:pw@")
        await browser.look(width=1280, height=900, dark=False)
        await browser.open(f"{own}ui/#/flows/A-%3EB/failover")
        await browser.until_text("Ready: a failover now would lose nothing")
        await browser.evaluate("document.querySelector('#drill ~ p button').click()")
        await browser.until_text("Ready; clients would wait about 2.3 s")
        for planned, seen in (
            (
                replace(PLAN, source_reachable=False),
                "Without A, everything is lost that was not copied",
            ),
            (
                replace(PLAN, copied_first=64),
                "Nothing would stay behind. 64 more offsets are on the way (ordinary lag)",
            ),
            (PLANNED, "Not ready: 3 reasons"),
        ):
            jobs.failovers.planned = planned
            await browser.open("about:blank")
            await browser.open(f"{own}ui/#/flows/A-%3EB/failover")
            await browser.until_text(seen)
        for seen in (
            "58 offsets would not be copied", "58 offsets would stay behind, in a partition or flow that failed",
            "12 more offsets are on the way (ordinary lag): a failover copies them to B before clients move", "orders: topic A.orders is missing on B", "Not fenced: the source has no authorizer",
            "1 of 2 groups", HOSTILE, "abort hanging transactions", "9.1 s", "copies no old.*",
        ):  # fmt: skip
            await browser.until_text(seen)
        good = "document.querySelector('section[aria-labelledby=ready] .good')"
        assert not await browser.evaluate(good)
        await in_all_looks(browser, "failover")
        # Not without the number, and not with a smaller one.
        await press(browser, "Accept the loss and start failover")
        await enter(browser, "accept_loss", "57")
        await press(browser, "Show what it would change", "dialog[open]")
        await browser.until(f"{OPEN}?.innerText.includes('58 offsets would not be copied')")
        accept = (
            f"[...{OPEN}.querySelectorAll('button')].find(it => it.innerText.startsWith('Accept'))"
        )
        assert await browser.evaluate(f"{accept}.disabled")
        assert "--accept-loss 58 accepts that" in await browser.evaluate(f"{OPEN}.innerText")
        await press(browser, "Back", "dialog[open]")
        await enter(browser, "accept_loss", "58")
        await press(browser, "Show what it would change", "dialog[open]")
        await confirm(browser, "Accept the loss and start failover", "It would be accepted.")
        await browser.until(f"{OPEN}?.innerText.includes('Begun')")
        await press(browser, "Close", "dialog[open]")
        (request,) = jobs.failovers.requests
        assert (request.accept_loss, request.unplanned) == (58, False)
        await browser.until("/Failover\\b.*FENCE/s.test(document.body.innerText)")
        assert "Continue it" not in await browser.text()  # this worker drives it
        now = "[...document.querySelectorAll('.steps li')].map(it => it.innerText).find(it => it.includes('now'))"
        assert "FENCE" in await browser.evaluate(now)
        await in_all_looks(browser, "failover-runs")
        jobs.failovers.ended.set()
        await browser.until_text("DONE")
        fence = "[...document.querySelectorAll('.steps li')].map(it => it.innerText).find(it => it.includes('FENCE'))"
        await browser.until(f"/from .*GMT.*, 2.5 s/.test({fence})")
        await jobs.service.close()
        assert_quiet(browser, url)


async def test_the_ledger_tells_what_was_lost_where_and_why(browser: Browser, rig: Rig) -> None:
    jobs = Jobs(rig)
    async with served(jobs) as url:
        own = url.replace("//", "//ann:pw@")
        await browser.open(f"{own}ui/#/flows/A-%3EB/ledger")
        await browser.until_text("Nothing was lost, stopped or doubled.")
        jobs.ledger = LEDGER
        jobs.failovers.record = Failover(
            id="f-1", flow="A->B", kind=FailoverKind.FAILOVER, step=Step.DONE, run=1, missing=7,
            tail=(Tail(topic="orders", partition=1, start=40, end=47, records=6),),
        )  # fmt: skip
        await browser.open("about:blank")
        await browser.open(f"{own}ui/#/flows/A-%3EB/ledger")
        await browser.until_text("120 offsets lost; stopped at 1 record or batch, cured; 5 offsets")
        await browser.until_text("stopped, cured")
        broken = partition("orders", 2, 9, state="FAILED", cause="the record is too large")
        rig.herders[AB].show(partitions=(partition("t", 0, 0), broken))
        await browser.until_text("120 offsets lost; stopped at 1 record or batch; 5 offsets may be")
        assert "stopped, cured" not in await browser.text()
        await browser.until_text("mm2py-quarantine.A.orders.internal")
        for seen in (
            "A deleted it before it was copied", "100 to 219", "gap.policy=continue", HOSTILE, "larger than B accepts", "40 to 46",
        ):  # fmt: skip
            await browser.until_text(seen)
        assert not await browser.evaluate("document.querySelector('section .good')")
        await in_all_looks(browser, "ledger")
        assert_quiet(browser, url)


async def test_names_that_are_markup_are_texts_everywhere(browser: Browser, evil_rig: Rig) -> None:
    evil = flow(f"A{HOSTILE}", "B")
    app = public_app(evil_rig.parts)
    groups = [group(HOSTILE, not_synced=f"why {HOSTILE}"), group("skipper", skips=3)]

    async def with_groups(scope: Scope, receive: Receive, send: Send) -> None:
        if str(scope.get("path", "")).endswith("/groups"):
            await JSONResponse(groups)(scope, receive, send)
        else:
            await app(scope, receive, send)

    async with served(with_groups) as url:
        place = f"{url}ui/#/flows/{quote(str(evil), safe='')}"
        for target, seen in (
            (f"{url}ui/#/", f"refused {HOSTILE}"),
            (f"{place}/topics/t", f"refused {HOSTILE}"),
            (f"{place}/tasks", f"A{HOSTILE}->B"),
            (f"{url}ui/#/flows/A-%3EB/config", "<b>x</b>"),
            (f"{url}ui/#/flows/A-%3EB/history", "<b>x</b>"),
            (f"{place}/groups/{quote(HOSTILE, safe='')}", f"why {HOSTILE}"),
            (
                f"{place}/groups/skipper",
                "If it moved to B now, it would read 10 records again and skip 3 records.",
            ),
            (f"{place}/{quote(HOSTILE, safe='')}", f"A flow has no part {HOSTILE}"),
            (f"{url}ui/#/flows/{quote(HOSTILE, safe='')}", f"no flow {HOSTILE}"),
        ):
            await browser.open("about:blank")
            await browser.open(target)
            await browser.until_text(seen)
            made = "document.querySelectorAll('#page img, #page b, #page script, #page [onerror]').length"
            assert await browser.evaluate(made) == 0
        await browser.open(f"{place}/groups")
        await browser.until_text("would skip")
        assert [it for it in browser.errors if "404" not in it] == []


async def test_the_last_hour_says_whether_it_gets_better(browser: Browser, rig: Rig) -> None:
    async with served(public_app(rig.parts)) as url:
        for lags, said in (
            ([None, 90_000, 40_000, 3_000], "Getting better: 3.0 s behind, 30 s ago 90 s."),
            ([0, 5_000], "Getting worse: 5.0 s behind, 15 s ago 0.0 s."),
            ([500, 0, 900], "As far behind as 30 s ago: 0.9 s."),
            ([0], "watched the flow for less than a minute"),
        ):
            rig.sampled[AB] = [
                FlowSample(
                    at_ms=number * 15_000, lag_records=lag, lag_ms=lag, records=number, size_bytes=0
                )
                for number, lag in enumerate(lags)
            ]
            await browser.open("about:blank")
            await browser.open(f"{url}ui/#/flows/A-%3EB/tasks")
            await browser.until_text(said)
            await browser.screenshot(SHOTS / f"course-{len(lags)}.png")
            lines = "document.querySelectorAll('.trend svg').length"
            assert await browser.evaluate(lines) == (0 if len(lags) == 1 else 4)
        assert_quiet(browser, url)


async def test_docs_describes_every_path_of_the_document(browser: Browser, rig: Rig) -> None:
    async with served(public_app(rig.parts)) as url:
        await browser.open(f"{url}docs")
        await browser.until_text("openapi.json")
        described = (
            "[...document.querySelectorAll('.operation summary code')].map(it => it.innerText)"
        )
        paths = (
            "fetch('/openapi.json').then(it => it.json()).then(it => Object.entries(it.paths)"
            ".flatMap(([path, each]) => Object.keys(each).map(it => it.toUpperCase() + ' ' + path)))"
        )
        assert sorted(await browser.evaluate(described)) == sorted(await browser.evaluate(paths))
        await browser.evaluate(
            "document.querySelectorAll('details').forEach(it => { it.open = true })"
        )
        await browser.until_text("only say what would change")
        await browser.look(width=1280, height=900, dark=False)
        await browser.screenshot(SHOTS / "api.png", whole=False)
        assert_quiet(browser, url)


async def test_thousands_of_topics_are_searched_and_only_visible_ones_are_drawn(
    browser: Browser, rig: Rig
) -> None:
    parts = [partition(f"orders.{number:04d}", 0, 0) for number in range(5_000)]
    parts[4_321] = replace(parts[4_321], state="HELD", cause=DENIED)
    rig.herders[AB].show(partitions=tuple(parts))
    async with served(public_app(rig.parts)) as url:
        await browser.open(f"{url}ui/#/flows/A-%3EB/topics")
        await browser.until_text("5,000 of 5,000 topics")
        rows = "document.querySelectorAll('.rows tbody tr:not(.fill)').length"
        assert 5 < await browser.evaluate(rows) < 60
        first = "document.querySelector('.rows tbody tr:not(.fill) a').textContent"
        assert await browser.evaluate(first) == "orders.4321"
        await browser.evaluate("document.querySelector('.window').scrollTop = 100000")
        await browser.until(f"{first} > 'orders.2000' && {rows} < 60")
        await browser.evaluate(
            "(i => {i.value = '0042'; i.dispatchEvent(new Event('input'))})(document.querySelector('input'))"
        )
        await browser.until_text("1 of 5,000 topics")
        await browser.evaluate("document.querySelector('.rows tbody a').click()")
        await browser.until_text("Partitions of orders.0042")
        await browser.open(f"{url}ui/#/flows/A-%3EB/topics/orders.4321")
        await browser.until_text(DENIED)
        assert_quiet(browser, url)


async def test_a_link_that_leads_nowhere_says_so_on_top(browser: Browser, rig: Rig) -> None:
    async with served(public_app(rig.parts)) as url:
        for place, said, there in (
            ("flows/no-such", "This worker has no flow no-such.", "th a[href='#/flows/A-%3EB']"),
            ("flows/A-%3EB/no-such", "A flow has no part no-such", "section[aria-label=Topics]"),
            ("no-such", "This page has no place #/no-such", "th a[href='#/flows/A-%3EB']"),
        ):
            await browser.open(f"{url}ui/#/{place}")
            await browser.until_text(said)
            await browser.until(f'document.querySelector("{there}")')
        await in_all_looks(browser, "nowhere")
        await browser.open(f"{url}ui/#/")
        await browser.until("!document.body.innerText.includes('no-such')")
        # It begins to exist.
        await browser.open(f"{url}ui/#/flows/A-%3EC")
        await browser.until_text("This worker has no flow A->C.")
        later = flow("A", "C")
        await asyncio.to_thread(rig.add, later)
        await browser.until("document.querySelector('h1')?.innerText === 'Flow A->C'")
        assert [it for it in browser.errors if "404" not in it] == []


async def test_the_page_needs_no_mouse_and_fits_a_phone(browser: Browser, rig: Rig) -> None:
    rig.herders[AB].show(partitions=(partition("t", 0, 9, state="HELD", cause=DENIED),))
    async with served(public_app(rig.parts)) as url:
        for width, height, dark in LOOKS:
            await browser.look(width=width, height=height, dark=dark)
            await browser.open("about:blank")
            for place, seen in (("", "What is wrong"), ("flows/A-%3EB/topics/t", DENIED)):
                await browser.open(f"{url}ui/#/{place}")
                await browser.until_text(seen)
                wider = "document.documentElement.scrollWidth > innerWidth"
                assert not await browser.evaluate(wider), (width, place)
        # What was chosen is on a phone before the numbers of the whole flow.
        for width, before in ((390, True), (1280, False)):
            await browser.look(width=width, height=844, dark=False)
            await browser.open(f"{url}ui/#/flows/A-%3EB/tasks")
            part = "document.querySelector('section[aria-label=\"Connectors and tasks\"]')"
            after = "compareDocumentPosition(document.querySelector('.facts')) & 4"
            await browser.until(f"{part} && {'' if before else '!'}({part}.{after})")
        await browser.open(f"{url}ui/#/")
        await browser.until("document.querySelector('a.arrow, table a')")
        reached: set[str] = set()
        for _ in range(20):
            await browser.press("Tab")
            focused = "document.activeElement.getAttribute('href') || ''"
            reached.add(str(await browser.evaluate(focused)))
        assert {"#/flows/A-%3EB", "#/flows/B-%3EA", "#main"} <= reached
        assert_quiet(browser, url)


async def test_a_reader_who_signs_in_by_password_sees_numbers(browser: Browser, rig: Rig) -> None:
    settings = RestSettings.of_worker({"rest.insecure": "true"})
    gate = gate_for(settings, RestCredentials({"bob": "pw"}, {}, read_only=["bob"]))
    async with served(public_app(replace(rig.parts, gate=gate))) as url:
        # The page's own requests have no password in their address: the browser knows it from here.
        await browser.open(f"{url.replace('//', '//bob:pw@')}ui/")
        await browser.until_text("Nothing is wrong: 2 of 2 flows copy.")


@pytest.mark.integration
async def test_the_page_of_real_flows_shows_them_copying_with_topics_and_groups(
    browser: Browser, setup: Setup
) -> None:
    topic, name = setup.topic("orders", 2), setup.unique("<b>readers</b>")
    back = setup.topic("returns", 2, on=setup.b)
    both_ways = {"{target}->{source}.enabled": "true", "{target}->{source}.topics": back}
    synced = {"{source}->{target}.sync.group.offsets.enabled": "true"}
    mirror_flow = named(setup.flow(topic, both_ways | synced), "east", "west")
    with (
        Load(setup.a, topic, 2, rate=200) as load,
        Load(setup.b, back, 2, rate=100),
        running(mirror_flow.file) as mirror,
    ):
        url = public_url(mirror)
        load.wait_acked(500)
        commit(setup.a, name, topic, {0: 50, 1: 50})
        await browser.look(width=1280, height=700, dark=False)
        await browser.open(url)
        await browser.until_text("Nothing is wrong: 2 of 2 flows copy.")
        place = f"{url}ui/#/flows/{quote(mirror_flow.name, safe='')}"
        await browser.screenshot(SHOTS / "overview.png", whole=False)
        await browser.open(f"{place}/topics/{topic}")
        await browser.until_text(f"Partitions of {topic}")
        await browser.until_text(mirror_flow.remote(topic))
        await browser.screenshot(SHOTS / "topics.png")
        await browser.open(f"{place}/groups")
        await browser.until_text(name)
        await browser.screenshot(SHOTS / "groups.png")
        await browser.open(f"{place}/failover")
        await browser.until_text("Ready: a failover now would lose nothing")
        await browser.look(width=1280, height=1000, dark=False)
        await browser.screenshot(SHOTS / "failover.png", whole=False)
        await browser.open(f"{place}/ledger")
        await browser.until_text("Nothing was lost, stopped or doubled.")
        await browser.open(f"{place}/config")
        await browser.until_text("connector.class")
        await press(browser, "Check now")
        await browser.until(
            "/\\d findings?, the worst first.|Nothing is wrong./.test(document.body.innerText)"
        )
        await browser.until_text("internal topics")
        await browser.screenshot(SHOTS / "checks.png")
        assert_quiet(browser, url)
