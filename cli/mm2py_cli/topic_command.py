"""``mm2py topics``: what is copied to where and in which state, by topic or by partition.

Flow: ``/flows``, and ``/lag`` or every flow's partitions -> rows in order of their names -> exit
code 3 where one is not copied, or nothing is known of a flow.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Final

import typer

from mm2py.flows.view_models import FlowView, PartitionView, TopicView
from mm2py_cli.flow_commands import NOTHING, WELL, health, is_well, say_resting
from mm2py_cli.output import UNHEALTHY, Column, Printer
from mm2py_cli.rest_access import Access, FlowOption, asks_rest, flow_name
from mm2py_workers.answers import flow_path

_TOPICS: Final = (
    Column.text("FLOW", "flow"),
    Column.text("TOPIC", "topic"),
    Column.text("COPY", "target_topic"),
    Column.count("PARTITIONS", "partitions"),
    Column.text("STATE", "state"),
    Column.count("FAILED", "failed_partitions", wide=True),
    Column.count("HELD", "held_partitions", wide=True),
    Column.count("PAUSED", "paused_partitions", wide=True),
    Column.count("LAG", "lag_records", wide=True),
    Column.age("RPO", "lag_ms", wide=True),
)
_PARTITIONS: Final = (
    Column.text("FLOW", "flow"),
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.text("COPY", "target_topic", wide=True),
    Column.text("STATE", "state"),
    Column.count("LAG", "lag_records"),
    Column.age("RPO", "lag_ms", wide=True),
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
    printer: Printer,
) -> int:
    """List the topics that are copied.

    Ends with 3 if one is not (FAILED, HELD), if a flow is in a state in which none of them is, or
    has none and is not well, or if nothing matches TOPIC.
    """
    rows: Sequence[PartitionView | TopicView]
    with access.client() as rest:
        if flow is None:
            flows = rest.views(FlowView, "/flows")
        else:
            flows = [rest.view(FlowView, flow_path(flow_name(flow)))]
        if partitions:
            rows = [
                it
                for view in flows
                for it in rest.views(PartitionView, flow_path(view.flow, "partitions"))
            ]
        else:
            path = "/lag" if flow is None else flow_path(flows[0].flow, "lag")
            rows = rest.views(TopicView, path)
    rows = sorted((row for row in rows if fnmatchcase(row.topic, topic)), key=_place)
    columns = _PARTITIONS if partitions else _TOPICS
    printer.rows(rows, rows, columns, NOTHING if topic == "*" else f"no topic {topic} is copied")
    say_resting(flows, rows)
    copied = {row.flow for row in rows}
    # Of one that is DEGRADED the rows tell; where the target does not answer, topics are RUNNING.
    told = WELL | {"DEGRADED"}
    code = health([it for it in flows if it.flow not in copied or it.state not in told])
    # What a stream on Spark has is held, too.
    unwell = {it.flow for it in flows if not is_well(it)}
    stuck = any(
        row.state == "FAILED" or (row.state == "HELD" and row.flow in unwell) for row in rows
    )
    return UNHEALTHY if stuck or (topic != "*" and not rows) else code


def _place(row: PartitionView | TopicView) -> tuple[str, str, int]:
    return row.flow, row.topic, row.partition if isinstance(row, PartitionView) else 0
