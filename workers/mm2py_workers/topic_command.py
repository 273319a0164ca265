"""``mm2py topics``: what is copied to where and in which state, by topic or by partition.

Flow: ``/lag`` or every flow's partitions -> rows in order of their names -> exit code 3 where one failed.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mm2py_workers.answers import Row, count_of, flow_path, text_of
from mm2py_workers.output import OK, UNHEALTHY, Column, Output, OutputOption, Printer
from mm2py_workers.rest_access import Access, FlowOption, asks_rest, flow_name

if TYPE_CHECKING:
    from mm2py_workers.rest_client import RestClient

__all__ = ["show_topics"]


def _topic_state(row: Row) -> str:
    """Return the worst state of its partitions."""
    if count_of(row, "failed_partitions"):
        return "FAILED"
    paused, all_of_it = count_of(row, "paused_partitions"), count_of(row, "partitions")
    if paused:
        return "PAUSED" if paused == all_of_it else "PARTLY PAUSED"
    return "RUNNING"


_TOPICS: Final = (
    Column.text("FLOW", "flow"),
    Column.text("TOPIC", "topic"),
    Column.text("COPY", "target_topic"),
    Column.count("PARTITIONS", "partitions"),
    Column("STATE", _topic_state),
    Column.count("FAILED", "failed_partitions", wide=True),
    Column.count("PAUSED", "paused_partitions", wide=True),
    Column.count("LAG", "lag_records", wide=True),
    Column.age("BEHIND", "lag_ms", wide=True),
)
_PARTITIONS: Final = (
    Column.text("FLOW", "flow"),
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.text("COPY", "target_topic", wide=True),
    Column.text("STATE", "state"),
    Column.count("LAG", "lag_records"),
    Column.age("BEHIND", "lag_ms", wide=True),
    Column.text("TASK", "task"),
    Column.text("WORKER", "worker", wide=True),
    Column.text("CAUSE", "cause"),
)


@asks_rest
def show_topics(
    access: Access,
    topic: Annotated[
        str, typer.Argument(metavar="[TOPIC]", help="a name, or a pattern such as 'orders*'")
    ] = "*",
    *,
    flow: FlowOption = None,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="one line per partition")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """List the topics that are copied.

    Ends with 3 if a partition failed.
    """
    name = None if flow is None else flow_name(flow)
    with access.client() as rest:
        found = _partitions(rest, name) if partitions else _topics(rest, name)
    rows = [it for it in found if fnmatchcase(text_of(it, "topic"), topic)]
    rows.sort(
        key=lambda it: (
            text_of(it, "flow"),
            text_of(it, "topic"),
            count_of(it, "partition") or 0,
        )
    )
    columns = _PARTITIONS if partitions else _TOPICS
    Printer(output).rows(rows, rows, columns, "no such topic is being copied")
    return UNHEALTHY if any(map(_has_failed, rows)) else OK


def _topics(rest: "RestClient", flow: str | None) -> Sequence[Row]:
    return rest.rows("/lag" if flow is None else flow_path(flow, "lag"))


def _partitions(rest: "RestClient", flow: str | None) -> Sequence[Row]:
    flows = [text_of(it, "flow") for it in rest.rows("/flows")] if flow is None else [flow]
    return [it for name in flows for it in rest.rows(flow_path(name, "partitions"))]


def _has_failed(row: Row) -> bool:
    return text_of(row, "state") == "FAILED" or bool(count_of(row, "failed_partitions"))
