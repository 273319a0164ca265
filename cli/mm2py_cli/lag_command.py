"""``mm2py lag``: how far behind flows are, by topic; once, or again and again.

Flow: ``/lag`` and ``/flows`` (or those of one flow) -> rows, the oldest first -> exit code 3 where
a limit is passed, a partition failed, or a flow is not well: a dead flow has no topics that lag.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Final, final

import typer

from mm2py.errors import RetriableError
from mm2py.flows.view_models import FlowView, TopicView
from mm2py_cli.flow_commands import NOTHING, health, say_resting
from mm2py_cli.output import OK, UNHEALTHY, Column, Printer, say
from mm2py_cli.rest_access import Access, FlowOption, asks_rest, flow_name
from mm2py_workers.answers import flow_path

if TYPE_CHECKING:
    from mm2py_cli.rest_client import RestClient

_TOPICS: Final = (
    Column.text("FLOW", "flow"),
    Column.text("TOPIC", "topic"),
    Column.text("COPY", "target_topic", wide=True),
    Column.text("STATE", "state"),
    Column.count("LAG", "lag_records"),
    Column.age("RPO", "lag_ms"),
    Column.count("RECORDS/S", "records_per_s"),
    Column.size("BYTES/S", "bytes_per_s"),
    Column.count("PARTITIONS", "partitions", wide=True),
    Column.count("FAILED", "failed_partitions", wide=True),
    Column.count("HELD", "held_partitions", wide=True),
    Column.count("PAUSED", "paused_partitions", wide=True),
)


@final
@dataclass(frozen=True, slots=True)
class LagLimits:
    """How far behind is too far; None for any."""

    records: int | None = None
    seconds: float | None = None

    @property
    def given(self) -> bool:
        return self.records is not None or self.seconds is not None

    def passed_by(self, topic: TopicView) -> bool:
        """Whether a topic is too far behind; an unknown lag is."""
        lag, lag_ms = topic.lag_records, topic.lag_ms
        too_many = self.records is not None and (lag is None or lag > self.records)
        too_old = self.seconds is not None and (lag_ms is None or lag_ms > self.seconds * 1000)
        return too_many or too_old


@asks_rest
def show_lag(
    access: Access,
    *,
    flow: FlowOption = None,
    top: Annotated[int, typer.Option(min=1, help="so many topics at most")] = 20,
    watch: Annotated[bool, typer.Option("--watch", help="again and again, until Ctrl-C")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.2, metavar="SECONDS", help="how often with --watch")
    ] = 2.0,
    max_records: Annotated[
        int | None, typer.Option(min=0, help="end with 3 if a topic is further behind")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(min=0, help="end with 3 if a topic is further behind")
    ] = None,
    printer: Printer,
) -> int:
    """Show how far behind flows are, by topic, the oldest first.

    Ends with 3 if a limit is passed, a partition failed or a flow is not well.
    """
    name = None if flow is None else flow_name(flow)
    view = _LagView(name, LagLimits(max_records, max_seconds), printer, top=top)
    with access.client() as rest:
        if watch:
            return view.watch(rest, lambda: time.sleep(every))
        flows, topics = view.ask(rest)
    view.print(topics)
    return view.exit_code(flows, topics)


@final
@dataclass(frozen=True, slots=True)
class _LagView:
    """What is asked for, and how it is shown."""

    flow: str | None
    limits: LagLimits
    printer: Printer
    _: KW_ONLY
    top: int

    def ask(self, rest: "RestClient") -> tuple[Sequence[FlowView], Sequence[TopicView]]:
        """Return flows and topics; all of them, the exit code is about those not shown too."""
        if self.flow is None:
            return rest.views(FlowView, "/flows"), rest.views(TopicView, "/lag")
        flow = rest.view(FlowView, flow_path(self.flow))
        return [flow], rest.views(TopicView, flow_path(self.flow, "lag"))

    def print(self, topics: Sequence[TopicView], *, one_line: bool = False) -> None:
        shown = topics[: self.top]
        if one_line and not self.printer.is_table:
            self.printer.document(shown, one_line=True)
        else:
            self.printer.rows(shown, shown, _TOPICS, NOTHING)

    def exit_code(self, flows: Sequence[FlowView], topics: Sequence[TopicView]) -> int:
        """Say what is wrong; return the exit code."""
        code = health(flows)
        if any(topic.failed_partitions for topic in topics):
            code = UNHEALTHY
        if not self.limits.given:
            say_resting(flows, topics)
            return code
        for flow in flows:
            if flow.state in ("PAUSED", "STOPPED") and flow.enabled:
                say(f"{flow.flow} is {flow.state}: it falls behind")
                code = UNHEALTHY
            elif flow.topics == 0 and flow.enabled:
                say(f"{flow.flow} copies no topic")
                code = UNHEALTHY
        late = [topic for topic in topics if self.limits.passed_by(topic)]
        if late:
            say(f"{len(late):,} of {len(topics):,} topics are too far behind")
        return UNHEALTHY if late else code

    def watch(self, rest: "RestClient", pause: Callable[[], None]) -> int:
        """Print again and again until Ctrl-C, also while a worker is unreachable."""
        code = OK
        terminal = self.printer.is_table and self.printer.console.is_terminal
        try:
            while True:
                try:
                    flows, topics = self.ask(rest)
                except RetriableError as error:
                    say(str(error))
                    code = UNHEALTHY
                else:
                    if terminal:
                        self.printer.console.clear()
                    self.print(topics, one_line=True)
                    code = self.exit_code(flows, topics)
                pause()
        except KeyboardInterrupt:
            return code
