"""Where a worker's tasks live: in this process, or in a pool of child processes.

Flow: ``task.host.processes`` -> ``host_pool`` -> one pool per process, for all its flows -> ``task_host`` per
flow, which is a ``child_host`` over the pool where there is one.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Final

from mm2py.client.permit import Permit
from mm2py.clock import Clock
from mm2py.config.definitions import parse_config
from mm2py.config.worker import ProcessConfig, WorkerConfig
from mm2py.errors import ConfigError
from mm2py.observability.logging import level_name
from mm2py.runtime.hosts.child_host import ChildTaskHost
from mm2py.runtime.hosts.pool import HostPool
from mm2py.runtime.hosts.process import HostStarter
from mm2py.runtime.hosts.service import FlowSpec
from mm2py.runtime.plugins.catalog import plugin_type
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.offset_committer import OffsetStore
from mm2py.runtime.tasks.task_assembly import FlowReports
from mm2py.runtime.tasks.task_host import InProcessTaskHost, TaskHost, TaskSpec, TaskWatcher
from mm2py.runtime.tasks.task_transactions import StartGuard
from mm2py.storage.offset_map_store import MapStore
from mm2py.storage.producer_id_store import ProducerIdStore
from mm2py.types import FlowName
from mm2py_connectors.partition_deal import ASSIGNED_PARTITIONS
from mm2py_workers.hosted_flow import task_assembly
from mm2py_workers.node_parts import NodeParts
from mm2py_workers.process_memory import give_back, keep_freed_memory
from mm2py_workers.task_host import run_host

PROCESSES: Final = "task.host.processes"
STARTER_COMMAND: Final = (sys.executable, "-P", "-m", "mm2py_workers.task_host")
"""``-P``: ``-m`` alone would import from the working directory first, where others may write."""


def host_processes(props: Mapping[str, str]) -> int:
    """Return how many child processes tasks may use, one per core by default; 0: they live in this process.

    Raises:
        ConfigError: the value is no such number.
    """
    given = parse_config(ProcessConfig, props).task_host_processes
    return len(os.sched_getaffinity(0)) if given is None else given


def host_starter(clock: Clock) -> HostStarter:
    """Return what starts task hosts; see ``HostStarter.fork_now``."""
    return HostStarter(STARTER_COMMAND, version=version("mm2py"), clock=clock)


def forked_starter(processes: int, clock: Clock) -> HostStarter:
    """Return what starts task hosts, forked if there will be any; called without a thread or a loop."""
    starter = host_starter(clock)
    if processes:
        give_back()  # each host would have its own copy of what is free
        starter.fork_now(run_host)
    return starter


def host_pool(processes: int, starter: HostStarter) -> HostPool | None:
    """Return the pool of this process, None where tasks live in it; ``starter`` is the pool's from then on."""
    if processes:
        return HostPool(processes, starter)
    keep_freed_memory()  # as each task host does
    return None


def task_host(  # noqa: PLR0913 - one keyword per part that tasks share
    node: NodeParts,
    flow: FlowName,
    props: Mapping[str, str],
    worker: WorkerConfig,
    store: OffsetStore,
    reports: FlowReports,
    *,
    maps: MapStore,
    permit: Permit,
    producers: ProducerIdStore,
    target_name: str,
) -> Callable[[TaskWatcher, StartGuard], TaskHost]:
    """Return what makes a flow's task host; ``props`` are its worker config, resolved."""

    def host(watcher: TaskWatcher, guard: StartGuard) -> TaskHost:
        guarded = replace(reports, guard=guard)
        if node.pool is not None:
            return child_host(
                node.pool,
                flow,
                props,
                worker,
                watcher,
                guarded,
                plugins=node.plugins,
                permit=permit,
            )
        assembly = task_assembly(
            flow,
            props,
            worker,
            plugins=node.plugins,
            store=store,
            maps=maps,
            reports=guarded,
            permit=permit,
            producers=producers,
            target_name=target_name,
            clock=node.clock,
        )
        graceful_s = worker.task_shutdown_graceful_timeout_ms / 1000
        return InProcessTaskHost(assembly, watcher, graceful_s=graceful_s)

    return host


def child_host(
    pool: HostPool,
    flow: FlowName,
    props: Mapping[str, str],
    worker: WorkerConfig,
    watcher: TaskWatcher,
    reports: FlowReports,
    *,
    plugins: Plugins,
    permit: Permit,
) -> ChildTaskHost:
    """Return a flow's task host over the pool; ``props`` are its worker config, resolved."""
    spec = FlowSpec(flow=flow, worker=props, log_level=level_name())
    graceful_s = worker.task_shutdown_graceful_timeout_ms / 1000
    return ChildTaskHost(
        pool,
        spec,
        watcher,
        reports,
        permit=permit,
        graceful_s=graceful_s,
        own=lambda task: _needs_own(plugins, task),
        # A heartbeat each second: a process for it would cost 30 MB.
        light=lambda task: not _needs_own(plugins, task) and ASSIGNED_PARTITIONS not in task.config,
    )


def _needs_own(plugins: Plugins, task: TaskSpec) -> bool:
    """Return whether a task needs a process: a third party's plug-in, or a sink, whose client aborts processes."""
    try:
        factory = plugins.find(task.connector_config.get("connector.class", ""))
    except ConfigError:
        return False  # the host refuses it
    ours = str(getattr(factory, "__module__", "")).startswith("mm2py")
    return not ours or plugin_type(factory) == "sink"
