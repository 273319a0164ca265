"""The page at ``/ui``: files, headers, who is sent there, who is asked for a password, and what its files may not hold."""

import hashlib
import re
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.types import ASGIApp

from mm2py.config.rest_settings import RestSettings
from mm2py.rest.app import own_app, public_app
from mm2py.rest.credentials import RestCredentials
from mm2py.rest.page import HEADERS, PAGE_HEADER, POLICY, page_files
from mm2py.rest.security import ACCESS_HEADER, USER_HEADER, gate_for
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
def test_every_file_has_a_type_and_headers_that_allow_nothing_from_elsewhere(
    app: ASGIApp, name: str
) -> None:
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
def test_a_browser_that_asks_for_the_root_is_sent_to_the_page(app: ASGIApp, accept: str) -> None:
    reply = ask(app, "GET", "/", headers={"Accept": accept})
    assert (reply.status, reply.headers["location"]) == (303, "ui/")
    assert ask(app, "GET", "/ui", headers={"Accept": accept}).headers["location"] == "ui/"


def test_docs_leads_to_the_description_on_the_page(app: ASGIApp) -> None:
    reply = ask(app, "GET", "/docs")
    assert (reply.status, reply.headers["location"]) == (303, "ui/#/api")


@pytest.mark.parametrize(
    "accept",
    ["", "*/*", "application/json", "application/json, text/html", "text/html;q=0, */*", "text/html;q=x, */*"],
)  # fmt: skip
def test_a_client_that_does_not_ask_for_html_gets_what_connect_sends(
    app: ASGIApp, accept: str
) -> None:
    reply = ask(app, "GET", "/", headers={"Accept": accept})
    assert reply.status == 200
    assert set(reply.json) == {"version", "commit", "kafka_cluster_id"}


# -- who may see it


def gated(rig: Rig, credentials: RestCredentials) -> ASGIApp:
    settings = RestSettings.of_worker({"rest.insecure": "true"})
    return public_app(replace(rig.parts, gate=gate_for(settings, credentials)))


def test_a_browser_is_asked_for_a_password_and_a_connect_client_is_not(rig: Rig) -> None:
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


def test_the_page_is_told_who_asks_and_whether_he_may_change_something(rig: Rig) -> None:
    app = gated(rig, RestCredentials({"änn": "pw", "bob": "pw"}, {}, read_only=["bob"]))
    for name, shown, access in (("änn", "%C3%A4nn", "change"), ("bob", "bob", "read")):
        login = b64encode(f"{name}:pw".encode()).decode()
        headers = {"Authorization": f"Basic {login}", PAGE_HEADER: "1"}
        reply = ask(app, "GET", "/flows", headers=headers)
        assert (reply.headers[USER_HEADER], reply.headers[ACCESS_HEADER]) == (shown, access)
        del headers[PAGE_HEADER]
        assert ACCESS_HEADER not in ask(app, "GET", "/flows", headers=headers).headers


def test_where_no_password_admits_a_caller_none_is_asked_for(rig: Rig) -> None:
    app = gated(rig, RestCredentials({}, {"robot": "canary-token"}))
    reply = ask(app, "GET", "/ui/")
    assert reply.status == 401
    assert "www-authenticate" not in reply.headers
    admitted = ask(app, "GET", "/ui/", headers={"Authorization": "Bearer canary-token"})
    assert admitted.status == 200


def test_a_name_that_leads_elsewhere_gets_no_page(rig: Rig) -> None:
    gate = gate_for(RestSettings.of_worker({}), RestCredentials({}, {}))
    app = public_app(replace(rig.parts, gate=gate))
    assert ask(app, "GET", "/ui/", headers={"Host": "evil.example"}).status == 403
    assert ask(app, "GET", "/ui/", headers={"Host": "localhost:8083"}).status == 200


# -- what the page reads


def test_heartbeats_are_no_topic_of_a_flow_and_held_partitions_are_counted(rig: Rig) -> None:
    parts = [partition("heartbeats", 0, 0), partition("C.heartbeats", 0, 0)]
    rig.herders[AB].snapshot = snapshot("worker:8083", AB, *parts)
    rig.herders[BA].snapshot = snapshot(
        "worker:8083",
        BA,
        *(partition("t", 0, 0), partition("t", 1, 0, state="HELD"), partition("u", 0, 0)),
    )
    first, second = rig.ask("GET", "/flows").json
    assert (first["topics"], first["partitions"], first["held_partitions"]) == (0, 2, 0)
    assert (second["topics"], second["partitions"], second["held_partitions"]) == (2, 3, 1)
    assert (first["copied_topics"], second["copied_topics"]) == (0, 2)


def test_a_topic_is_copied_while_one_of_its_partitions_is(rig: Rig) -> None:
    rig.herders[AB].snapshot = snapshot(
        "worker:8083",
        AB,
        partition("t", 0, 0, state="PAUSED"),
        partition("t", 1, 0),
        *(partition("u", 0, 0, state="PAUSED"), partition("heartbeats", 0, 0)),
    )
    flow = rig.ask("GET", "/flows/A->B").json
    assert (flow["topics"], flow["copied_topics"]) == (2, 1)


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
