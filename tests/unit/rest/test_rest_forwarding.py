"""Requests that another worker answers: hops, signatures, what is copied, what comes back."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from typing import ClassVar

import httpx
import pytest
from starlette.types import ASGIApp, Message, Scope

from mm2py.observability.metrics import NodeSnapshot
from mm2py.rest.app import internal_app, public_app
from mm2py.rest.forwarding import http_client
from mm2py.rest.peer_client import node_snapshot
from mm2py.runtime.errors import ForwardError, HerderError, NotFoundError, RebalanceExpectedError
from mm2py.runtime.group.request_signing import sign_request
from mm2py.runtime.herder.herder import Herder
from mm2py.storage.config_state import SessionKey
from mm2py.testing.clock import FakeClock
from mm2py.types import FlowName
from tests.unit.rest.rest_fakes import BASE, KEY, FakeHerder, Reply, ask, flow, parts_of, state

LEADER = "http://leader:9000/"
CLOCK = FakeClock()
CONFLICT = "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
NO_LEADER = (
    "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was"
    " underway."
)
SNAPSHOT = NodeSnapshot(
    worker="w",
    flow=flow("c", "g"),
    at_ms=1,
    state="RUNNING",
    partitions=(),
    events={},
    records_lost=0,
)
Herders = Mapping[FlowName | None, Herder]


@dataclass
class Net(httpx.AsyncBaseTransport):
    """Workers by host name, and what was sent to them."""

    apps: dict[str, ASGIApp] = field(default_factory=dict[str, ASGIApp])
    sent: list[httpx.Request] = field(default_factory=list[httpx.Request])
    answer: httpx.Response | None = None
    date_ms: int | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        if self.answer is not None:
            return self.answer
        app = self.apps.get(request.url.host)
        if app is None:
            raise httpx.ConnectError("refused", request=request)
        reply = await httpx.ASGITransport(app).handle_async_request(request)
        if self.date_ms is not None:
            reply.headers["date"] = formatdate(self.date_ms / 1000, usegmt=True)
        return reply

    def worker(self, host: str, herder: Herder, *, dedicated: bool = False) -> ASGIApp:
        """Add a worker; return its public application."""
        herders: Herders = {herder.flow: herder}
        parts = parts_of(herders, dedicated=dedicated, client=http_client(transport=self))
        self.apps[host] = internal_app(parts)
        return public_app(parts)


def follower(url: str | None = LEADER, *, key: SessionKey | None = KEY) -> FakeHerder:
    return FakeHerder(refusal=ForwardError(url), states={"c": state("c")}, key=key)


def two(leader: FakeHerder) -> tuple[Net, ASGIApp]:
    net = Net()
    net.worker("leader", leader)
    return net, net.worker("other", follower())


def test_a_create_is_served_by_the_leader_and_located_at_the_worker_that_was_asked() -> None:
    leader = FakeHerder()
    net, app = two(leader)
    reply = ask(app, "POST", "/connectors", body={"name": "a/b c", "config": {"n": 1.50}})
    assert reply.status == 201
    assert reply.headers["location"] == f"{BASE}/connectors/a%2Fb%20c"
    assert leader.configs == {"a/b c": {"n": "1.5", "name": "a/b c"}}
    assert str(net.sent[0].url) == "http://leader:9000/connectors?forward=true"


def test_the_difference_of_200_and_201_survives_the_hop() -> None:
    _, app = two(FakeHerder())
    assert ask(app, "PUT", "/connectors/c/config", body={}).status == 201
    _, again = two(FakeHerder(configs={"c": {}}))
    assert ask(again, "PUT", "/connectors/c/config", body={}).status == 200


def test_answers_without_a_body_survive_the_hop() -> None:
    leader = FakeHerder(configs={"c": {}})
    _, app = two(leader)
    assert ask(app, "PUT", "/connectors/c/stop").status == 204
    assert ask(app, "DELETE", "/connectors/c").status == 204
    assert leader.calls == [("stop", "c", "anonymous"), ("delete", "c", "anonymous")]


def test_no_header_of_the_caller_is_sent_on_and_query_flags_are_kept() -> None:
    leader = FakeHerder(states={"c": state("c")})
    net, app = two(leader)
    headers = {"Authorization": "Basic abc", "X-Other": "1", "Cookie": "x=1"}
    reply = ask(
        app, "POST", "/connectors/c/restart?includeTasks=true&onlyFailed=x", headers=headers
    )
    assert reply.status == 202
    assert leader.calls == [("restart", "c", False, True)]
    sent = net.sent[0].headers
    assert (sent["user-agent"], sent["accept"]) == ("kafka-connect", "application/json")
    assert not {"authorization", "x-other", "cookie"} & set(sent)


@pytest.mark.parametrize(
    ("query", "url", "text"),
    [
        ("", None, NO_LEADER),
        ("?forward=true", None, NO_LEADER),
        ("?forward=false", LEADER, CONFLICT),
    ],
)
def test_what_nobody_may_send_on_is_a_409(query: str, url: str | None, text: str) -> None:
    net = Net()
    app = net.worker("other", follower(url))
    reply = ask(app, "PUT", f"/connectors/c/stop{query}")
    assert (reply.status, reply.message) == (409, text)
    assert net.sent == []


def test_a_request_makes_two_hops_and_no_third() -> None:
    net = Net()
    app = net.worker("a", follower("http://b/"))
    net.worker("b", follower("http://c/"))
    net.worker("c", follower("http://d/"))
    reply = ask(app, "POST", "/connectors/c/tasks/0/restart")
    assert (reply.status, reply.message) == (409, CONFLICT)
    assert [str(request.url) for request in net.sent] == [
        "http://b/connectors/c/tasks/0/restart?forward=true",
        "http://c/connectors/c/tasks/0/restart?forward=false",
    ]


def test_a_refusal_of_the_leader_is_passed_on_as_it_is() -> None:
    net, app = two(FakeHerder(refusal=NotFoundError("Unknown connector c")))
    reply = ask(app, "PUT", "/connectors/c/stop")
    assert (reply.status, reply.message) == (404, "Unknown connector c")
    assert len(net.sent) == 1
    _, busy = two(FakeHerder(refusal=RebalanceExpectedError()))
    assert ask(busy, "PUT", "/connectors/c/stop").status == 500


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(302, headers={"Location": "http://evil/"}),
        httpx.Response(502, text="<html>"),
        httpx.Response(200, text="<html>"),
    ],
)
def test_an_answer_that_is_not_ours_is_an_io_error(answer: httpx.Response) -> None:
    net = Net(answer=answer)
    reply = ask(net.worker("other", follower()), "PUT", "/connectors/c/stop")
    assert reply.status == 500
    assert reply.message.startswith("IO Error trying to forward REST request: ")


def test_a_leader_that_cannot_be_reached_is_an_io_error_that_names_it() -> None:
    reply = ask(Net().worker("other", follower()), "PUT", "/connectors/c/stop")
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert reply.message.startswith("IO Error trying to forward REST request: ConnectError")
    assert LEADER in reply.message


def test_nothing_is_sent_on_before_a_session_key_was_read() -> None:
    net = Net()
    app = net.worker("other", follower(key=None))
    assert ask(app, "PUT", "/connectors/c/stop").status == 503
    assert net.sent == []


def test_a_signature_refused_right_after_a_rotation_is_tried_again_with_the_new_key() -> None:
    clock_ms = 1_700_000_000_000
    new = SessionKey(b"n" * 32, "HmacSHA256", clock_ms)
    leader = FakeHerder(key=new)
    net = Net()
    net.worker("leader", leader)
    herder = follower(key=SessionKey(b"o" * 32, "HmacSHA256", clock_ms))
    app = net.worker("other", herder)

    class Rotating(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            reply = await net.handle_async_request(request)
            herder.key = new
            return reply

    parts = parts_of({None: herder}, client=http_client(transport=Rotating()), eager=True)
    app = public_app(parts)
    assert ask(app, "PUT", "/connectors/c/stop").status == 204
    assert len(net.sent) == 2


class TestInternalListener:
    """What strangers get."""

    target: ClassVar[str] = "/connectors/c/stop"

    def ask(
        self, headers: Mapping[str, str], method: str = "PUT", target: str | None = None
    ) -> Reply:
        app = internal_app(parts_of({None: FakeHerder()}))
        return ask(app, method, target or self.target, headers=headers)

    def signed(self, **changed: object) -> dict[str, str]:
        given: dict[str, object] = {"key": KEY, "method": "PUT", "raw_target": self.target}
        given |= {"caller": "joe;operator", "body": b"", "now_ms": CLOCK.now_ms(), **changed}
        return sign_request(**given)  # type: ignore[arg-type] # test table

    @pytest.mark.parametrize("target", ["/", "/health", "/connectors", "/connectors/c/stop"])
    def test_an_unsigned_request_is_a_403(self, target: str) -> None:
        assert self.ask({}, "GET", target).status == 403

    @pytest.mark.parametrize(
        "changed",
        [
            {"key": SessionKey(b"x" * 32, "HmacSHA256", 0)},
            {"method": "POST"},
            {"raw_target": "/connectors/d/stop"},
            {"raw_target": "/connectors/c/stop?forward=true"},
            {"body": b"{}"},
        ],
    )
    def test_a_signature_of_something_else_is_a_403(self, changed: dict[str, object]) -> None:
        assert self.ask(self.signed(**changed)).status == 403

    def test_a_caller_that_was_changed_on_the_way_is_a_403(self) -> None:
        headers = self.signed(caller="joe;reader") | {"X-Mm2py-Caller": "joe;operator"}
        assert self.ask(headers).status == 403

    def test_a_request_signed_for_another_flow_is_not_served(self) -> None:
        assert self.ask(self.signed() | {"X-Mm2py-Flow": "A/B"}).status == 503

    @pytest.mark.parametrize("seconds", [-61, 61, 3600])
    def test_a_request_signed_too_long_ago_or_ahead_is_a_403(self, seconds: int) -> None:
        reply = self.ask(self.signed(now_ms=CLOCK.now_ms() + seconds * 1000))
        assert reply.status == 403
        assert "set the clocks of all workers" in reply.message

    def test_a_request_is_served_once(self) -> None:
        app = internal_app(parts_of({None: FakeHerder()}))
        headers = self.signed()
        assert ask(app, "PUT", self.target, headers=headers).status == 204
        again = ask(app, "PUT", self.target, headers=headers)
        assert (again.status, again.message) == (403, "Internal request was sent again")

    def test_a_body_is_read_only_behind_a_signature_that_is_right(self) -> None:
        app = internal_app(parts_of())
        length = (b"content-length", b"100")
        wrong = {"X-Mm2py-Authorization": "abcd", "X-Mm2py-Caller": "w;operator"}
        for path, headers in (
            ("/x", {}),
            ("/connectors/c/stop", {**self.signed(), **wrong}),
            ("/connectors/c/stop", wrong),
            ("/connectors/c/tasks", {"X-Connect-Authorization": "YWJj"}),
            ("/connectors/c/fence", {"X-Connect-Authorization": "YWJj"}),
        ):
            sent = asyncio.run(self.unread(app, path, {**headers}, length))
            assert sent[0]["status"] == 403
            assert (b"connection", b"close") in sent[0]["headers"]

    async def unread(
        self, app: ASGIApp, path: str, headers: Mapping[str, str], declared: tuple[bytes, bytes]
    ) -> list[Message]:
        sent: list[Message] = []

        async def receive() -> Message:
            raise AssertionError("read")

        async def send(message: Message) -> None:
            sent.append(message)

        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope: Scope = {"type": "http", "method": "POST", "path": path, "headers": [*raw, declared]}
        await app(scope, receive, send)
        return sent


def test_the_actor_of_a_forwarded_request_is_who_asked_the_first_worker() -> None:
    leader = FakeHerder()
    app = internal_app(parts_of({None: leader}))
    headers = sign_request(
        KEY, "PUT", "/connectors/c/stop", "jo%C3%AB;operator", b"", CLOCK.now_ms()
    )
    assert ask(app, "PUT", "/connectors/c/stop", headers=headers).status == 204
    assert leader.calls == [("stop", "c", "joë")]


@pytest.mark.parametrize("name", [None, flow("A", "B"), flow("connectors", "B x")])
async def test_peers_hand_over_snapshots(name: FlowName | None) -> None:
    snapshot = replace(SNAPSHOT, flow=name or SNAPSHOT.flow)
    leader = FakeHerder(flow=name, snapshot=snapshot)
    net = Net()
    net.worker("leader", leader, dedicated=name is not None)
    async with http_client(transport=net) as client:
        assert await node_snapshot(client, name, LEADER, KEY, clock=CLOCK) == snapshot


async def test_a_peer_that_refuses_keeps_its_status() -> None:
    net = Net()
    net.worker("leader", FakeHerder())
    async with http_client(transport=net) as client:
        other = SessionKey(b"x" * 32, "HmacSHA256", 0)
        with pytest.raises(HerderError, match="invalid signature") as caught:
            await node_snapshot(client, None, LEADER, other, clock=CLOCK)
    assert caught.value.status == 403


@pytest.mark.parametrize("ahead_s", [-120, 120])
async def test_a_worker_with_another_clock_signs_once_more_with_the_receiver_s_time(
    ahead_s: int,
) -> None:
    """The receiver decides how old a signature is; a wrong signature stays refused, asked twice at most."""
    net = Net(date_ms=CLOCK.now_ms())
    net.worker("leader", FakeHerder(snapshot=SNAPSHOT))
    clock = FakeClock(CLOCK.now_ms() + ahead_s * 1000)
    async with http_client(transport=net) as client:
        assert await node_snapshot(client, None, LEADER, KEY, clock=clock) == SNAPSHOT
        assert len(net.sent) == 2
        other = SessionKey(b"x" * 32, "HmacSHA256", 0)
        with pytest.raises(HerderError, match="invalid signature"):
            await node_snapshot(client, None, LEADER, other, clock=clock)
    assert len(net.sent) == 4
