"""``mm2py flow list|describe|history|config``: the answers of ``/flows``.

Flow: REST answer -> rows -> table, JSON or YAML -> exit code 3 where a flow is not well. Changes
are in ``flow_changes``, which shares this module's ``flow_app``.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Final

import typer

from mm2py.flows.view_models import ConfigView, FlowView, HistoryView, PartitionView, TopicView
from mm2py.observability.logging import some_of
from mm2py_cli.output import OK, UNHEALTHY, Column, Output, Printer, examples, say
from mm2py_cli.rest_access import Access, asks_rest, complete_flow, flow_name
from mm2py_workers.answers import Row, flow_path, texts_of

flow_app: Final = typer.Typer(
    help="See and change flows over the REST API of any worker.",
    no_args_is_help=True,
    epilog=examples(
        "mm2py flow list",
        "mm2py flow describe A/B -o wide",
        "mm2py flow set A/B topics='orders.*' --dry-run",
        "mm2py flow pause A/B --topic orders",
    ),
)
FlowArgument = Annotated[
    str,
    typer.Argument(
        metavar="FLOW",
        help="A/B, or 'A->B' in quotes",
        show_default=False,
        autocompletion=complete_flow,
    ),
]

NOTHING: Final = "no topic is copied"
MOST_CAUSES: Final = 5
MOST_ERRORS: Final = 100
"""As many as the API lists."""
WELL: Final = frozenset({"RUNNING", "PAUSED", "STOPPED", "DISABLED"})
"""States that were asked for; every other one is a reason to look."""
IDLE: Final = frozenset({"DISABLED", "WAITING", "SUSPENDED"})
"""States that are no reason to look at a flow that is not to copy."""

NOT_ENABLED: Final = (
    "it is not enabled and copies nothing, as is meant of the way back in a file that copies one "
    "way; else set {flow}.enabled = true in the file, or mm2py flow create '{flow}'"
)

_FLOWS: Final = (
    Column.text("FLOW", "flow"),
    Column.text("STATE", "state"),
    Column.text("ENGINE", "engine", wide=True),
    Column.moment("SINCE (UTC)", "since_ms", wide=True),
    Column.count("LAG", "lag_records"),
    Column.age("RPO", "lag_ms"),
    Column.count("RECORDS/S", "records_per_s"),
    Column.size("BYTES/S", "bytes_per_s"),
    Column.count("PARTITIONS", "partitions"),
    Column.count("FAILED", "failed_partitions"),
    Column.count("LOOPED", "records_looped", wide=True),
    Column.count("CONFLICTS", "conflicts", wide=True),
    Column.count("LOST", "records_lost", wide=True),
    Column.count("REVISION", "revision", wide=True),
    Column("PAUSED", lambda row: str(len(texts_of(row, "paused")) or "")),
    Column.texts("PAUSED TOPICS", "paused", wide=True),
    Column.texts("WORKERS", "workers", wide=True),
)
_WORK: Final = (
    Column.text("WORK", "name"),
    Column.text("STATE", "state"),
    Column.text("WORKER", "worker"),
)
_PARTITIONS: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.text("STATE", "state"),
    Column.count("LAG", "lag_records"),
    Column.age("RPO", "lag_ms"),
    Column.text("TASK", "task"),
    Column.text("CAUSE", "cause"),
)
_HISTORY: Final = (
    Column.count("REVISION", "revision"),
    Column.moment("TIME (UTC)", "at_ms"),
    Column.text("BY", "by"),
    Column.text("ACTION", "action"),
    Column.text("OF", "target"),
    Column.texts("CHANGES", "changes", "; "),
)
_CONFIG: Final = (
    Column.text("CONNECTOR", "connector"),
    Column.text("PROPERTY", "key"),
    Column.text("VALUE", "value"),
    Column.text("IN THE FILE", "file_value", wide=True),
    Column.text("CHANGED BY", "changed_by"),
    Column.moment("TIME (UTC)", "changed_at_ms", wide=True),
    Column.count("REVISION", "revision", wide=True),
)


@flow_app.command("list", epilog=examples("mm2py flow list", "mm2py flow list -o json"))
@asks_rest
def list_flows(access: Access, *, printer: Printer) -> int:
    """List all flows: state, lag, rates.

    Ends with 3 if one of them is not well.
    """
    with access.client() as rest:
        flows = rest.views(FlowView, "/flows")
    printer.rows(flows, flows, _FLOWS, "no flows")
    return health(flows)


@flow_app.command(
    "describe", epilog=examples("mm2py flow describe A/B", "mm2py flow describe 'A->B' -o yaml")
)
@asks_rest
def describe_flow(access: Access, flow: FlowArgument, *, printer: Printer) -> int:
    """Describe one flow: connectors, tasks, what is wrong; -o wide adds its partitions."""
    name = flow_name(flow)
    wide = printer.output is Output.WIDE
    with access.client() as rest:
        flow_view = rest.view(FlowView, flow_path(name))
        partitions = rest.views(PartitionView, flow_path(name, "partitions")) if wide else []
    if not printer.is_table:
        printer.document(flow_view)
        return health([flow_view])
    printer.fields(
        [
            *((it.title, it.cell(flow_view)) for it in _FLOWS if it.cell(flow_view)),
            *(("WRONG", text) for text in wrongs(flow_view, MOST_ERRORS if wide else MOST_CAUSES)),
            *(("NOTE", text) for text in flow_view.notes),
            *([("NOTE", NOT_ENABLED.format(flow=name))] if flow_view.state == "DISABLED" else ()),
        ]
    )
    printer.show(printer.table(_work_rows(flow_view), _WORK))
    if partitions:
        printer.show(printer.table(partitions, _PARTITIONS))
    return OK if is_well(flow_view) else UNHEALTHY


@flow_app.command(
    "history", epilog=examples("mm2py flow history A/B", "mm2py flow history A/B -o json")
)
@asks_rest
def show_history(access: Access, flow: FlowArgument, *, printer: Printer) -> int:
    """List who changed what of a flow and when, newest first."""
    with access.client() as rest:
        lines = rest.views(HistoryView, flow_path(flow_name(flow), "history"))
    printer.rows(lines, lines, _HISTORY, "nothing was changed yet")
    return OK


@flow_app.command(
    "config", epilog=examples("mm2py flow config A/B", "mm2py flow config A/B --changed -o wide")
)
@asks_rest
def show_config(
    access: Access,
    flow: FlowArgument,
    *,
    changed: Annotated[
        bool, typer.Option("--changed", help="only what differs from the file")
    ] = False,
    printer: Printer,
) -> int:
    """List every property in force and who changed it; secrets are hidden."""
    with access.client() as rest:
        connectors = rest.views(ConfigView, flow_path(flow_name(flow), "config"))
    rows = [
        {**prop.model_dump(mode="json"), "connector": view.connector}
        for view in connectors
        for prop in view.properties
        if not changed or prop.revision is not None
    ]
    printer.rows(rows if changed else connectors, rows, _CONFIG, "the file is in force")
    return OK


def health(flows: Sequence[FlowView]) -> int:
    """Say on stderr what is wrong with flows; return the exit code."""
    for flow in flows:
        for text in (*wrongs(flow), *flow.notes):
            say(f"{flow.flow} {text}")
    return OK if all(map(is_well, flows)) else UNHEALTHY


def say_resting(flows: Iterable[FlowView], shown: Iterable[TopicView | PartitionView]) -> None:
    """Say which flows have no rows because somebody stopped or paused them."""
    with_rows = {row.flow for row in shown}
    for flow in flows:
        if flow.state in ("PAUSED", "STOPPED") and flow.flow not in with_rows:
            say(f"{flow.flow} is {flow.state}: mm2py flow resume '{flow.flow}'")


def is_well(flow: FlowView) -> bool:
    """Whether a flow is in a state that was asked for, with the numbers of all workers."""
    if not flow.enabled and flow.state in IDLE:
        return True  # only its heartbeats wait
    return flow.state in WELL and not flow.failed_partitions and not flow.incomplete


def wrongs(flow: FlowView, most: int = MOST_CAUSES) -> Iterator[str]:
    """Say what is wrong with a flow, a line per cause; of more than ``most`` how many follow."""
    causes: dict[str, list[str]] = {}
    for error in flow.errors:
        causes.setdefault(error.message, []).append(error.where)
    if not causes and flow.state not in WELL:
        yield f"is {flow.state}"
    for message, places in islice(causes.items(), most):
        says_where = len(places) == 1 and message.startswith(places[0])
        yield message if says_where else f"{some_of(places, 1)}: {message}"
    if len(causes) > most:
        yield f"{len(causes) - most} more causes: mm2py flow describe '{flow.flow}' -o wide"
    named = {place for places in causes.values() for place in places}
    for worker in flow.incomplete:
        if worker not in named:
            yield f"numbers are incomplete, no answer from {worker}"
    if flow.records_lost:
        yield f"{flow.records_lost:,} records lost (mm2py ledger FILE '{flow.flow}' names them)"


def _work_rows(flow: FlowView) -> Iterator[Row]:
    for connector in flow.connectors:
        yield connector.model_dump()
        for task in connector.tasks:
            yield {**task.model_dump(), "name": f"{connector.name}-{task.number}"}
