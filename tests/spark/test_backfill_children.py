"""``mm2py backfill`` as a child process of a worker: how it ends, and what is missing."""

import asyncio
from pathlib import Path

import pytest

from mm2py.mirror.backfills import Order
from mm2py.types import ClusterAlias, FlowName
from mm2py_jobs.copy.backfill_children import BackfillChildren
from mm2py_jobs.spark import session
from tests.integration.mirror_process import write_file

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(120)]

FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))
ORDER = Order(id="j", master="local[2]")


@pytest.fixture
def children(tmp_path: Path) -> BackfillChildren:
    """A worker whose clusters do not answer."""
    file = tmp_path / "mm2.properties"
    dead = {f"{alias}.bootstrap.servers": "127.0.0.1:9" for alias in "AB"}
    write_file(file, {"clusters": "A, B", "A->B.enabled": "true", **dead})
    return BackfillChildren(file)


async def test_why_a_command_failed_is_its_last_word(children: BackfillChildren) -> None:
    planned = await children.plan(FLOW, ORDER)
    assert (planned.code, planned.out) == (1, "")
    assert "127.0.0.1:9" in planned.cause
    usage = await children.run(FLOW, Order(id="j", start="yesterday", wait_executors_s=600))
    assert usage.code == 2
    assert "--from 'yesterday' is not understood" in usage.cause
    refused = await children.run(FLOW, Order(id="j", wait_executors_s=-1))
    assert "--wait-executors" in " ".join(refused.log)


async def test_a_child_that_is_ended_with_its_worker_leaves_nothing_behind(
    children: BackfillChildren,
) -> None:
    running = asyncio.create_task(children.run(FLOW, ORDER))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        while not children.running:  # noqa: ASYNC110 - a process is started
            await asyncio.sleep(0.01)
        await children.close()
        ended = await running
    assert ended.code != 0
    assert not children.running


async def test_a_missing_extra_or_java_is_named(
    children: BackfillChildren, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await children.missing("") == ""
    monkeypatch.setenv("MM2PY_JAVA", "/nowhere/java")
    assert "no Java 17" in await children.missing("local[2]")
    assert await children.missing("sc://host") == ""  # its server has one

    def nothing(name: str) -> None:
        del name

    monkeypatch.setattr(session, "find_spec", nothing)
    assert "pip install 'mm2py[spark]'" in await children.missing("")
