"""``mm2py topics``: what is copied to where and in which state, by topic or by partition.

Flow: ``/flows``, and ``/lag`` or every flow's partitions -> rows in order of their names -> exit code 3 where one is
not copied, or nothing is known of a flow.
"""

from fnmatch import fnmatchcase
from typing import Annotated, Final

import typer

from mm2py_workers.answers import count_of, flow_path, text_of
from mm2py_workers.flow_commands import NOTHING, health, is_well
from mm2py_workers.output import UNHEALTHY, Column, Output, OutputOption, Printer
from mm2py_workers.rest_access import Access, FlowOption, asks_rest, flow_name

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
    output: OutputOption = Output.TABLE,
) -> int:
    """List the topics that are copied.

    Ends with 3 if one is not (FAILED, HELD), or a flow that is not well has none.
    """
    with access.client() as rest:
        flows = rest.rows("/flows") if flow is None else [rest.row(flow_path(flow_name(flow)))]
        names = [text_of(it, "flow") for it in flows]
        if partitions:
            found = [it for name in names for it in rest.rows(flow_path(name, "partitions"))]
        else:
            found = rest.rows("/lag" if flow is None else flow_path(names[0], "lag"))
    rows = [it for it in found if fnmatchcase(text_of(it, "topic"), topic)]
    rows.sort(
        key=lambda it: (
            text_of(it, "flow"),
            text_of(it, "topic"),
            count_of(it, "partition") or 0,
        )
    )
    columns = _PARTITIONS if partitions else _TOPICS
    Printer(output).rows(
        rows, rows, columns, NOTHING if topic == "*" else f"no topic {topic} is copied"
    )
    copied = {text_of(it, "flow") for it in rows}
    code = health([it for it in flows if text_of(it, "flow") not in copied])
    # What a stream on Spark has is held, too.
    unwell = {text_of(it, "flow") for it in flows if not is_well(it)}
    stuck = any(
        state == "FAILED" or (state == "HELD" and text_of(it, "flow") in unwell)
        for it in rows
        for state in [text_of(it, "state")]
    )
    return UNHEALTHY if stuck else code
