"""The page at ``/ui``: files, headers, who is sent there, who is asked for a password, what its files may not hold, and what it says of flows."""

import hashlib
import json
import random
import re
import shutil
import subprocess
from base64 import b64encode
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Any, Final

import pytest
from starlette.types import ASGIApp

from mm2py.config.rest_settings import RestSettings
from mm2py.rest.app import own_app, public_app
from mm2py.rest.credentials import RestCredentials
from mm2py.rest.page import HEADERS, PAGE_HEADER, POLICY, page_files
from mm2py.rest.security import ACCESS_HEADER, USER_HEADER, gate_for
from mm2py.types import State
from tests.unit.rest.flow_fakes import AB, BA, Rig, partition, snapshot
from tests.unit.rest.rest_fakes import FakeHerder, ask, parts_of

CHROMIUM = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
OURS = sorted(name for name in page_files() if not name.startswith("vendor/"))
CODE = [name for name in OURS if name.endswith((".js", ".css", ".html"))]
MOST_LINES = 2_500


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.add(AB)
    rig.add(BA)
    return rig


@pytest.fixture
def app(rig: Rig) -> ASGIApp:
    return public_app(rig.parts)


def directives(policy: str) -> dict[str, str]:
    pairs = (part.strip().partition(" ") for part in policy.split(";"))
    return {name: value for name, _, value in pairs}


# -- what is served


@pytest.mark.parametrize("name", ["", *sorted(page_files())])
def test_every_file_has_a_type_and_headers_that_allow_no_others(app: ASGIApp, name: str) -> None:
    reply = ask(app, "GET", f"/ui/{name}")
    assert reply.status == 200
    assert reply.content == page_files()[name or "index.html"]
    assert {key: reply.headers[key] for key in HEADERS} == HEADERS
    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "": "text/html"}
    suffix = name.rpartition(".")[2]
    assert reply.headers["content-type"].startswith(kinds.get(suffix, "text/"))
    head = ask(app, "HEAD", f"/ui/{name}")
    assert (head.status, head.content) == (200, b"")
    again = ask(app, "GET", f"/ui/{name}", headers={"If-None-Match": reply.headers["etag"]})
    assert (again.status, again.content) == (304, b"")


def test_the_policy_is_strict() -> None:
    policy = directives(POLICY)
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in POLICY
    assert "*" not in POLICY
    assert HEADERS["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "target",
    [
        "/ui/nothing.js",
        "/ui/vendor",
        "/ui/..%2f..%2fapp.py",
        "/ui/%2e%2e/app.py",
        "/ui//etc/passwd",
        "/ui/index.html%00",
    ],
)
def test_nothing_but_the_files_of_the_page_is_served(app: ASGIApp, target: str) -> None:
    assert ask(app, "GET", target).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_the_page_is_only_read(app: ASGIApp, method: str) -> None:
    assert ask(app, method, "/ui/index.html").status == 405
    assert ask(app, "OPTIONS", "/ui/index.html").headers["allow"] == "HEAD, GET, OPTIONS"


def test_workers_without_flows_and_other_workers_have_no_page(rig: Rig) -> None:
    connect = public_app(parts_of({None: FakeHerder()}))
    assert ask(connect, "GET", "/ui/").status == 404
    assert ask(connect, "GET", "/", headers={"Accept": CHROMIUM}).status == 200
    assert ask(own_app(rig.parts), "GET", "/ui/").status == 404


# -- who is sent there


@pytest.mark.parametrize("accept", [CHROMIUM, "text/html", "application/json;q=0.5, text/html"])
def test_a_browser_that_asks_for_the_root_or_docs_is_sent_to_the_page(
    app: ASGIApp, accept: str
) -> None:
    reply = ask(app, "GET", "/", headers={"Accept": accept})
    assert (reply.status, reply.headers["location"]) == (303, "ui/")
    assert ask(app, "GET", "/ui", headers={"Accept": accept}).headers["location"] == "ui/"
    docs = ask(app, "GET", "/docs", headers={"Accept": accept})
    assert (docs.status, docs.headers["location"]) == (303, "ui/#/api")


