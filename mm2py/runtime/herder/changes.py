"""Changes that people ask for: connectors, target states, restarts, positions (kcr 1.5 to 1.9).

Flow: request -> validation beside the loop -> queue -> leader or owner? -> change recorded for the history ->
config topic -> every worker acts on what it reads. A refused request has written nothing.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final, final

from mm2py.runtime.herder.api import (
    ConnectorInfo,
    ConnectorState,
    HerderParts,
    OffsetEntry,
    PutResult,
)
from mm2py.runtime.herder.assigned_work import AssignedWork
from mm2py.runtime.herder.errors import (
    STALE_CONFIGURATION,
    AlreadyExistsError,
    BadRequestError,
    ConflictError,
    ForwardError,
    HerderError,
    NotFoundError,
)
from mm2py.runtime.herder.loop import HerderLoop
from mm2py.runtime.herder.queue import HerderQueue
from mm2py.runtime.herder.restart_plan import plan_restart, with_restarting
from mm2py.runtime.herder.work_states import connector_info, connector_state
from mm2py.storage.config_state import ConnectorConfig, RestartRequest
from mm2py.types import State, TargetState, TaskId

__all__ = ["HerderChanges"]

log = logging.getLogger(__name__)

START_WAIT_S: Final = 5.0
"""For how long a restart waits to say that the connector failed to start."""


@final
class HerderChanges:
    """The changing half of the ``Herder`` Protocol; see there for what each method refuses."""

    def __init__(
        self, parts: HerderParts, queue: HerderQueue, loop: HerderLoop, work: AssignedWork
    ) -> None:
        self._parts, self._queue, self._loop, self._work = parts, queue, loop, work

    # ---- configs, leader only

    async def create(
        self, name: str, config: ConnectorConfig, target: TargetState | None, *, actor: str
    ) -> ConnectorInfo:
        """Create a connector."""
        wanted = await self._validated(name, config)

        async def change() -> ConnectorInfo:
            self._need_leader()
            if name in self._connectors:
                raise AlreadyExistsError(f"Connector {name} already exists")
            return await self._write(name, wanted, target, actor=actor)

        return await self._queue.submit(change)

    async def put_config(self, name: str, config: ConnectorConfig, *, actor: str) -> PutResult:
        """Create a connector or replace its config."""
        wanted = await self._validated(name, config)

        async def change() -> PutResult:
            self._need_leader()
            created = name not in self._connectors
            return PutResult(created, await self._write(name, wanted, None, actor=actor))

        return await self._queue.submit(change)

    async def patch_config(self, name: str, patch: ConnectorConfig, *, actor: str) -> ConnectorInfo:
        """Change single keys."""

        async def current() -> ConnectorConfig:
            self._need_leader()
            return self._configured(name)

        before = await self._queue.submit(current)
        while True:
            merged = {key: text for key, text in {**before, **patch}.items() if text is not None}
            wanted = await self._validated(name, merged)

            async def change(
                before: ConnectorConfig = before, wanted: ConnectorConfig = wanted
            ) -> ConnectorInfo | ConnectorConfig:
                self._need_leader()
                now = self._configured(name)
                return await self._write(name, wanted, None, actor=actor) if now == before else now

            outcome = await self._queue.submit(change)
            if isinstance(outcome, ConnectorInfo):
                return outcome
            before = outcome  # somebody changed it meanwhile: merge again

    async def delete(self, name: str, *, actor: str) -> None:
        """Remove a connector."""

        async def change() -> None:
            self._need_leader()
            before = self._configured(name)
            with self._queue.stage(
                f"removing the config for connector {name} from the config topic"
            ):
                if self._parts.overrides is not None:
                    await self._parts.overrides.record(name, _texts(before), None, actor=actor)
                await self._parts.config.remove_connector(name)
            log.info("connector deleted connector=%s actor=%s", name, actor)

        await self._queue.submit(change)

    async def stop_connector(self, name: str, *, actor: str) -> None:
        """Make a connector STOPPED: no tasks first, then the target state."""

        async def change() -> None:
            self._need_known(name, "Unknown connector")
            self._need_leader()
            with self._queue.stage(f"writing 0 task configs for connector {name}"):
                await self._parts.config.put_tasks(name, ())
                await self._parts.config.put_target(name, TargetState.STOPPED)
            log.info("connector is to stop connector=%s actor=%s", name, actor)

        await self._queue.submit(change)

    async def fence(self, name: str) -> None:
        """Succeed where no producer of earlier tasks has to be fenced."""

        async def check() -> None:
            self._need_leader()
            config = self._configured(name)
            if self._parts.catalog.connector_type(config) == "sink":
                raise BadRequestError(f"Connector {name} is not a source connector")
            if name in self._parts.config.snapshot().pending_fencing:
                raise BadRequestError(
                    "Fencing belongs to exactly-once source support, which comes with part 4 of mm2py"
                )

        await self._queue.submit(check)

    # ---- target states and levels, any worker

    async def set_target(self, name: str, target: TargetState, *, actor: str) -> None:
        """Pause or resume a connector."""
        self._need_known(name, "Unknown connector")
        await self._parts.config.put_target(name, target)
        log.info("connector target=%s connector=%s actor=%s", target.value, name, actor)

    # ---- restarts

    async def restart(self, name: str, *, only_failed: bool, include_tasks: bool) -> ConnectorState:
        """Ask every worker for a restart, as the leader."""

        async def change() -> ConnectorState:
            self._need_calm()
            self._need_known(name, "Unknown connector:")
            self._need_leader()
            state = connector_state(name, self._parts)
            if state is None:
                raise NotFoundError(f"Status for connector {name} not found")
            request = RestartRequest(name, only_failed, include_tasks)
            plan = plan_restart(request, state)
            with self._queue.stage(f"writing a restart request for connector {name}"):
                await self._parts.config.put_restart(request)
            return with_restarting(state, plan)

        return await self._queue.submit(change)

    async def restart_connector(self, name: str) -> None:
        """Restart the instance that runs here."""

        async def change() -> None:
            self._need_calm()
            self._need_known(name, "Unknown connector:")
            if name not in self._work.running.connectors:
                raise self._owner_of(name)
            await self._work.restart_connector(name, self._parts.config.snapshot())

        await self._queue.submit(change)
        if not await self._work.comes_up(name, START_WAIT_S):
            raise HerderError(f"Failed to start connector: {name}")

    async def restart_task(self, task: TaskId) -> None:
        """Restart a task that runs here."""

        async def change() -> None:
            self._need_calm()
            self._need_known(task.connector, "Unknown connector:")
            snapshot = self._parts.config.snapshot()
            if task not in snapshot.tasks(task.connector):
                raise NotFoundError(f"Unknown task: {task}")
            if task not in self._work.running.tasks:
                raise self._owner_of(task)
            await self._work.restart_tasks([task], snapshot)
            now = self._work.task_status().get(task)
            if now is not None and now.state is State.FAILED:
                raise HerderError(f"Failed to start task: {task}")

        await self._queue.submit(change)

    # ---- positions, leader only

    async def alter_offsets(self, name: str, entries: Sequence[OffsetEntry]) -> str:
        """Write positions of a STOPPED connector."""

        async def change() -> str:
            config = await self._stopped(name)
            with self._queue.stage(f"modifying offsets for connector {name}"):
                return await self._parts.editor.alter(name, config, entries)

        return await self._queue.submit(change)

    async def reset_offsets(self, name: str) -> str:
        """Remove all positions of a STOPPED connector."""

        async def change() -> str:
            config = await self._stopped(name)
            with self._queue.stage(f"modifying offsets for connector {name}"):
                return await self._parts.editor.reset(name, config)

        return await self._queue.submit(change)

    async def _stopped(self, name: str) -> dict[str, str]:
        """Return the resolved config of a connector whose positions may be changed now."""
        self._need_calm()
        self._need_leader()
        await self._parts.config.refresh(self._parts.settings.worker_sync_timeout_ms / 1000)
        config, snapshot = self._configured(name), self._parts.config.snapshot()
        if snapshot.target(name) is not TargetState.STOPPED or snapshot.task_counts.get(name, 0):
            raise BadRequestError(
                "Connectors must be in the STOPPED state before their offsets can be modified. This can"
                " be done for the specified connector by issuing a 'PUT' request to the"
                f" '/connectors/{name}/stop' endpoint"
            )
        return self._parts.resolve(config)

    # ---- what all of them need

    @property
    def _connectors(self) -> Mapping[str, ConnectorConfig]:
        return self._parts.config.snapshot().connectors

    async def _validated(self, name: str, config: ConnectorConfig) -> ConnectorConfig:
        written = config.get("name", name)
        if written != name:
            raise BadRequestError(
                f"Connector name configuration ({written}) doesn't match connector name in the URL"
                f" ({name})"
            )
        wanted = {**config, "name": name}
        refusal = (await self._parts.validator.validate(wanted)).refusal()
        if refusal is not None:
            raise BadRequestError(refusal)
        return wanted

    async def _write(
        self, name: str, wanted: ConnectorConfig, target: TargetState | None, *, actor: str
    ) -> ConnectorInfo:
        before = self._connectors.get(name)
        with self._queue.stage(f"writing a config for connector {name} to the config topic"):
            if self._parts.overrides is not None:
                await self._parts.overrides.record(
                    name, None if before is None else _texts(before), _texts(wanted), actor=actor
                )
            await self._parts.config.put_connector(name, wanted, target)
        log.info("config written connector=%s new=%s actor=%s", name, before is None, actor)
        info = connector_info(name, self._parts)
        assert info is not None, "it was read back"
        return info

    def _need_leader(self) -> None:
        if not self._parts.membership.permit.valid:
            raise ForwardError(None)  # another worker may lead by now
        if not self._parts.membership.is_leader:
            raise ForwardError(self._parts.membership.leader_url)

    def _need_calm(self) -> None:
        if self._loop.rebalance_expected:
            raise ConflictError(STALE_CONFIGURATION)

    def _need_known(self, name: str, refusal: str) -> None:
        if name not in self._connectors:
            raise NotFoundError(f"{refusal} {name}")

    def _configured(self, name: str) -> ConnectorConfig:
        config = self._connectors.get(name)
        if config is None:
            raise NotFoundError(f"Connector {name} not found")
        return config

    def _owner_of(self, work: str | TaskId) -> ForwardError:
        """Return where a request for work of another worker goes: the leader knows its owner."""
        membership = self._parts.membership
        url = membership.owner_url(work) if membership.is_leader else membership.leader_url
        return ForwardError(url)


def _texts(config: ConnectorConfig) -> dict[str, str]:
    return {key: text for key, text in config.items() if text is not None}
