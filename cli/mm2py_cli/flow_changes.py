"""``mm2py flow create|set|pause|resume|stop|restart|delete|rollback``: changes, each sent once.

Flow: options -> one request -> what it changed -> with ``--wait`` the flow's state, asked until it
is there. ``--dry-run`` shows the same and changes nothing. The leader checks everything; nothing is
checked twice here.
"""

import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Never, final

import typer

from mm2py.errors import FatalError, RetriableError, UsageError
from mm2py.flows.view_models import ChangeResult, FlowView, TopicsChange
from mm2py.observability.logging import some_of
from mm2py_cli.flow_commands import WELL, FlowArgument, flow_app, health
from mm2py_cli.output import OK, UNHEALTHY, Column, Printer, examples, printable, say
from mm2py_cli.rest_access import Access, asks_rest, flow_name
from mm2py_workers.answers import flow_path

if TYPE_CHECKING:
    from mm2py_cli.rest_client import RestClient

commands: Final = flow_app
"""`mm2py flow` with the changes of this module."""

SETTLED: Final = "settled"
"""To wait for: a state that was asked for, whichever, with the change in all tasks."""
NO_QUERY: Final[Mapping[str, Never]] = MappingProxyType({})
POLL_S: Final = 0.5
SHOWN: Final = 5
"""Paused topics that are named; the others are counted."""

_CHANGES: Final = (
    Column.text("CHANGED", "key"),
    Column.text("BEFORE", "before"),
    Column.text("AFTER", "after"),
)

Settings = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]", help="properties")]
Connector = Annotated[
    str, typer.Option(help="whose properties they are; without it those that read each of them")
]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPart:
    """A topic or a partition of a flow, or the whole of it."""

    topic: Annotated[str | None, typer.Option(help="one source topic only")] = None
    partition: Annotated[int | None, typer.Option(min=0, help="one partition of --topic only")] = (
        None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SentChange:
    """One change of a flow."""

    access: Access
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would change")] = False
    printer: Printer

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int | bool | None] = NO_QUERY,
        body: object = None,
        awaited: str = "",
    ) -> int:
        """Send it, print what it changed, and wait until the flow is in the state ``awaited``;
        return the exit code."""
        with self.access.client() as rest:
            done = rest.change_flow(method, path, {**query, "dry_run": self.dry_run or None}, body)
            self.printer.rows(done, done.changes, _CHANGES, "nothing is to be changed")
            say(self._summary(done))
            if done.topics is not None:
                _say_moved(done.topics)
            if done.still_paused:
                say(
                    f"{done.flow}: {some_of(done.still_paused, SHOWN)} stay paused, they were"
                    " paused alone; --all-topics resumes them too"
                )
            if done.not_there:
                then = "" if done.action == "resume" else " It rests when it appears"
                say(
                    f"{done.flow}: no task copies {some_of(done.not_there, SHOWN)} now; was another"
                    f" name meant?{then}"
                )
            return self._wait(rest, done.flow, awaited) if awaited and not self.dry_run else OK

    def _summary(self, done: ChangeResult) -> str:
        text = f"{done.flow} {done.action}"
        if self.dry_run:
            return f"{text}: dry run, nothing was changed"
        return (
            f"{text}: done" if done.revision is None else f"{text}: done, revision {done.revision}"
        )

    def _wait(self, rest: "RestClient", name: str, awaited: str) -> int:
        """Ask until the flow is in its state; a worker that is busy just now is asked again."""
        # It brings asyncio, which help does without.
        from mm2py.clock import SYSTEM_CLOCK

        deadline = SYSTEM_CLOCK.monotonic() + self.access.timeout_s
        while True:
            flows: list[FlowView] = []
            try:
                flows = [rest.view(FlowView, flow_path(name))]
                state = flows[0].state + (", tasks take the change" if flows[0].pending else "")
                if _is(flows[0], awaited):
                    return health(flows)
            except (FatalError, RetriableError) as error:
                # A flow that was just created is unknown to a worker that has not heard of it yet.
                state = f"not known: {error.message}"
            if SYSTEM_CLOCK.monotonic() >= deadline:
                say(f"{name} is not {awaited} after {self.access.timeout_s:g} s: {state}")
                health(flows)
                return UNHEALTHY
            time.sleep(POLL_S)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WaitedChange(SentChange):
    """One whose end can be waited for."""

    wait: Annotated[
        bool, typer.Option("--wait", help="until the whole flow is in its new state (--timeout)")
    ] = False

    def state(self, state: str = "RUNNING") -> str:
        """Return the state to wait for: this one, or none."""
        return state if self.wait else ""

    def post(
        self,
        flow: str,
        action: str,
        part: FlowPart,
        state: str = "RUNNING",
        query: Mapping[str, int | bool | None] = NO_QUERY,
    ) -> int:
        """Do something with a flow or a part of it; return the exit code."""
        if part.partition is not None and part.topic is None:
            raise UsageError("--partition without --topic", remedy="name the partition's topic")
        if part.topic is not None and self.wait:
            raise UsageError(
                "--wait is for whole flows", remedy="look with mm2py topics --partitions"
            )
        path = flow_path(flow_name(flow), action)
        asked = {"topic": part.topic, "partition": part.partition, **query}
        return self.send("POST", path, asked, awaited=self.state(state))


@flow_app.command(
    "create",
    epilog=examples(
        "mm2py flow create A/B topics='orders.*'",
        "mm2py flow create A/B topics=orders tasks.max=4 --dry-run",
    ),
)
@asks_rest
def create_flow(flow: FlowArgument, settings: Settings = None, *, change: WaitedChange) -> int:
    """Add a flow between two clusters that the file names."""
    name = flow_name(flow)
    source, _, target = name.partition("->")
    body: dict[str, object] = {"source": source, "target": target}
    if settings:
        body["config"] = _properties(settings, ())
    return change.send("POST", "/flows", body=body, awaited=change.state())