@pytest.mark.parametrize(
    "accept",
    ["", "*/*", "application/json", "application/json, text/html", "text/html;q=0, */*", "text/html;q=x, */*"],
)  # fmt: skip
def test_a_client_that_asks_for_no_html_gets_what_connect_sends(app: ASGIApp, accept: str) -> None:
    reply = ask(app, "GET", "/", headers={"Accept": accept})
    assert reply.status == 200
    assert set(reply.json) == {"version", "commit", "kafka_cluster_id"}


# -- who may see it


def gated(rig: Rig, credentials: RestCredentials) -> ASGIApp:
    settings = RestSettings.of_worker({"rest.insecure": "true"})
    return public_app(replace(rig.parts, gate=gate_for(settings, credentials)))


def test_a_browser_is_asked_for_a_password_where_there_is_one_and_a_connect_client_is_not(
    rig: Rig,
) -> None:
    app = gated(rig, RestCredentials({"ann": "canary-pw"}, {}))
    for target, headers in (
        ("/ui/", {}),
        ("/ui/app.js", {}),
        ("/", {"Accept": CHROMIUM}),
        ("/flows", {PAGE_HEADER: "1"}),
    ):
        reply = ask(app, "GET", target, headers=headers)
        assert reply.status == 401
        assert reply.headers["www-authenticate"].startswith("Basic ")
    for target in ("/", "/flows", "/connectors", "/uix"):
        reply = ask(app, "GET", target)
        assert reply.status == 401
        assert "www-authenticate" not in reply.headers
    by_token = gated(rig, RestCredentials({}, {"robot": "canary-token"}))
    reply = ask(by_token, "GET", "/ui/")
    assert (reply.status, "www-authenticate" in reply.headers) == (401, False)
    admitted = {"Authorization": "Bearer canary-token"}
    assert ask(by_token, "GET", "/ui/", headers=admitted).status == 200


def test_the_page_is_told_who_asks_and_whether_he_may_change_something(rig: Rig) -> None:
    app = gated(rig, RestCredentials({"änn": "pw", "bob": "pw"}, {}, read_only=["bob"]))
    for name, shown, access in (("änn", "%C3%A4nn", "change"), ("bob", "bob", "read")):
        login = b64encode(f"{name}:pw".encode()).decode()
        headers = {"Authorization": f"Basic {login}", PAGE_HEADER: "1"}
        reply = ask(app, "GET", "/flows", headers=headers)
        assert (reply.headers[USER_HEADER], reply.headers[ACCESS_HEADER]) == (shown, access)
        del headers[PAGE_HEADER]
        assert ACCESS_HEADER not in ask(app, "GET", "/flows", headers=headers).headers


# -- what the page reads


def test_a_topic_is_copied_while_one_of_its_partitions_is_and_heartbeats_are_none(rig: Rig) -> None:
    parts = [partition("heartbeats", 0, 0), partition("C.heartbeats", 0, 0)]
    rig.herders[AB].snapshot = snapshot("worker:8083", AB, *parts)
    rig.herders[BA].snapshot = snapshot(
        "worker:8083",
        BA,
        *(partition("t", 0, 0), partition("t", 1, 0, state="HELD"), partition("u", 0, 0)),
        *(partition("v", 0, 0, state="PAUSED"), partition("w", 0, 0, state="PAUSED")),
        partition("w", 1, 0),
    )
    first, second = rig.ask("GET", "/flows").json
    assert (first["topics"], first["partitions"], first["held_partitions"]) == (0, 2, 0)
    assert (second["topics"], second["partitions"], second["held_partitions"]) == (4, 6, 1)
    assert (first["copied_topics"], second["copied_topics"]) == (0, 3)


