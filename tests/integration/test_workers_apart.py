"""Two workers of a flow without HTTP between them, in one direction or in both, or with clocks two minutes apart.

Flow: one worker leads, another one joins -> a topic is created -> it is copied -> the displays of both say what is
wrong -> the leader leaves -> the next topic is copied by the one that is left.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import pytest

from tests.integration.exactly_once import ENABLED, assert_each_once
from tests.integration.flow_questions import Asked, path_of
from tests.integration.mirror_process import (
    SHORT_SESSION,
    Flow,
    Mirror,
    running,
    until,
    until_equal,
)
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, write
from tests.kit.kafka.ports import free_ports
from tests.kit.matrix import matrix

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(480)]

SHIFT: Final = Path(__file__).parents[1] / "data" / "clock" / "shifted_clock.c"
SHIFT_S: Final = 120
RECORDS: Final = 100


def behind_a_firewall(file: Path, name: str) -> Path:
    """Write the file of a worker whose internal listener is not where the group has it."""
    (port,) = free_ports(1)
    lines = f"internal.listener = http://127.0.0.1:{port}\nrest.advertised.host.name = 127.9.9.9\n"
    own = file.with_name(f"{file.stem}-{name}.properties")
    own.write_text(file.read_text(encoding="latin-1") + lines, encoding="latin-1")
    return own


def ahead(folder: Path) -> Mapping[str, str]:
    """Return the environment of a process whose wall clock is ahead."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no compiler for the library that shifts a clock")
    library = folder / "shifted_clock.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(SHIFT), "-ldl"]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library), "SHIFT_S": str(SHIFT_S)}


def described(worker: Mirror, flow: Flow) -> dict[str, Any]:
    """Return the flow as a worker lists it, and describes it."""
    status, flows = ask(f"{public_url(worker)}flows")
    assert status == 200
    listed = cast("dict[str, Any]", next(it for it in flows if it["source"] == flow.source_alias))
    status, alone = ask(f"{public_url(worker)}flows/{flow.name}")
    assert status == 200, alone
    same = all(alone[name] == listed[name] for name in ("state", "errors"))
    return listed if same else {"state": alone["state"], "errors": [*alone["errors"], "differs"]}


@pytest.mark.parametrize(
    ("support", "apart", "at_once"),
    matrix(
        [(SHORT_SESSION, "both", 1), (ENABLED, "one", 1), (SHORT_SESSION, "clocks", 1)],
        [(ENABLED, "both", 1), (SHORT_SESSION, "one", 1), (ENABLED, "clocks", 1)]
        + [(SHORT_SESSION, apart, 40) for apart in ("both", "one", "clocks")],
    ),
)
def test_new_topics_are_copied_and_displays_say_what_is_wrong(
    setup: Setup, apart: str, support: Mapping[str, str], at_once: int
) -> None:
    prefix = setup.unique("apart")

    def create_topics(number: int) -> list[str]:
        names = [f"{prefix}-{number}-{index}" for index in range(at_once)]
        for name in names:
            setup.create_topic(setup.a, name, 2)
            write(setup.a, name, [Sent(n % 2, b"%d" % n) for n in range(RECORDS)])
        return names

    def assert_copied(worker: Mirror, names: Sequence[str]) -> None:
        assert {assert_each_once(worker, flow, name) for name in names} == {RECORDS}

    topics = {"tasks.max": "2", "refresh.topics.interval.seconds": "1", **support}
    flow = setup.flow(f"{prefix}-.*", topics)
    first_file = second_file = flow.file
    environ: Mapping[str, str] = {}
    if apart == "clocks":
        environ = ahead(setup.folder)
    else:
        first_file = behind_a_firewall(flow.file, "first")
    if apart == "both":
        second_file = behind_a_firewall(flow.file, "second")
    oldest = create_topics(0)
    with Mirror(first_file, name="first") as first:
        first.wait_ready()
        with running(second_file, name="second", environ=environ) as second:
            assert_copied(first, oldest)
            assert_copied(first, create_topics(1))
            until(lambda: is_told(apart, first, second, flow), 90, "what is wrong", alive=first)
            if apart == "clocks":
                for change in ("pause", "resume"):
                    Asked(second).done("POST", f"{path_of(flow)}/{change}")
            assert first.stop() == 0
            assert_copied(second, create_topics(2))
            until_equal(lambda: described(second, flow)["errors"], [], alive=second)


def is_told(apart: str, first: Mirror, second: Mirror, flow: Flow) -> bool:
    """Whether each worker names the one that it cannot ask, and nothing else."""
    leader, other = described(first, flow), described(second, flow)
    blind = {"both": (leader, other), "one": (other,), "clocks": ()}[apart]
    return all(
        (it["state"], len(it["errors"])) == ("DEGRADED", 1)
        and it["errors"][0]["where"].startswith("http://127.9.9.9:")
        and "gave no answer" in it["errors"][0]["message"]
        if it in blind
        else (it["state"], it["errors"]) == ("RUNNING", [])
        for it in (leader, other)
    )
