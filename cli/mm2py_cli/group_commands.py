"""``mm2py group list|describe|translate``: consumer groups of a flow, and offsets on both of its
clusters.

Flow: ``/flows/{flow}/groups``, ``/flows/{flow}/translate`` -> rows -> table, JSON or YAML -> exit
code 3 where a group would skip records or an offset has no place on the other side.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Final
from urllib.parse import quote

import typer

from mm2py.errors import UsageError
from mm2py.flows.view_models import Direction, GroupView, TranslationView
from mm2py.observability.logging import some_of
from mm2py_cli.flow_commands import FlowArgument
from mm2py_cli.output import OK, UNHEALTHY, Column, Printer, examples, say, shown_name
from mm2py_cli.rest_access import Access, asks_rest, flow_name
from mm2py_workers.answers import Shown, flow_path, text_of, texts_of

group_app: Final = typer.Typer(
    help="Consumer groups of a flow: where they would continue on the other cluster.",
    no_args_is_help=True,
    epilog=examples(
        "mm2py group list A/B",
        "mm2py group describe A/B billing",
        "mm2py group translate A/B orders 0 4711",
    ),
)
_FOUND: Final = frozenset({"copied", "at-end"})


def _place(part: Shown) -> str:
    place = text_of(part, "place")
    return "not copied by mm2py yet" if place == "no-map" else place


_GROUPS: Final = (
    Column.name("GROUP", "group"),
    Column.text("TYPE", "type"),
    Column.text("STATE", "state"),
    Column.text("STATE ON TARGET", "state_there"),
    Column("PARTITIONS", lambda row: str(len(texts_of(row, "partitions")))),
    Column.count("READS AGAIN", "reads_again"),
    Column.count("SKIPS", "skips"),
    Column.text("NOT SYNCED", "not_synced", wide=True),
)
_PARTITIONS: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.text("COPY", "target_topic", wide=True),
    Column.count("COMMITTED", "committed"),
    Column.count("EXACT", "exact"),
    Column.count("CHECKPOINT", "checkpoint"),
    Column.count("COMMITTED ON TARGET", "committed_there"),
    Column.count("READS AGAIN", "reads_again"),
    Column.count("SKIPS", "skips"),
    Column("PLACE", _place),
)


@group_app.command(
    "list", epilog=examples("mm2py group list A/B", "mm2py group list A/B -o json --top 10000")
)
@asks_rest
def list_groups(
    access: Access,
    flow: FlowArgument,
    *,
    top: Annotated[int, typer.Option(min=1, max=10_000, help="so many groups at most")] = 1_000,
    printer: Printer,
) -> int:
    """List the groups that a flow checkpoints: what each would read again or skip on the target.

    Ends with 3 if one would skip records, or has no offset for the target yet.
    """
    with access.client() as rest:
        groups = rest.views(GroupView, flow_path(flow_name(flow), "groups"), {"top": top})
    printer.rows(groups, groups, _GROUPS, "no group is checkpointed")
    if printer.is_table:
        why: dict[str, list[str]] = {}
        for group in groups:
            why.setdefault(group.not_synced, []).append(shown_name(group.group))
        why.pop("", None)
        for reason, names in why.items():
            say(f"{some_of(names, 1)} not synced: {reason}")
    return _health(groups)


@group_app.command(
    "describe",
    epilog=examples("mm2py group describe A/B billing", "mm2py group describe A/B billing -o yaml"),
)
@asks_rest
def describe_group(
    access: Access,
    flow: FlowArgument,
    group: Annotated[str, typer.Argument(metavar="GROUP", show_default=False)],
    *,
    printer: Printer,
) -> int:
    """Describe one group by partition: committed offset, its place on the target, and what is
    committed there.

    Ends with 3 if it would skip records, or has no offset for the target yet.
    """
    if not group:
        raise UsageError("a group without a name cannot be described; mm2py group list shows it")
    with access.client() as rest:
        view = rest.view(GroupView, flow_path(flow_name(flow), "groups", _segment(group)))
    if printer.is_table:
        printer.fields(list(_fields(view)))
        printer.show(printer.table(view.partitions, _PARTITIONS))
        for part in view.partitions:
            if part.reason:
                say(f"{part.topic}-{part.partition}: {part.reason}")
    else:
        printer.document(view)
    return _health([view])


@group_app.command(
    "translate",
    epilog=examples(
        "mm2py group translate A/B orders 0 4711",
        "mm2py group translate A/B A.orders 0 4700 --direction to-source -o json",
    ),
)
@asks_rest
def translate_offset(
    access: Access,
    flow: FlowArgument,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, show_default=False)],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, show_default=False)],
    *,
    direction: Annotated[
        Direction, typer.Option(help="to-source: topic and offset are those of the copy")
    ] = Direction.TO_TARGET,
    printer: Printer,
) -> int:
    """Translate one offset exactly.

    Ends with 3 if its record is not on the other side: lost, never existed, or not copied yet.
    """
    query: dict[str, str | int] = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "direction": direction.value,
    }
    with access.client() as rest:
        view = rest.view(TranslationView, flow_path(flow_name(flow), "translate"), query)
    if printer.is_table:
        printer.fields(
            [
                ("FROM", f"{topic}-{partition} offset {offset}"),
                ("TO", f"{view.to_topic}-{partition}"),
                ("OFFSET", "-" if view.to_offset is None else str(view.to_offset)),
                ("PLACE", view.place),
                ("MEANING", view.text),
            ]
        )
    else:
        printer.document(view)
    return OK if view.place in _FOUND else UNHEALTHY


def _segment(name: str) -> str:
    """Return a name as one segment of a path; . and .. would be taken for steps in it."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def _fields(group: GroupView) -> Iterator[tuple[str, str]]:
    yield "GROUP", shown_name(group.group)
    yield "TYPE", group.type or "(not known)"
    for title, state, members in (
        ("STATE", group.state, group.members),
        ("STATE ON TARGET", group.state_there, group.members_there),
    ):
        shown = state or "(no such group)"
        yield title, shown if members is None else f"{shown}, {members} members"
    if group.not_synced:
        yield "NOT SYNCED", group.not_synced


def _health(groups: Sequence[GroupView]) -> int:
    # A consumer that moves now would begin by auto.offset.reset.
    lost = any(part.continues_at is None for group in groups for part in group.partitions)
    return UNHEALTHY if lost or any(group.skips for group in groups) else OK
