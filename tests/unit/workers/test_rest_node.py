"""A worker's REST: where workers and commands reach it, what the gate judges, and what it logs."""

import asyncio
import base64
import json
import logging
import os
import re
import stat
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.rest_settings import RestSettings
from mm2py.errors import UsageError
from mm2py.observability.logging import SecretMask
from mm2py.rest.forwarding import http_client
from mm2py.runtime.plugins.plugins import Plugins
from mm2py_workers.flow_parts import NodeParts
from mm2py_workers.rest_node import RestNode
from mm2py_workers.rest_wiring import open_rest
from mm2py_workers.served import Served
from mm2py_workers.worker_place import STATE_DIR, NoWorkerError, WorkerPlace, find_worker
from tests.certificates import PASSWORD, Authority
from tests.unit.cli.cli_api import FLOW, FakeApi
from tests.unit.rest.rest_fakes import FakeCatalog, FakeHerder, FakeValidator, state
from tests.unit.runtime.runtime_fakes import FakeLoggers

# -- where other workers reach a process -----------------------------------------------------------

LOCAL_BROKER = [("127.0.0.1", 9092)]


def bound(props: dict[str, str]) -> tuple[str, str]:
    """Return scheme and host of the URL, and the address that is bound."""
    settings = RestSettings.of_flow_file({"listeners": "http://127.0.0.1:0", **props})
    node = RestNode.bind(settings, LOCAL_BROKER)
    address: str = node.internal.sock.getsockname()[0]
    node.internal.sock.close()
    url = urlsplit(node.url)
    return f"{url.scheme}://{url.hostname}", address


@pytest.mark.parametrize(
    ("props", "url", "address"),
    [
        ({}, "http://127.0.0.1", "127.0.0.1"),
        ({"internal.listener": "http://:0"}, "http://127.0.0.1", "0.0.0.0"),  # noqa: S104
        ({"internal.listener": "http://127.0.0.2:0"}, "http://127.0.0.2", "127.0.0.2"),
        # The name may be another address of this machine than the one towards the brokers.
        ({"rest.advertised.host.name": "worker-1"}, "http://worker-1", "0.0.0.0"),  # noqa: S104
    ],
)
def test_the_internal_listener_is_bound_to_the_address_that_is_advertised(
    props: dict[str, str], url: str, address: str
) -> None:
    assert bound(props) == (url, address)


@pytest.mark.parametrize(
    ("given", "url", "notice"),
    [
        ({}, "https://127.0.0.1", ""),
        ({"internal.listener": "http://127.0.0.1:0"}, "http://127.0.0.1", ""),
        ({"rest.advertised.host.name": "w-1"}, "http://w-1", "signed and not encrypted.* at w-1;"),
    ],
)
def test_the_internal_listener_has_https_where_the_public_one_has_a_certificate_for_it(
    tmp_path: Path, given: dict[str, str], url: str, notice: str
) -> None:
    authority = Authority()
    stores = {
        "keystore": authority.issue("worker").pkcs12(tmp_path / "own.p12"),
        "truststore": authority.truststore(tmp_path / "trust.p12"),
    }
    props = {"listeners": "https://127.0.0.1:0", **given}
    for name, file in stores.items():
        prefix = f"listeners.https.ssl.{name}"
        props |= {
            f"{prefix}.type": "PKCS12",
            f"{prefix}.location": str(file),
            f"{prefix}.password": PASSWORD,
        }
    node = RestNode.bind(RestSettings.of_worker(props), [])
    node.internal.sock.close()
    assert node.url.rpartition(":")[0] == url
    assert re.search(notice, "".join(node.settings.notices))
    assert bool(notice) is any("encrypted" in it for it in node.settings.notices)


# -- both applications as a worker serves them -----------------------------------------------------

LOCAL = {"listeners": "http://127.0.0.1:0", "internal.listener": "http://127.0.0.1:0"}
Use = Callable[[str, httpx.AsyncClient], Awaitable[None]]