def test_partitions_of_one_topic_can_be_asked_for(rig: Rig) -> None:
    parts = [partition("t", 0, 0), partition("t", 1, 0), partition("u", 0, 0)]
    rig.herders[AB].snapshot = snapshot("worker:8083", AB, *parts)
    rows = rig.ask("GET", "/flows/A->B/partitions?topic=t").json
    assert [(it["topic"], it["partition"]) for it in rows] == [("t", 0), ("t", 1)]
    assert rig.ask("GET", "/flows/A->B/partitions?topic=v").json == []
    assert rig.ask("GET", "/flows/A->B/partitions?topic=%3Cb%3E").status == 422


# -- what its files hold


def test_vendored_files_are_the_published_ones_and_have_a_licence() -> None:
    table = page_files()["vendor/VENDORED.md"].decode()
    rows = re.findall(r"^\| (\S+\.js) \|.*\| .*?(\S+\.LICENSE) \| ([0-9a-f]{64}) \|$", table, re.M)
    vendored = {name for name in page_files() if re.fullmatch(r"vendor/.*\.js", name)}
    assert {f"vendor/{name}" for name, _, _ in rows} == vendored
    for name, licence, sha256 in rows:
        assert hashlib.sha256(page_files()[f"vendor/{name}"]).hexdigest() == sha256
        assert b"Copyright" in page_files()[f"vendor/{licence}"]


@pytest.mark.parametrize("name", CODE)
def test_our_files_make_no_markup_of_texts_and_name_no_other_host(name: str) -> None:
    text = page_files()[name].decode()
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerously|\beval\(|Function\(|javascript:|srcdoc|https?://|style="
    assert re.findall(forbidden, text) == []
    if name.endswith(".html"):
        assert re.findall(r"<script(?![^>]* src=)|<style|\son\w+=", text) == []


@pytest.mark.parametrize("name", [name for name in CODE if name.endswith(".js")])
def test_every_module_is_there(name: str) -> None:
    for target in re.findall(r'from "\./(.*?)"', page_files()[name].decode()):
        assert target in page_files()


def test_our_javascript_and_css_are_small() -> None:
    lines = sum(page_files()[name].count(b"\n") for name in CODE)
    assert 500 < lines <= MOST_LINES


def themes() -> list[dict[str, str]]:
    """Return the colours of the light and the dark theme."""
    blocks = re.findall(r":root \{(.*?)\}", page_files()["page.css"].decode(), re.S)
    return [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block)) for block in blocks]


