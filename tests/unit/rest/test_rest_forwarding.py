"""Requests that another worker answers, and those of the dedicated mode: hops, signatures, a dialect per flow, secrets."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from typing import ClassVar
from urllib.parse import quote, unquote

import httpx
import pytest
from starlette.types import ASGIApp, Message, Scope

from mm2py.errors import FatalError, RetriableError
from mm2py.flows.states import read_flow
from mm2py.rest.app import internal_app, public_app
from mm2py.rest.forwarding import http_client
from mm2py.rest.peer_client import node_snapshot
from mm2py.runtime.errors import ForwardError, HerderError, NotFoundError, RebalanceExpectedError
from mm2py.runtime.group.request_signing import sign_request, sign_terms
from mm2py.runtime.herder.api import Health, WorkState
from mm2py.runtime.herder.herder import Herder
from mm2py.storage.config_state import ConnectorConfig, SessionKey
from mm2py.testing.clock import FakeClock
from mm2py.types import FlowName, State, TaskId
from tests.unit.rest.flow_fakes import snapshot
from tests.unit.rest.rest_fakes import (
    BASE,
    KEY,
    SOURCE,
    FakeHerder,
    Reply,
    ask,
    flow,
    parts_of,
    state,
)

LEADER = "http://leader:9000/"
CLOCK = FakeClock()
CONFLICT = "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
NO_LEADER = (
    "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was"
    " underway."
)
SNAPSHOT = snapshot("w", flow("c", "g"))
Herders = Mapping[FlowName | None, Herder]


@dataclass
class Net(httpx.AsyncBaseTransport):
    """Workers by host name, and what was sent to them."""

    apps: dict[str, ASGIApp] = field(default_factory=dict[str, ASGIApp])
    sent: list[httpx.Request] = field(default_factory=list[httpx.Request])
    answer: httpx.Response | httpx.HTTPError | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        if isinstance(self.answer, httpx.HTTPError):
            raise self.answer
        if self.answer is not None:
            return self.answer
        app = self.apps.get(request.url.host)
        if app is None:
            raise httpx.ConnectError("refused", request=request)
        return await httpx.ASGITransport(app).handle_async_request(request)

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


@pytest.mark.parametrize("name", ["..", ".", "a/..", "%2E", "a;b"])
def test_the_leader_is_asked_for_the_connector_that_was_named(name: str) -> None:
    leader = FakeHerder()
    _, app = two(leader)
    path = f"/connectors/{quote(name, safe='').replace('.', '%2E')}"
    reply = ask(app, "PUT", f"{path}/config", body={})
    assert (reply.status, leader.configs) == (201, {name: {"name": name}})
    assert unquote(reply.headers["location"].rpartition("/")[2]) == name


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
    _, waits = two(FakeHerder(refusal=RetriableError("B is away")))
    reply = ask(waits, "PUT", "/connectors/c/stop")
    assert (reply.status, reply.message, reply.headers["retry-after"]) == (503, "B is away", "1")


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
    assert "may have been made" not in reply.message


@pytest.mark.parametrize("method", ["PUT", "GET"])
@pytest.mark.parametrize("lost", [httpx.ReadError("reset"), httpx.ReadTimeout("late")])
def test_a_change_whose_answer_was_lost_between_workers_is_said_to_be_possible(
    method: str, lost: httpx.HTTPError
) -> None:
    path = "/connectors/c/stop" if method == "PUT" else "/connectors/c/tasks"
    reply = ask(Net(answer=lost).worker("other", follower()), method, path)
    assert reply.status == 503
    assert ("the change may have been made" in reply.message) == (method == "PUT")


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
    herder = follower(key=SessionKey(b"o" * 32, "HmacSHA256", clock_ms - 3_600_000))
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

    @pytest.mark.parametrize("target", ["/", "/health", "/metrics", "/connectors/c/stop"])
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

    def test_a_request_is_served_once_for_who_asked_the_first_worker(self) -> None:
        leader = FakeHerder()
        app = internal_app(parts_of({None: leader}))
        headers = self.signed(caller="jo%C3%AB;operator")
        assert ask(app, "PUT", self.target, headers=headers).status == 204
        assert leader.calls == [("stop", "c", "joë")]
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


@pytest.mark.parametrize("name", [None, flow("A", "B"), flow("connectors", "B x")])
async def test_peers_hand_over_snapshots(name: FlowName | None) -> None:
    shown = replace(SNAPSHOT, flow=name or SNAPSHOT.flow)
    leader = FakeHerder(flow=name, snapshot=shown)
    net = Net()
    net.worker("leader", leader, dedicated=name is not None)
    async with http_client(transport=net) as client:
        assert await node_snapshot(client, name, LEADER, KEY, clock=CLOCK) == shown


async def test_a_peer_that_refuses_keeps_its_status() -> None:
    net = Net()
    net.worker("leader", FakeHerder())
    async with http_client(transport=net) as client:
        other = SessionKey(b"x" * 32, "HmacSHA256", 0)
        with pytest.raises(HerderError, match="invalid signature") as caught:
            await node_snapshot(client, None, LEADER, other, clock=CLOCK)
    assert caught.value.status == 403


@pytest.mark.parametrize("ahead_s", [-120, 120])
async def test_a_worker_with_another_clock_signs_anew_with_the_receivers_time(ahead_s: int) -> None:
    """The receiver decides how old a signature is; a wrong signature stays refused, asked twice at most."""
    net = Net()
    net.worker("leader", FakeHerder(snapshot=SNAPSHOT))
    clock = FakeClock(CLOCK.now_ms() + ahead_s * 1000)
    async with http_client(transport=net) as client:
        assert await node_snapshot(client, None, LEADER, KEY, clock=clock) == SNAPSHOT
        assert len(net.sent) == 2
        other = SessionKey(b"x" * 32, "HmacSHA256", 0)
        with pytest.raises(HerderError, match="invalid signature"):
            await node_snapshot(client, None, LEADER, other, clock=clock)
    assert len(net.sent) == 3


@pytest.mark.parametrize(
    "header",
    [
        {"Date": formatdate(CLOCK.now_ms() / 1000 + 3000, usegmt=True)},
        {"X-Mm2py-Terms": f"{CLOCK.now_ms() + 3_000_000};life;AAAA"},
        sign_terms(KEY, "nonce of another request", CLOCK.now_ms() + 3_000_000, "life"),
    ],
)
async def test_no_peer_has_a_request_signed_for_later(header: Mapping[str, str]) -> None:
    net = Net(answer=httpx.Response(403, headers=header, json={"message": "no"}))
    async with http_client(transport=net) as client:
        with pytest.raises(HerderError, match="no"):
            await node_snapshot(client, None, LEADER, KEY, clock=CLOCK)
    assert len(net.sent) == 1


async def test_what_was_sent_to_a_worker_s_former_life_is_not_served_in_the_next() -> None:
    lives = [
        internal_app(parts_of({None: FakeHerder(snapshot=SNAPSHOT)}, started_ms=started_ms))
        for started_ms in (0, CLOCK.now_ms())
    ]
    net = Net()
    async with http_client(transport=net) as client:
        for net.apps["leader"] in lives:
            assert await node_snapshot(client, None, LEADER, KEY, clock=CLOCK) == SNAPSHOT
        first, _, told = net.sent
        for again, text in ((first, "this life"), (told, "sent again")):
            reply = await client.send(again)
            assert (reply.status_code, text in reply.json()["message"]) == (403, True)


# -- the dedicated mode


AB, SPACED, RESERVED = flow("A", "B"), flow("a b", "c/d"), flow("connectors", "B")
NAME = "MirrorSourceConnector"
LONG = f"A->B.{NAME}"
AT_ROOT = f"/connectors/A-%3EB.{NAME}"
STORED: dict[str, str | None] = {
    "connector.class": SOURCE,
    "source.pw": "s3cret",
    "db.password": "p4ss",
    "topics": "x canary-value",
    "name": NAME,
}
SHOWN = STORED | {"source.pw": "[hidden]", "db.password": "[hidden]", "topics": "x [hidden]"}


def herder(name: FlowName = AB) -> FakeHerder:
    return FakeHerder(
        flow=name, configs={NAME: dict(STORED)}, states={NAME: state(NAME)}, cluster_id=f"id-{name}"
    )


def app_of(*herders: FakeHerder) -> ASGIApp:
    found: dict[FlowName | None, Herder] = {each.flow: each for each in herders}
    return public_app(parts_of(found, dedicated=True))


@pytest.mark.parametrize(
    ("name", "prefix"),
    [(AB, "/A/B"), (AB, "/pairs/A/B"), (SPACED, "/a%20b/c%2Fd"), (RESERVED, "/pairs/connectors/B")],
)
def test_a_flow_has_its_dialect_under_its_pair(name: FlowName, prefix: str) -> None:
    app = app_of(herder(name))
    assert ask(app, "GET", f"{prefix}/connectors").json == [NAME]
    assert ask(app, "GET", prefix).json["kafka_cluster_id"] == f"id-{name}"
    assert ask(app, "GET", f"{prefix}/health").status == 200
    assert ask(app, "GET", f"{prefix}/connectors/{NAME}/status").json["name"] == NAME
    created = ask(app, "POST", f"{prefix}/connectors", body={"name": "n", "config": {}})
    assert created.headers["location"] == f"{BASE}{prefix}/connectors/n"


@pytest.mark.parametrize("word", ["connectors", "admin", "metrics", "ui"])
def test_an_alias_that_is_a_word_of_the_api_is_found_under_pairs_only(word: str) -> None:
    app = app_of(herder(flow(word, "B")))
    assert ask(app, "GET", f"/{word}/B/health").status == 404
    assert ask(app, "GET", f"/pairs/{word}/B/connectors").json == [NAME]


def test_a_reserved_alias_is_said_once_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    public_app(parts_of({flow("admin", "B"): FakeHerder(), flow("A", "B"): FakeHerder()}))
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "alias is a word of the API, rest has the flow under /pairs/admin/B only flow=admin->B"
    ]


def test_passwords_of_a_class_that_is_not_known_are_hidden_by_their_names() -> None:
    one = herder()
    one.configs["n"] = {"connector.class": "x.Y", "db.password": "p4ss", "name": "n"}
    shown = ask(app_of(one), "GET", "/A/B/connectors/n/config").json
    assert shown == {"connector.class": "x.Y", "db.password": "[hidden]", "name": "n"}


def test_secrets_are_hidden_in_every_config() -> None:
    app = app_of(herder())
    assert ask(app, "GET", f"/A/B/connectors/{NAME}/config").json == SHOWN
    listed = ask(app, "GET", "/A/B/connectors?expand=info").json
    assert listed[NAME]["info"]["config"] == SHOWN
    assert ask(app, "GET", f"{AT_ROOT}/config").json == SHOWN | {"name": LONG}


@pytest.mark.parametrize("target", [f"/A/B/connectors/{NAME}", AT_ROOT])
def test_a_config_that_was_read_can_be_put_back_without_losing_secrets(target: str) -> None:
    one = herder()
    app = app_of(one)
    read = ask(app, "GET", f"{target}/config").json
    assert ask(app, "PUT", f"{target}/config", body=read | {"tasks.max": "2"}).status == 200
    assert one.configs[NAME] == STORED | {"tasks.max": "2"}
    assert ask(app, "PATCH", f"{target}/config", body={"source.pw": "[hidden]"}).status == 200
    assert one.configs[NAME]["source.pw"] == "s3cret"


def test_hidden_where_nothing_is_stored_is_refused() -> None:
    app = app_of(herder())
    for value in ("[hidden]", "y [hidden]"):
        reply = ask(app, "PATCH", f"{AT_ROOT}/config", body={"new.password": value})
        assert reply.status == 400
    partly = ask(app, "PATCH", f"{AT_ROOT}/config", body={"topics": "y [hidden]"})
    assert partly.status == 400


def test_the_root_shows_the_connectors_of_all_flows_by_long_names() -> None:
    app = app_of(herder(), herder(SPACED))
    assert ask(app, "GET", "/connectors").json == [LONG, f"a b->c/d.{NAME}"]
    info = ask(app, "GET", AT_ROOT).json
    assert info["name"] == info["config"]["name"] == info["tasks"][0]["connector"] == LONG
    assert ask(app, "GET", f"{AT_ROOT}/status").json["name"] == LONG
    assert ask(app, "GET", f"{AT_ROOT}/topics").json == {LONG: {"topics": ["t1"]}}
    assert ask(app, "GET", f"{AT_ROOT}/tasks").json[0]["id"] == {"connector": LONG, "task": 0}
    assert ask(app, "GET", "/").json["kafka_cluster_id"] == "id-A->B,id-a b->c/d"
    expanded = ask(app, "GET", "/connectors?expand=status&expand=info").json
    assert expanded[LONG]["status"]["name"] == expanded[LONG]["info"]["name"] == LONG


def test_changes_at_the_root_reach_the_flow_under_the_connectors_own_name() -> None:
    one = herder()
    app = app_of(one)
    ask(app, "PUT", f"{AT_ROOT}/pause")
    ask(app, "POST", f"{AT_ROOT}/tasks/0/restart")
    created = ask(app, "POST", "/connectors", body={"name": "A->B.n", "config": {}})
    assert created.headers["location"] == f"{BASE}/connectors/A-%3EB.n"
    assert created.json["config"] == {"name": "A->B.n"}
    assert one.calls == [
        ("pause", NAME, "anonymous"),
        ("restart_task", TaskId(NAME, 0)),
        ("create", "n", {"name": "n"}, None, "anonymous"),
    ]


@pytest.mark.parametrize("name", ["n", "X->Y.n", "A->B.", "A->B"])
def test_a_connector_created_at_the_root_needs_its_flow_in_the_name(name: str) -> None:
    reply = ask(app_of(herder()), "POST", "/connectors", body={"name": name, "config": {}})
    assert reply.status == 400
    assert "has to begin with the replication flow" in reply.message
    assert "A->B." in reply.message


@pytest.mark.parametrize(
    ("method", "path", "text"),
    [
        ("GET", "/connectors/x", "Connector x not found"),
        ("GET", "/connectors/x/status", "No status found for connector x"),
        ("GET", "/connectors/x/tasks/0/status", "No status found for task x-0"),
        ("PUT", "/connectors/x/stop", "Unknown connector x"),
        ("GET", "/x%20y/B/connectors", "No replication flow found for source 'x y' and target 'B'"),
    ],
)
def test_an_unknown_long_name_and_an_unknown_pair_are_a_404_that_names_it(
    method: str, path: str, text: str
) -> None:
    reply = ask(app_of(herder()), method, path)
    assert (reply.status, reply.message) == (404, text)


def test_a_flow_whose_alias_begins_like_another_is_told_apart() -> None:
    short, long = herder(AB), herder(flow("A", "B.C"))
    long.configs = {"n": {}}
    app = app_of(short, long)
    assert ask(app, "PUT", "/connectors/A->B.C.n/pause").status == 202
    assert long.calls == [("pause", "n", "anonymous")]


def test_the_root_is_as_well_as_its_worst_flow() -> None:
    ill = herder(SPACED)
    ill.said_health = Health("unhealthy", "stuck")
    reply = ask(app_of(herder(), ill), "GET", "/health")
    assert (reply.status, reply.json["message"]) == (500, "a b->c/d: stuck")
    assert ask(app_of(herder()), "GET", "/health").json["message"] == "well"
    assert ask(app_of(), "GET", "/health").status == 503


def test_a_request_at_the_root_is_sent_on_with_the_key_of_its_flow() -> None:
    key = SessionKey(b"f" * 32, "HmacSHA256", 0)
    leader, follower, other = herder(), herder(), herder(SPACED)
    leader.key = follower.key = key
    follower.refusal = ForwardError("http://leader/")
    assert other.key == KEY
    remote = internal_app(parts_of({AB: leader, SPACED: other}, dedicated=True))
    client = http_client(transport=httpx.ASGITransport(remote))
    app = public_app(parts_of({AB: follower, SPACED: other}, dedicated=True, client=client))
    assert ask(app, "PUT", f"{AT_ROOT}/stop").status == 204
    assert ask(app, "PUT", f"/A/B/connectors/{NAME}/stop").status == 204
    created = ask(app, "POST", "/connectors", body={"name": "A->B.n", "config": {}})
    assert created.headers["location"] == f"{BASE}/connectors/A-%3EB.n"
    assert [call[0] for call in leader.calls] == ["stop", "stop", "create"]


def test_what_may_come_from_outside_is_judged_by_flow_and_own_name_also_at_the_root() -> None:
    asked: list[tuple[object, str, dict[str, str | None]]] = []

    def refuse(name: FlowName | None, connector: str, config: ConnectorConfig) -> str | None:
        asked.append((name, connector, dict(config)))
        return "no"

    one = herder()
    parts = parts_of({AB: one}, dedicated=True, remote_refusal=refuse)
    for target in (AT_ROOT, f"/A/B/connectors/{NAME}"):
        reply = ask(public_app(parts), "PATCH", f"{target}/config", body={"x": None, "y": "1"})
        assert (reply.status, reply.message) == (400, "no")
    assert asked == [(AB, NAME, {"x": None, "y": "1"})] * 2
    assert one.calls == []


def heartbeats_only(*, enabled: str = "false", read: bool = False) -> FakeHerder:
    """Return the herder of B->A, which nobody has enabled: A may only be read, so that it fails."""
    source = {"connector.class": "MirrorSourceConnector", "enabled": enabled}
    known: dict[str, dict[str, str | None]] = {NAME: {**source}} if read else {}
    failed = FakeHerder(
        flow=flow("B", "A"),
        configs=known,
        states={it: state(it) for it in known},
        said_health=Health("unhealthy", "A may only be read"),
    )
    failed.file = {NAME: source}
    failed.broken = FatalError("A may only be read")
    return failed


@pytest.mark.parametrize("read", [False, True])
def test_a_disabled_direction_decides_neither_health_nor_readiness(*, read: bool) -> None:
    app = app_of(herder(), heartbeats_only(read=read))
    assert (ask(app, "GET", "/health").status, ask(app, "GET", "/readyz").status) == (200, 200)
    assert ask(app, "GET", "/B/A/health").status == 500, "its own health is what it is"
    wanted = app_of(herder(), heartbeats_only(enabled="true", read=read))
    assert (ask(wanted, "GET", "/health").status, ask(wanted, "GET", "/readyz").status) == (
        500,
        503,
    )
    alone = app_of(heartbeats_only(read=read))
    assert (ask(alone, "GET", "/health").status, ask(alone, "GET", "/readyz").status) == (500, 503)
    ill = herder()
    ill.said_health = Health("unhealthy", "cause")
    assert ask(app_of(ill, heartbeats_only(read=read)), "GET", "/health").status == 500


@pytest.mark.parametrize("read", [False, True])
def test_what_is_wrong_with_a_disabled_direction_is_a_note_with_a_remedy(*, read: bool) -> None:
    work = read_flow(heartbeats_only(read=read))
    assert (work.state(()), list(work.wrongs(()))) == ("DISABLED", [])
    (note,) = work.notes(())
    assert "A may only be read" in note
    assert "set B->A.emit.heartbeats.enabled = false" in note
    wanted = read_flow(heartbeats_only(enabled="true", read=read))
    assert (wanted.state(()), list(wanted.notes(()))) == ("FAILED", [])
    assert [text for _, text in wanted.wrongs(())] == ["A may only be read"]


@pytest.mark.parametrize("resting", [State.PAUSED, State.STOPPED])
def test_a_disabled_direction_is_shown_as_resting_if_all_of_it_rests(resting: State) -> None:
    heart = "MirrorHeartbeatConnector"
    one = heartbeats_only(read=True)
    one.broken = None
    one.configs[heart] = {"connector.class": heart}
    one.states[heart] = state(heart)
    work = WorkState(resting, "worker:8083", None, "4.3.1")
    rests = one.states[NAME] = replace(state(NAME), connector=work, tasks={0: work})
    assert read_flow(one).state(()) == "DISABLED"
    one.states[heart] = rests
    assert read_flow(one).state(()) == resting