def served(props: Mapping[str, str], use: Use) -> FakeHerder:
    """Run a worker's REST on loopback around ``use``, which gets the public URL."""
    settings = RestSettings.of_worker({**LOCAL, **props})
    herder = FakeHerder(configs={"c": {"name": "c"}}, states={"c": state("c")})

    async def run() -> None:
        node = RestNode.bind(settings, [])
        parts = NodeParts(
            url=node.url,
            worker_id=node.worker_id,
            plugins=Plugins([]),
            catalog=FakeCatalog(),
            validator=FakeValidator(),
            loggers=FakeLoggers(),
            mask=SecretMask(),
            peers=node.peers,
            file_texts=lambda _flow, _name: {},
            clock=SYSTEM_CLOCK,
        )
        running = await open_rest(
            Served({None: herder}, parts),
            settings,
            url=node.url,
            internal=node.internal,
            http=lambda: node.http,
        )
        try:
            async with http_client() as client:
                await use(running.public_urls[0], client)
        finally:
            await running.stop(1)
            await node.stop()

    asyncio.run(run())
    return herder


@pytest.mark.parametrize(
    ("method", "target", "path"),
    [
        ("PUT", "connectors/c/pause", "/connectors/c/pause"),
        ("PUT", "connectors/c/pause;%2Fconfig%2Fvalidate", "/connectors/c/pause"),
        ("DELETE", "connectors/c;%2Fconfig%2Fvalidate", "/connectors/c"),
        ("PUT", "connector-plugins/p/config/validate", "/connector-plugins/p/config/validate"),
    ],
)
def test_every_change_is_logged_under_the_path_that_the_routes_see(
    caplog: pytest.LogCaptureFixture, method: str, target: str, path: str
) -> None:
    caplog.set_level(logging.INFO, logger="mm2py.rest.security")

    async def use(url: str, client: httpx.AsyncClient) -> None:
        body = b"{}" if method == "PUT" else b""
        headers = {"Content-Type": "application/json"}
        answer = await client.request(method, url + target, content=body, headers=headers)
        assert answer.status_code < 300

    served({}, use)
    assert [record.message.split()[2:5] for record in caplog.records] == [
        ["caller=anonymous", f"method={method}", f"path={path}"]
    ]


@pytest.mark.parametrize("target", ["admin/loggers", "admin;x/loggers", "%61dmin/loggers", "admin%3Bx/../loggers"])  # fmt: skip
def test_admin_is_off_under_every_spelling_of_its_path(target: str) -> None:
    async def use(url: str, client: httpx.AsyncClient) -> None:
        assert (await client.get(url + target)).status_code == 404

    served({"admin.listeners": ""}, use)


def test_what_is_too_long_for_a_record_is_refused_before_anything_is_written() -> None:
    async def use(url: str, client: httpx.AsyncClient) -> None:
        for config in ({"k" * 256: "x"}, {"x.note": "x" * 600_000}, {"a": "x" * 500_000, "b": "x" * 500_000}):  # fmt: skip
            answer = await client.put(f"{url}connectors/c/config", json=config)
            assert answer.status_code == 400
            assert "at most" in answer.json()["message"]
        name = "n" * 256
        answer = await client.post(f"{url}connectors", json={"name": name, "config": {}})
        assert answer.status_code == 400

    assert not [call for call in served({}, use).calls if call[0] != "info"]


