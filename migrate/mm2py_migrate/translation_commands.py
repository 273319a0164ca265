"""``mm2py migrate mm1`` and ``mm2py import strimzi``: what others were configured with, as a
MirrorMaker 2 file.

Flow: command line or YAML -> ``mm2py.config.from_...`` -> the file on standard output, a line for
each thing that it does not say on standard error. With ``--carry-positions`` the positions of the
old mirror are stored for the flows first.
"""

from pathlib import Path
from typing import Annotated, Final

import typer

from mm2py_cli.command_frame import framed
from mm2py_cli.output import OK, Panel, examples, say
from mm2py_migrate.written_file import TranslatedFile

migrate_app: Final = typer.Typer(help="From older mirrors.", no_args_is_help=True)
import_app: Final = typer.Typer(help="From other systems.", no_args_is_help=True)

OutputFileOption = Annotated[
    Path | None, typer.Option("--to", metavar="FILE", help="write this file; else standard output")
]


@migrate_app.command(
    "mm1",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog=examples(
        "mm2py migrate mm1 --consumer.config C --producer.config P --whitelist 'orders.*' --to "
        "mm2.properties",
        "mm2py migrate mm1 --consumer.config C --producer.config P --whitelist 'orders.*' "
        "--carry-positions --to mm2.properties",
    ),
)
@framed
def migrate_mm1(
    context: typer.Context,
    source: Annotated[str, typer.Option("--source", help="name of the source")] = "source",
    target: Annotated[str, typer.Option("--target", help="name of the target")] = "target",
    carry_positions: Annotated[  # noqa: FBT002 - typer's way to declare a flag
        bool,
        typer.Option(
            "--carry-positions", help="store the group's positions for the flow, on the target"
        ),
    ] = False,
    to: OutputFileOption = None,
) -> int:
    """Print the MirrorMaker 2 file of a MirrorMaker 1 command line, whose options follow as they
    are."""
    from mm2py_migrate.mirror_maker_1.migration import migrated

    _print(migrated(context.args, source, target, carries=carry_positions), to)
    return OK


@import_app.command(
    epilog=examples(
        "mm2py import strimzi mirror.yaml --to mm2.properties",
        "mm2py import strimzi mirror.yaml --carry-positions --to mm2.properties",
        "kubectl get kafkamirrormaker2 mirror -o yaml | mm2py import strimzi - --secrets "
        "/etc/secrets",
    )
)
@framed
def strimzi(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="KafkaMirrorMaker2 resources; - reads standard input"),
    ],
    secrets: Annotated[
        str,
        typer.Option(metavar="DIR", help="has a folder with the files of each Kubernetes secret"),
    ] = "/etc/mm2py/secrets",
    carry_positions: Annotated[  # noqa: FBT002 - typer's way to declare a flag
        bool,
        typer.Option(
            "--carry-positions",
            help="store the positions of the operator's connectors for the flows, on the target",
        ),
    ] = False,
    to: OutputFileOption = None,
) -> int:
    """Print the MirrorMaker 2 file of KafkaMirrorMaker2 resources of the Strimzi operator."""
    from mm2py_migrate.strimzi_import import imported

    _print(imported(file, secrets, carries=carry_positions), to)
    return OK


def _print(translation: TranslatedFile, to: Path | None) -> None:
    for remark in translation.remarks:
        say(remark)
    if to is None:
        typer.echo(translation.text, nl=False)
    else:
        to.write_text(translation.text, encoding="latin-1")


@framed
def consumer_offset_checker(
    group: Annotated[str, typer.Option("--group", help="the consumer group")],
    servers: Annotated[
        str,
        typer.Option("--bootstrap-server", metavar="HOST:PORT,...", help="brokers of its cluster"),
    ] = "",
    topic: Annotated[
        str, typer.Option("--topic", metavar="NAME,...", help="these topics only")
    ] = "",
    broker_info: Annotated[  # noqa: FBT002 - typer's way to declare a flag
        bool, typer.Option("--broker-info", help="list the brokers too")
    ] = False,
    command_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="client properties, such as a login")
    ] = None,
    zkconnect: Annotated[str, typer.Option(hidden=True)] = "",
) -> int:
    """Print how far a consumer group has read, as MirrorMaker 1's guides show it."""
    from mm2py_migrate.offset_checker import OffsetsQuestion, check_offsets

    question = OffsetsQuestion(
        servers=servers,
        group=group,
        topics=[it.strip() for it in topic.split(",") if it.strip()],
        config=command_config,
        shows_brokers=broker_info,
        zookeeper=zkconnect,
    )
    return check_offsets(question)


def add_commands(app: typer.Typer) -> None:
    """Add the commands of who comes from another mirror."""
    app.add_typer(migrate_app, name="migrate", rich_help_panel=Panel.FILES)
    app.add_typer(import_app, name="import", rich_help_panel=Panel.FILES)
    app.command("consumer-offset-checker", rich_help_panel=Panel.LOOK)(consumer_offset_checker)