@flow_app.command(
    "set",
    epilog=examples(
        "mm2py flow set A/B topics='orders.*,payments' --dry-run",
        "mm2py flow set A/B --unset topics.exclude",
        "mm2py flow set A/B --connector MirrorHeartbeatConnector tasks.max=1",
    ),
)
@asks_rest
def set_properties(
    flow: FlowArgument,
    settings: Settings = None,
    *,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="return a property to the file's value")
    ] = None,
    connector: Connector = "",
    change: WaitedChange,
) -> int:
    """Change properties of a flow; they win over the file and survive restarts."""
    name = flow_name(flow)
    properties = _properties(settings or (), unset or ())
    if not properties:
        raise UsageError("nothing is to be changed", remedy="give KEY=VALUE or --unset KEY")
    body = {"connectors": {connector: properties}} if connector else {"config": properties}
    return change.send("PATCH", flow_path(name), body=body, awaited=change.state(SETTLED))


@flow_app.command(
    "pause",
    epilog=examples(
        "mm2py flow pause A/B --wait", "mm2py flow pause A/B --topic orders --partition 3"
    ),
)
@asks_rest
def pause_flow(flow: FlowArgument, *, part: FlowPart, change: WaitedChange) -> int:
    """Pause a flow, one topic or one partition; positions stay."""
    return change.post(flow, "pause", part, "PAUSED")


@flow_app.command(
    "resume",
    epilog=examples(
        "mm2py flow resume A/B --all-topics --wait", "mm2py flow resume A/B --topic orders"
    ),
)
@asks_rest
def resume_flow(
    flow: FlowArgument,
    *,
    part: FlowPart,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="also what was paused by topic or partition")
    ] = False,
    change: WaitedChange,
) -> int:
    """Resume a flow, one topic or one partition."""
    return change.post(flow, "resume", part, query={"all_topics": all_topics or None})


@flow_app.command("stop", epilog=examples("mm2py flow stop A/B --wait --timeout 30"))
@asks_rest
def stop_flow(flow: FlowArgument, *, part: FlowPart, change: WaitedChange) -> int:
    """Stop a flow, one topic or one partition: tasks end, positions stay."""
    return change.post(flow, "stop", part, "STOPPED")


@flow_app.command(
    "restart",
    epilog=examples(
        "mm2py flow restart A/B --only-failed", "mm2py flow restart A/B --topic orders"
    ),
)
@asks_rest
def restart_flow(
    flow: FlowArgument,
    *,
    part: FlowPart,
    only_failed: Annotated[bool, typer.Option("--only-failed", help="what has failed")] = False,
    change: WaitedChange,
) -> int:
    """Restart connectors and tasks of a flow, or the tasks of one topic or partition."""
    return change.post(flow, "restart", part, SETTLED, {"only_failed": only_failed or None})


@flow_app.command(
    "delete",
    epilog=examples(
        "mm2py flow delete A/B --dry-run", "mm2py flow delete A/B --topic orders --yes"
    ),
)
@asks_rest
def delete_flow(
    flow: FlowArgument,
    *,
    topic: Annotated[str | None, typer.Option(help="only take one topic out of it")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    change: SentChange,
) -> int:
    """Delete a flow, or take one topic out of it; what was copied stays, positions too."""
    name = flow_name(flow)
    if not change.dry_run and not yes:
        _confirm(name if topic is None else topic)
    return change.send("DELETE", flow_path(name), {"topic": topic})


@flow_app.command(
    "rollback", epilog=examples("mm2py flow history A/B", "mm2py flow rollback A/B 7 --dry-run")
)
@asks_rest
def roll_back(
    flow: FlowArgument,
    revision: Annotated[
        int, typer.Argument(min=0, help="number in the history; 0 is the file", show_default=False)
    ],
    *,
    change: WaitedChange,
) -> int:
    """Make properties and pauses of topics what they were after a revision of the history."""
    return change.post(flow, "rollback", FlowPart(), SETTLED, {"revision": revision})


def _is(flow: FlowView, awaited: str) -> bool:
    if flow.pending:
        return False
    if awaited == SETTLED:
        return flow.state in WELL
    # The flow rests with its source connector, the others may be about to.
    return flow.state == awaited and all(it.state == awaited for it in flow.connectors)


def _say_moved(topics: TopicsChange) -> None:
    for number, names, what in (
        (topics.starts, topics.starting, "will be copied"),
        (topics.stops, topics.stopping, "will not be copied any more, copies stay"),
    ):
        if number:
            shown = names[:SHOWN]
            more = f" and {number - len(shown)} more" if number > len(shown) else ""
            say(f"topics that {what}: {', '.join(shown)}{more}")


def _properties(settings: Iterable[str], unset: Iterable[str]) -> dict[str, str | None]:
    properties: dict[str, str | None] = {}
    for number, setting in enumerate(settings, 1):
        key, equals, value = setting.partition("=")
        if not key or not equals:
            # Not shown: it may be a piece of a secret that the shell has cut.
            raise UsageError(
                f"property {number} of this command is not KEY=VALUE",
                remedy="quote values that hold spaces",
            )
        if key in properties:
            raise UsageError(f"{key} is there twice", remedy="give all of its value at once")
        properties[key] = value
    for key in unset:
        if key in properties:
            raise UsageError(f"{key} is both set and taken away")
        properties[key] = None
    return properties


def _confirm(name: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError(f"nobody can confirm the deletion of {name}", remedy="use --yes")
    typed = str(typer.prompt(f"Type {printable(name)} to delete it", err=True))
    if typed.strip() != name:
        raise UsageError(f"that is not {name}: nothing was deleted")