def test_an_operators_password_opens_every_path_and_a_wrong_one_none(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("ann=canary-word\n")

    async def use(url: str, client: httpx.AsyncClient) -> None:
        for password, status in (("canary-word", 200), ("other", 401)):
            token = base64.b64encode(f"ann:{password}".encode()).decode()
            headers = {"Authorization": f"Basic {token}"}
            assert (await client.get(f"{url}connectors", headers=headers)).status_code == status

    served({"rest.basic.auth.file": str(tmp_path / "users")}, use)


# -- commands find the worker of their file; where that is not known they refuse to guess


URL = "http://127.0.0.1:43211/"


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    return {STATE_DIR: str(tmp_path / "state"), "MM2PY_URL": ""}


@contextmanager
def running(file: Path, places: dict[str, str], *urls: str) -> Generator[WorkerPlace]:
    place = WorkerPlace(str(file), places)
    place.begin()
    place.open(urls or (URL,))
    try:
        yield place
    finally:
        place.close()


def is_known(places: dict[str, str]) -> bool:
    try:
        find_worker(None, places)
    except NoWorkerError:
        return False
    return True


def test_a_command_asks_the_worker_of_its_file_wherever_it_listens(
    tmp_path: Path, places: dict[str, str]
) -> None:
    file = tmp_path / "mm2.properties"
    with running(file, places):
        assert find_worker(file, places) == find_worker(None, places) == URL
        api = FakeApi({("GET", "/flows"): [FLOW]})
        assert api.run("flow", "list", "--file", str(file), env=places).code == 0
        assert str(api.requests[0].url) == f"{URL}flows"
    assert not is_known(places)
    assert list((tmp_path / "state").iterdir()) == []


def test_without_a_worker_no_other_one_is_asked(tmp_path: Path, places: dict[str, str]) -> None:
    api = FakeApi({("GET", "/flows"): [FLOW]})
    for words in (("flow", "list"), ("flow", "pause", "A/B"), ("lag",)):
        ended = api.run(*words, env=places)
        said = "no worker of this user" in ended.err and "--url" in ended.err
        assert (ended.code, said) == (2, True), ended.err
    assert api.requests == []
    place = WorkerPlace(str(tmp_path / "mm2.properties"), places)
    place.begin()
    ended = api.run("flow", "list", env=places)
    assert (ended.code, "has not opened REST yet; try again" in ended.err) == (2, True)
    place.open([URL])
    assert find_worker(None, places) == URL
    place.close()
    with pytest.raises(UsageError, match=r"no worker of .*mm2\.properties of this user"):
        find_worker(tmp_path / "mm2.properties", places)
    ended = api.run("flow", "list", "--url", "http://a:1", "--file", "x", env=places)
    assert (ended.code, "both given" in ended.err) == (2, True)


def test_workers_of_two_files_are_told_apart_and_none_is_guessed(
    tmp_path: Path, places: dict[str, str]
) -> None:
    one, two = tmp_path / "one.properties", tmp_path / "two.properties"
    with running(one, places):
        path = next((tmp_path / "state").iterdir())
        path.rename(path.with_name("other.json"))  # of another process
        with running(two, places, "http://127.0.0.1:9/"):
            assert find_worker(two, places) == "http://127.0.0.1:9/"
            ended = FakeApi().run("flow", "list", env=places)
            said = "one.properties at" in ended.err and "--file" in ended.err
            assert (ended.code, said) == (2, True), ended.err


KILLED = {"file": "mm2.properties", "pid": os.getpid(), "url": URL}


@pytest.mark.parametrize("text", ["", "[]", '{"file": 1}', "{"])
def test_an_unreadable_entry_is_ignored_and_what_a_killed_worker_left(
    tmp_path: Path, places: dict[str, str], text: str
) -> None:
    with running(tmp_path / "mm2.properties", places):
        next((tmp_path / "state").iterdir()).write_text(text)
        (tmp_path / "state" / "left.json").write_text(json.dumps(KILLED))
        assert not is_known(places)


def test_a_directory_open_to_others_is_not_trusted(tmp_path: Path, places: dict[str, str]) -> None:
    with running(tmp_path / "mm2.properties", places):
        (tmp_path / "state").chmod(0o777)
        assert not is_known(places)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o777


@pytest.mark.parametrize(
    ("urls", "wanted"),
    [
        (["https://10.0.0.5:8443/", "http://127.0.0.1:8083/"], "http://127.0.0.1:8083/"),
        (["http://0.0.0.0:8083/"], "http://localhost:8083/"),
        (["https://10.0.0.5:8443/"], "https://10.0.0.5:8443/"),
    ],
)
def test_the_nearest_address_is_the_one_for_commands(
    tmp_path: Path, places: dict[str, str], urls: list[str], wanted: str
) -> None:
    with running(tmp_path / "mm2.properties", places, *urls):
        assert find_worker(None, places) == wanted
