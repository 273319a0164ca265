"""``mm2py migrate mm1`` and ``mm2py import strimzi``: what others were configured with, as a MirrorMaker 2 file.

Flow: command line or YAML -> ``mm2py.config.from_...`` -> the file on standard output, a line for each thing that it does not say on
standard error. With ``--carry-positions`` the positions of the old mirror are stored for the flows first.
"""

from pathlib import Path
from typing import Annotated, Final

import typer

from mm2py.config.written_file import Translation
from mm2py_workers.output import OK, DebugOption, end_with, examples, say

migrate_app: Final = typer.Typer(help="From older mirrors.", no_args_is_help=True)
import_app: Final = typer.Typer(help="From other systems.", no_args_is_help=True)

OutputFileOption = Annotated[
    Path | None, typer.Option("--to", metavar="FILE", help="write this file; else standard output")
]


@migrate_app.command(
    "mm1",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog=examples(
        "mm2py migrate mm1 --consumer.config C --producer.config P --whitelist 'orders.*' --to mm2.properties",
        "mm2py migrate mm1 --consumer.config C --producer.config P --whitelist 'orders.*' --carry-positions --to mm2.properties",
    ),
)
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
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Print the MirrorMaker 2 file of a MirrorMaker 1 command line, whose options follow as they are."""

    def run() -> int:
        from mm2py_workers.mirror_maker_1.migration import migrated

        _print(migrated(context.args, source, target, carries=carry_positions), to)
        return OK

    end_with(run, debug=debug)


@import_app.command(
    epilog=examples(
        "mm2py import strimzi mirror.yaml --to mm2.properties",
        "mm2py import strimzi mirror.yaml --carry-positions --to mm2.properties",
        "kubectl get kafkamirrormaker2 mirror -o yaml | mm2py import strimzi - --secrets /etc/secrets",
    )
)
def strimzi(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="a KafkaMirrorMaker2 resource; - reads standard input"),
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
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Print the MirrorMaker 2 file of a KafkaMirrorMaker2 resource of the Strimzi operator."""

    def run() -> int:
        from mm2py_workers.strimzi_import import imported

        _print(imported(file, secrets, carries=carry_positions), to)
        return OK

    end_with(run, debug=debug)


def _print(found: Translation, to: Path | None) -> None:
    for remark in found.remarks:
        say(remark)
    if to is None:
        typer.echo(found.text, nl=False)
    else:
        to.write_text(found.text, encoding="latin-1")
