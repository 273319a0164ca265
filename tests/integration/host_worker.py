"""A worker that a test may kill: ``python -m tests.integration.host_worker HOW...`` starts a task of the connector
``Blocking`` per argument, which must be installed, and prints the process ids of their hosts."""

import asyncio
import sys

from mm2py.runtime.tasks.task_host import TaskSpec
from mm2py.types import TaskId
from tests.integration.test_task_host_process import Flow


async def _work(hows: list[str]) -> None:
    flow = Flow()
    starting = [
        asyncio.create_task(
            flow.host.start_task(
                TaskSpec(
                    id=TaskId("c", number),
                    connector_config={"connector.class": "Blocking"},
                    config={"how": how},
                )
            )
        )
        for number, how in enumerate(hows)
    ]
    while len(flow.pool.pids) < len(hows):  # noqa: ASYNC110 - the pool is not awaited by tests
        await asyncio.sleep(0.01)
    print(*flow.pool.pids, flush=True)  # noqa: T201 - the test reads it
    await asyncio.gather(*starting)


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1:]))
