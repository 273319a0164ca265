"""What every task of a flow is built from, in a worker as in a task host.

Flow: worker properties + offset store + where to report -> ``task_assembly`` -> ``TaskBuilder``. It opens no
connection.
"""

from collections.abc import Mapping
from functools import partial

from mm2py.clock import Clock
from mm2py.config.worker import WorkerConfig
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.offset_committer import OffsetStore
from mm2py.runtime.tasks.record_task import Conversion
from mm2py.runtime.tasks.task_assembly import FlowReports, TaskAssembly, TaskParts
from mm2py.types import FlowName
from mm2py_workers.target_link import TargetLinks

__all__ = ["task_assembly"]


def task_assembly(
    flow: FlowName,
    props: Mapping[str, str],
    worker: WorkerConfig,
    *,
    plugins: Plugins,
    store: OffsetStore,
    reports: FlowReports,
    target_name: str,
    clock: Clock,
) -> TaskAssembly:
    """Return what builds the tasks of a flow; ``props`` are its worker config, resolved."""
    links = TargetLinks(props, flow.target, clock)
    return TaskAssembly(
        TaskParts(
            plugins=plugins,
            store=store,
            meter=reports.meter,
            clock=clock,
            sender=links.sender,
            buffer_memory=links.buffer_memory,
            offset_flush_interval_ms=worker.offset_flush_interval_ms,
            offset_flush_timeout_ms=worker.offset_flush_timeout_ms,
            graceful_timeout_ms=worker.task_shutdown_graceful_timeout_ms,
            target_name=target_name,
            events=reports.events,
            conversion=partial(Conversion.of, props),
            on_topic=reports.on_topic,
        )
    )