def luminance(colour: str) -> float:
    """WCAG 2.1, relative luminance."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        it / 12.92 if it <= 0.03928 else ((it + 0.055) / 1.055) ** 2.4 for it in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("ground", ["ground", "raised"])
def test_texts_have_the_contrast_of_wcag_aa_in_both_themes(ground: str) -> None:
    light, dark = themes()
    texts = light.keys() - {"ground", "raised", "line"}
    assert light.keys() == dark.keys()
    assert texts >= {"text", "muted", "link", "good", "warn", "bad", "off", "note", "unknown"}
    for theme in (light, dark):
        for name in texts:
            one, two = sorted((luminance(theme[name]), luminance(theme[ground])), reverse=True)
            assert (one + 0.05) / (two + 0.05) >= 4.5, (name, theme[name])


@pytest.mark.parametrize("page", ["README.md", "docs/guide/page.md"])
def test_pictures_of_the_page_are_there_and_small(page: str) -> None:
    document = Path(__file__).parents[3] / page
    pictures = re.findall(r"^!\[[^]]+\]\((\S+\.png)\)$", document.read_text("utf-8"), re.M)
    assert pictures
    for picture in pictures:
        assert 10_000 < (document.parent / picture).stat().st_size <= 150_000


# ---- what the page says of flows (``judgement.js``), run by node over random pictures


Picture = dict[str, Any]

PICTURES: Final = 20_000
SCRIPT: Final = """
import { failoverNow, findings, judge, verdict } from "./judgement.js";
let text = "";
for await (const part of process.stdin) text += part;
const said = ([flow, other]) => ({
  of: judge(flow), failover: failoverNow(flow), together: verdict([flow, other]), found: findings([flow]).map((it) => it.kind),
});
console.log(JSON.stringify(JSON.parse(text).map(said)));
"""


def picture(random: random.Random) -> Picture:
    """A flow as ``/flows`` shows it, most of its members as they are where it copies."""

    def often(usual: object, *others: object) -> Any:
        return usual if random.random() < 0.8 else random.choice(others)

    stream = {"engine": "spark", "copied_topics": 0, "held_partitions": 9, "lag_records": None}
    return {
        "flow": "A->B", "source": "A", "target": "B", "since_ms": 0, "records_lost": often(0, 7),
        "engine": "worker",
        "state": often("RUNNING", *{*State, "DISABLED", "DEGRADED", "SUSPENDED", "WAITING"}),
        "topics": often(3, 0), "partitions": often(9, 0), "copied_topics": often(3, 0, None),
        "paused": often([], ["t"]), "held_partitions": often(0, 2, 9), "failed_partitions": often(0, 1),
        "lag_records": often(0, 5, None), "lag_ms": often(0, 5, 90_000, None),
        "records_per_s": often(10.0, 0.0, None), "notes": often([], ["n"]),
        "errors": often([], [{"where": "t-0", "message": "m", "away": False, "command": ""}]),
        "incomplete": often([], ["http://w/"]),
        **often({}, stream),
    }  # fmt: skip


def copies(flow: Picture) -> bool:
    """Whether all of it is known to be copied, or to be on its way."""
    moves = flow["records_per_s"] or (flow["lag_ms"] is not None and flow["lag_ms"] <= 30_000)
    return bool(
        flow["state"] == "RUNNING"
        and min(flow["topics"], flow["partitions"]) > 0
        and flow["copied_topics"] != 0
        and not any(flow[it] for it in ("failed_partitions", "held_partitions", "paused"))
        and not any(flow[it] for it in ("errors", "incomplete", "notes"))
        and flow["lag_records"] is not None
        and (flow["lag_records"] == 0 or moves)
    )


def is_at_work(flow: Picture) -> bool:
    """Whether anything of it is copied."""
    return bool(flow["state"] == "RUNNING" and flow["copied_topics"] != 0 and flow["topics"] > 0)


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
def test_nothing_is_good_while_nothing_is_copied(tmp_path: Path) -> None:
    for name in ("judgement.js", "words.js"):
        (tmp_path / name).write_bytes(page_files()[name])
    (tmp_path / "said.js").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="ascii")
    seeded = random.Random(11)
    pairs = [(picture(seeded), picture(seeded)) for _ in range(PICTURES)]
    told = subprocess.run(
        ["node", str(tmp_path / "said.js")],
        input=json.dumps(pairs), capture_output=True, text=True, timeout=90, check=True,
    ).stdout  # fmt: skip
    wrong = [
        (flow, other, said)
        for (flow, other), said in zip(pairs, json.loads(told), strict=True)
        if not all(holds(flow, other, said))
    ]
    assert wrong == [], wrong[:2]


def holds(flow: Picture, other: Picture, said: Picture) -> list[bool]:
    """Which of the claims hold of a flow, and of it beside another one."""
    kind, ready, both = said["of"]["kind"], said["failover"][0], said["together"]["kind"]
    return [
        (kind == "good") <= copies(flow),
        (kind == "note") <= is_at_work(flow),
        (kind in {"good", "note"}) or bool(said["of"]["text"] and said["of"]["command"]),
        (ready == "good") <= (copies(flow) or copies({**flow, "notes": []})),
        (both == "good") <= all(starmap(good_or_off, ((flow,), (other,)))),
        (both in {"good", "note"}) <= (is_at_work(flow) or is_at_work(other)),
        # What is wrong is named, whatever else is said.
        (flow["records_lost"] > 0) <= ("warn" in said["found"]),
        (kind in {"bad", "warn", "unknown"}) <= (kind in said["found"] or bool(flow["errors"])),
    ]


def good_or_off(flow: Picture) -> bool:
    """Whether a verdict that is good may leave it aside: it copies, notes aside, or is not enabled."""
    return flow["state"] == "DISABLED" or copies({**flow, "notes": []})
