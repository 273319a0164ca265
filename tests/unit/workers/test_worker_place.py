"""Commands find the worker of their file; where that is not known they refuse to guess."""

import json
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mm2py.errors import UsageError
from mm2py_workers.worker_place import STATE_DIR, NoWorkerError, WorkerPlace, find_worker
from tests.unit.cli.cli_api import FLOW, FakeApi

URL = "http://127.0.0.1:43211/"


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    return {STATE_DIR: str(tmp_path / "state"), "MM2PY_URL": ""}


@contextmanager
def running(file: Path, state: dict[str, str], *urls: str) -> Generator[WorkerPlace]:
    place = WorkerPlace(str(file), state)
    place.begin()
    place.open(urls or (URL,))
    try:
        yield place
    finally:
        place.close()


def is_known(state: dict[str, str]) -> bool:
    try:
        find_worker(None, state)
    except NoWorkerError:
        return False
    return True


def test_a_command_asks_the_worker_of_its_file_wherever_it_listens(
    tmp_path: Path, state: dict[str, str]
) -> None:
    file = tmp_path / "mm2.properties"
    with running(file, state):
        assert find_worker(file, state) == find_worker(None, state) == URL
        api = FakeApi({("GET", "/flows"): [FLOW]})
        assert api.run("flow", "list", "--file", str(file), env=state).code == 0
        assert str(api.requests[0].url) == f"{URL}flows"
    assert not is_known(state)
    assert list((tmp_path / "state").iterdir()) == []


def test_without_a_worker_no_other_one_is_asked(tmp_path: Path, state: dict[str, str]) -> None:
    api = FakeApi({("GET", "/flows"): [FLOW]})
    for words in (("flow", "list"), ("flow", "pause", "A/B"), ("lag",)):
        ended = api.run(*words, env=state)
        said = "no worker of this user" in ended.err and "--url" in ended.err
        assert (ended.code, said) == (2, True), ended.err
    assert api.requests == []
    place = WorkerPlace(str(tmp_path / "mm2.properties"), state)
    place.begin()
    ended = api.run("flow", "list", env=state)
    assert (ended.code, "has not opened REST yet; try again" in ended.err) == (2, True)
    place.open([URL])
    assert find_worker(None, state) == URL
    place.close()


def test_workers_of_two_files_are_told_apart_and_none_is_guessed(
    tmp_path: Path, state: dict[str, str]
) -> None:
    one, two = tmp_path / "one.properties", tmp_path / "two.properties"
    with running(one, state):
        path = next((tmp_path / "state").iterdir())
        path.rename(path.with_name("other.json"))  # of another process
        with running(two, state, "http://127.0.0.1:9/"):
            assert find_worker(two, state) == "http://127.0.0.1:9/"
            ended = FakeApi().run("flow", "list", env=state)
            said = "one.properties at" in ended.err and "--file" in ended.err
            assert (ended.code, said) == (2, True), ended.err


def test_a_file_without_a_worker_is_named(tmp_path: Path, state: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"no worker of .*mm2\.properties of this user"):
        find_worker(tmp_path / "mm2.properties", state)
    ended = FakeApi().run("flow", "list", "--url", "http://a:1", "--file", "x", env=state)
    assert (ended.code, "both given" in ended.err) == (2, True)


def test_what_a_killed_worker_left_is_ignored(tmp_path: Path, state: dict[str, str]) -> None:
    file = tmp_path / "mm2.properties"
    (tmp_path / "state").mkdir(mode=0o700)
    left = {"file": str(file), "pid": os.getpid(), "url": URL}
    (tmp_path / "state" / "left.json").write_text(json.dumps(left))
    assert not is_known(state)


@pytest.mark.parametrize("text", ["", "[]", '{"file": 1}', "{"])
def test_an_entry_that_cannot_be_read_is_ignored(
    tmp_path: Path, state: dict[str, str], text: str
) -> None:
    with running(tmp_path / "mm2.properties", state):
        next((tmp_path / "state").iterdir()).write_text(text)
        assert not is_known(state)


def test_a_directory_that_others_may_write_is_not_trusted(
    tmp_path: Path, state: dict[str, str]
) -> None:
    with running(tmp_path / "mm2.properties", state):
        (tmp_path / "state").chmod(0o777)
        assert not is_known(state)
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
    tmp_path: Path, state: dict[str, str], urls: list[str], wanted: str
) -> None:
    with running(tmp_path / "mm2.properties", state, *urls):
        assert find_worker(None, state) == wanted
