"""``make demo``: its options."""

import os
from typing import Annotated

import typer

from examples.demo.demo import DemoOptions, run_demo
from mm2py_cli.output import DebugOption, end_with


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(
            envvar="DEMO_SECONDS",
            min=1,
            help="run unattended for so long, then compare both regions and exit",
        ),
    ] = None,
    rate: Annotated[int, typer.Option(min=1, help="records per second and region")] = 3_000,
    workers: Annotated[
        int, typer.Option(min=1, max=9, help="processes that share the flows; kill one and see")
    ] = 1,
    backfill: Annotated[  # noqa: FBT002 - typer's way to declare a flag
        bool, typer.Option("--backfill", help="a topic with history is copied by Spark meanwhile")
    ] = False,
    debug: DebugOption = False,  # noqa: FBT002 - typer's way to declare a flag
) -> None:
    """Show two real Kafka regions mirroring each other."""

    def play() -> int:
        options = DemoOptions(
            seconds=seconds, rate=rate, workers=workers, backfill=backfill, debug=debug
        )
        return run_demo(options)

    end_with(play, debug=debug)


def main() -> None:
    """Run it; a DEMO_SECONDS that is set but empty means attended, as in the Makefile."""
    if not os.environ.get("DEMO_SECONDS", "x").strip():
        del os.environ["DEMO_SECONDS"]
    typer.run(demo)


if __name__ == "__main__":
    main()
