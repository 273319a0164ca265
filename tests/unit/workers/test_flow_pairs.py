"""Which flows a process may run beside those of its file."""

from pathlib import Path

import pytest

from mm2py.config.lint import load_checked
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import Metrics
from mm2py.testing.clock import FakeClock
from mm2py_connectors.config import CONNECTORS
from mm2py_workers.wiring import build_node

FILE = """clusters = A, B, C
A.bootstrap.servers = 127.0.0.1:1
B.bootstrap.servers = 127.0.0.1:1
C.bootstrap.servers = 127.0.0.1:1
A->B.enabled = true
B->C.enabled = true
emit.heartbeats.enabled = false
"""


@pytest.mark.parametrize(
    ("targets", "runs", "may", "elsewhere"),
    [
        (None, ["A->B", "B->C"], ["A->B", "A->C", "B->A", "B->C", "C->A", "C->B"], []),
        (["B"], ["A->B"], ["A->B", "C->B"], ["B->C"]),
    ],
)
async def test_flows_to_the_chosen_targets_may_be_added(
    tmp_path: Path, targets: list[str] | None, runs: list[str], may: list[str], elsewhere: list[str]
) -> None:
    path = tmp_path / "mm2.properties"
    path.write_text(FILE)
    config, _ = load_checked(path, CONNECTORS)
    clock = FakeClock()

    node = build_node(
        config, metrics=Metrics(clock), clock=clock, mask=SecretMask(), targets=targets
    )
    assert sorted(map(str, node.fleet.nodes)) == runs
    assert sorted(map(str, node.fleet.pairs)) == may
    assert sorted(map(str, node.fleet.elsewhere)) == elsewhere
    assert all(node.fleet.file(pair) for pair in node.fleet.pairs)
    assert await node.stop(1)
