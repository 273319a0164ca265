"""What tests of the page share: flows over fakes that are well, and a listener in front of them."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2py.config.rest_settings import RestSettings
from mm2py.flows.service import FlowService
from mm2py.flows.view_models import GroupPartitionView, GroupView
from mm2py.mirror.failovers import OpenTransaction
from mm2py.rest.app import public_app
from mm2py.rest.credentials import RestCredentials
from mm2py.rest.listening import Listener
from mm2py.rest.parts import RestParts
from mm2py.rest.security import gate_for
from mm2py.rest.server import RestServer
from mm2py_jobs.failover.plan import GroupRow, TopicRow
from mm2py_jobs.failover.routes import FailoverService, failover_router
from tests.integration.mirror_process import Flow
from tests.kit.browser import Browser, chromium
from tests.unit.rest.flow_fakes import AB, BA, NAME, Rig, partition, snapshot
from tests.unit.rest.job_fakes import PLAN, FakeFailovers

MARKS: Final = [
    pytest.mark.skipif(chromium() is None, reason="no Chromium: apt-get install chromium"),
    pytest.mark.timeout(300),
]
SHOTS: Final = Path(".mm2py") / "screenshots"
HOSTILE: Final = "<img src=x onerror=alert(1)>\"'&</script><script>alert(2)</script>"
LOOKS: Final = [(1280, 900, False), (1280, 900, True), (390, 844, False), (390, 844, True)]
OPEN: Final = "document.querySelector('dialog[open]')"
GOOD: Final = "document.querySelector('.good:not(marker)')"

DENIED: Final = (
    "the target B refuses user mm: WRITE on topic A.t (TOPIC_AUTHORIZATION_FAILED); kafka-acls.sh"
    " --bootstrap-server b:9092 --add --allow-principal User:mm --operation Write --topic A.t"
)


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    for name in (AB, BA):
        rig.add(name)
        heal(rig, name)
    return rig


def heal(rig: Rig, name: Any) -> None:
    herder = rig.herders[name]
    herder.snapshot = replace(
        snapshot("worker:8083", name, partition("t", 0, 7), partition("u", 0, 0)), records_lost=0
    )
    herder.configs[NAME].pop("enabled", None)


@asynccontextmanager
async def served(app: ASGIApp, port: int = 0) -> AsyncGenerator[str]:
    server = RestServer([Listener("127.0.0.1", port)], app)
    (url,) = await server.start()
    try:
        yield url
    finally:
        await server.stop(0)


def named(flow: Flow, source: str, target: str) -> Flow:
    """Give the clusters of a file names that a reader of a picture can read; no other test has them."""
    text = flow.file.read_text("latin-1")
    for old, new in ((flow.source_alias, source), (flow.target_alias, target)):
        text = text.replace(old, new)
    flow.file.write_text(text, "latin-1")
    return replace(flow, source_alias=source, target_alias=target)


def assert_quiet(browser: Browser, url: str) -> None:
    """Neither an error in the console, nor a request to another host."""
    assert browser.errors == []
    hosts = {urlsplit(it).netloc.rpartition("@")[2] for it in browser.requests}
    assert hosts == {urlsplit(url).netloc}


# -- groups, a ledger and a failover with something to say


def group(name: str, **more: Any) -> dict[str, Any]:
    place = GroupPartitionView(
        topic="t", partition=0, target_topic="A.t", committed=100, exact=90, checkpoint=80,
        committed_there=80, continues_at=80, reads_again=10, skips=0, place="copied",
    )  # fmt: skip
    plain = GroupView(
        flow="A->B", group=name, type="consumer", state="STABLE", state_there="EMPTY", members=2,
        members_there=0, reads_again=10, skips=0, not_synced="", partitions=(place,),
    )  # fmt: skip
    return plain.model_copy(update=more).model_dump()


LEDGER = {
    "flow": "A->B", "total": 3, "unreadable": 0,
    "topics": [
        {"flow": "A->B", "topic": "orders", "events": 3, "lost": 120, "refused": 1, "truncated": 0, "may_be_doubled": 5}
    ],
    "events": [
        {"flow": "A->B", "at_ms": 1_764_000_000_000, "topic": "orders", "partition": 2, "kind": kind, "first": first, "last": last,
         "offsets": last - first + 1, "policy": policy, "cause": cause, "task": "MirrorSourceConnector-0"}
        for kind, first, last, policy, cause in (
            ("may-be-doubled", 900, 904, "", "no acknowledgement within 120 s, and the target's log cannot be read"),
            ("too-large", 800, 800, "", "the record has 2,097,152 bytes; max.message.bytes of A.orders is 1,048,588"),
            ("retention", 100, 219, "gap.policy=continue", f"retention.ms of orders is 60000 {HOSTILE}"),
        )
    ],
}  # fmt: skip
"""What ``/flows/A->B/ledger`` answers for a flow that lost, stopped and may have doubled."""


class Jobs:
    """``public_app`` of a rig with failovers, and a ledger that a test sets."""

    def __init__(self, rig: Rig) -> None:
        self.failovers = FakeFailovers()
        self.service = FailoverService(self.failovers.opened)
        parts = rig.parts
        assert parts.flows is not None
        routes = failover_router(FlowService(rig.flow_parts), self.service)
        parts.flows.routes.extend(routes.routes)
        self._app = gated(parts)
        self.groups: list[dict[str, Any]] = []
        self.ledger: dict[str, Any] = {**LEDGER, "total": 0, "topics": [], "events": []}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        part = str(scope.get("path", "")).rpartition("/")[2]
        if part in ("ledger", "groups"):
            await JSONResponse(getattr(self, part))(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def in_all_looks(browser: Browser, name: str) -> None:
    """Keep a picture in both sizes and themes; nothing is wider than the window."""
    for width, height, dark in LOOKS:
        await browser.look(width=width, height=height, dark=dark)
        await browser.until(f"innerWidth === {width}")
        assert not await browser.evaluate("document.documentElement.scrollWidth > innerWidth")
        await browser.screenshot(SHOTS / f"{name}-{width}-{'dark' if dark else 'light'}.png")
    await browser.look(width=1280, height=900, dark=False)


PLANNED = replace(
    PLAN,
    at_ms=1_764_000_000_000,
    would_lose=58,
    copied_first=12,
    state="RUNNING",
    fence_rules=0,
    fence_note="the source has no authorizer",
    problems=("flow B->A copies no old.*: what clients write there on B stays there",),
    topics=(
        TopicRow(topic="orders", copy="A.orders", partitions=3, lag_records=58, lag_ms=9_100, would_lose=58, copied_to={0: 4}, problems=("topic A.orders is missing on B",), gaps=("topic A.orders is missing on B",)),
        TopicRow(topic="bills", copy="A.bills", partitions=1, lag_records=12, lag_ms=300, would_lose=0, copied_to={0: 9}),
    ),
    groups=(
        GroupRow(group=HOSTILE, state="STABLE", state_there="EMPTY", reads_again=10, skips=0, not_synced=""),
        GroupRow(group="fine", state="STABLE", state_there="EMPTY", reads_again=0, skips=0, not_synced=""),
    ),
    transactions=(OpenTransaction(topic="orders", partition=0, offset=4, transactional_id="tx", since_ms=1_763_990_000_000),),
)  # fmt: skip


# -- changes: who may make them, what a reader presses and enters


def gated(parts: RestParts) -> ASGIApp:
    """The API of flows for ann, who may change, and bob, who may only read; both have the password pw."""
    credentials = RestCredentials({"ann": "pw", "bob": "pw"}, {}, read_only=["bob"])
    gate = gate_for(RestSettings.of_worker({"rest.insecure": "true"}), credentials)
    return public_app(replace(parts, gate=gate))


async def ask_now(browser: Browser) -> None:
    """Let the page ask for new numbers at once, as when it is seen again."""
    await browser.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


async def press(browser: Browser, text: str, inside: str = "main") -> None:
    """Press the button with this text or label, once it can be pressed."""
    named = f"(it.ariaLabel || it.textContent).trim() === {json.dumps(text)} && !it.disabled"
    found = f"[...document.querySelectorAll('{inside} button')].find(it => {named})"
    await browser.until(found)
    await browser.evaluate(f"{found}.click()")


async def confirm(browser: Browser, text: str, planned: str) -> None:
    """See what is planned in the open dialog, and confirm it."""
    await browser.until(f"{OPEN}?.innerText.includes({planned!r})")
    await press(browser, text, "dialog[open]")


async def enter(browser: Browser, name: str, value: str) -> None:
    field = f"document.querySelector('dialog[open] input[name=\"{name}\"]')"
    await browser.until(field)
    await browser.evaluate(
        f"(i => {{i.value = {value!r}; i.dispatchEvent(new Event('input'))}})({field})"
    )


async def done(browser: Browser) -> None:
    await browser.until(f"{OPEN}?.innerText.includes('Done')")
    await press(browser, "Close", "dialog[open]")
    await browser.until(f"!{OPEN}")
