"""``GET /metrics``: what this worker copies, in the text format of Prometheus.

Flow: request -> herders and meters read on the event loop -> ``metric_families.families``, rendered
in a thread -> text. Each worker shows its own partitions, connectors and tasks, so sums over all
workers are right.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final, final

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from mm2py.client.connect.broker_errors import errors_of
from mm2py.client.connect.certificates import certificates_of
from mm2py.config.class_names import (
    MIRROR_CHECKPOINT_CONNECTOR,
    MIRROR_SOURCE_CONNECTOR,
    canonical_class,
)
from mm2py.flows.states import DISABLED, FlowWork, read_flow, worker_state
from mm2py.flows.views import is_of_topic
from mm2py.observability.processes import ProcessWatch
from mm2py.rest.connector_names import long_name
from mm2py.rest.metric_families import Compat, families
from mm2py.rest.parts import RestParts
from mm2py.rest.worker_reading import (
    BackfillReading,
    FlowReading,
    LifeReading,
    RunningWork,
    WorkerReading,
)
from mm2py.runtime.errors import BadRequestError
from mm2py.runtime.herder.herder import Herder
from mm2py.types import ClusterAlias, FlowName, State

PATH: Final = "/metrics"
COMPAT: Final = "compat"
NO_COMPAT: Final = "none"
BY: Final = "by"
_ALIASES: Final = (("source.cluster.alias", "source"), ("target.cluster.alias", "target"))
_MIRRORS: Final = frozenset({MIRROR_SOURCE_CONNECTOR, MIRROR_CHECKPOINT_CONNECTOR})


def metrics_route(parts: RestParts) -> Route:
    """Return the route, for the root of the public listener.

    It accepts any ``Accept`` header: Prometheus asks for text, Connect's paths answer JSON alone.
    """
    return Route(PATH, _Scrapes(parts).get, methods=["GET"])


@final
class _Scrapes:
    """Answers scrapes one after the other, so that many at once cannot hold up the process."""

    def __init__(self, parts: RestParts) -> None:
        self._parts = parts
        self._one_at_a_time = asyncio.Lock()
        self._processes = ProcessWatch()

    async def get(self, request: Request) -> Response:
        """``GET /metrics``; ``compat`` names whose dashboards to serve, by default all;
        ``by=topic`` has no series of partitions."""
        compat, by_topic = _compat(request), _is_by_topic(request)
        async with self._one_at_a_time:
            reading = await _read(self._parts)
            process = await asyncio.to_thread(self._processes.read)
            reading = replace(reading, process=process, by_topic=by_topic)
            parts = await asyncio.to_thread(_rendered, reading, compat)
        return StreamingResponse(_each(parts), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


@final
class _Single(Collector):
    """A collector of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def _rendered(reading: WorkerReading, compat: Collection[Compat]) -> list[bytes]:
    """Return the text by metric: joining 20 MB would hold up other threads for 0.1 s."""
    return [generate_latest(_Single(family)) for family in families(reading, compat)]


async def _each(parts: list[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def _compat(request: Request) -> Collection[Compat]:
    words = request.query_params.getlist(COMPAT)
    if not words:
        return tuple(Compat)
    try:
        return [Compat(word) for word in words if word != NO_COMPAT]
    except ValueError:
        known = ", ".join((*Compat, NO_COMPAT))
        raise BadRequestError(f"query.{COMPAT}: one of {known}") from None


def _is_by_topic(request: Request) -> bool:
    word = request.query_params.get(BY, "partition")
    if word not in {"partition", "topic"}:
        raise BadRequestError(f"query.{BY}: one of partition, topic")
    return word == "topic"


async def _read(parts: RestParts) -> WorkerReading:
    """Read one flow after the other; other work of the event loop runs in between."""
    dates = dict(certificates_of(parts.clock).dates)
    errors = dict(errors_of(parts.clock).counts)
    reading = WorkerReading(version=parts.commit, certificates=dates, broker_errors=errors)
    for flow, herder in list(parts.herders().items()):
        work = read_flow(herder)
        reading.lives.append(LifeReading("" if flow is None else str(flow), herder.life_counts))
        _read_works(reading, flow, herder, work)
        if flow is not None:
            node = herder.node_snapshot()
            # Heartbeats and checkpoints count under a name that no topic has.
            shown = tuple(filter(is_of_topic, node.partitions))
            reading.nodes.append(replace(node, partitions=shown))
            reading.checkpoint_ages.extend((flow, it) for it in herder.checkpoint_ages)
            problems = sum(1 for _ in work.wrongs([node]))
            # Alerts know the state alone: one of a disabled flow must wake no one.
            state = DISABLED if work.disabled else work.state([node])
            reading.flows.append(FlowReading(flow, state, problems))
            _read_backfill(reading, flow, herder)
        await asyncio.sleep(0)
    for meter in parts.meters():
        reading.nodes.append(meter.node_snapshot(""))
        reading.checkpoint_ages.extend((meter.flow, it) for it in meter.checkpoints.all())
        await asyncio.sleep(0)
    alone = parts.herders().get(None)
    if alone is None:
        return reading
    state = worker_state(alone, [alone.node_snapshot(), *reading.nodes])
    return replace(reading, state=state, pairs=_pairs(alone))


def _pairs(herder: Herder) -> Mapping[str, FlowName]:
    """Return the aliases of each mirror connector, Java's defaults where it names none."""
    configs = {name: herder.info_now(name) for name in herder.connectors()}
    return {
        name: FlowName(*(ClusterAlias(info.config.get(key) or word) for key, word in _ALIASES))
        for name, info in configs.items()
        if info is not None
        and canonical_class(info.config.get("connector.class") or "") in _MIRRORS
    }


def _read_backfill(reading: WorkerReading, flow: FlowName, herder: Herder) -> None:
    """Read the newest backfill where this worker leads, so that sums over workers are right."""
    store = herder.backfills
    if store is None or not store.live or not herder.leads:
        return
    job = store.shown_job
    if job is not None:
        reading.backfills.append(BackfillReading(flow, job, list(store.leases.values())))


def _read_works(
    reading: WorkerReading, flow: FlowName | None, herder: Herder, work: FlowWork
) -> None:
    """Read the connectors and tasks of this worker; every worker knows the states of all."""
    text = "" if flow is None else str(flow)
    for connector in work.connectors:
        name = connector.name if flow is None else long_name(flow, connector.name)
        states = [(None, connector.state), *connector.tasks.items()]
        for task, state in states:
            if state is None or state.worker_id != herder.worker_id:
                continue
            if state.state is not State.UNASSIGNED:
                reading.works.append(RunningWork(text, name, task, state.state.value))
