"""What commands with lanes on Spark have in common: options, and how they end where a check refuses."""

from collections.abc import Callable
from typing import Annotated, Final

import typer

REFUSED: Final = 3
"""A check refuses; nothing was changed."""

BACKFILL: Final = "backfill"
RESTORE: Final = "restore"

MasterOption = Annotated[
    str,
    typer.Option(
        "--master",
        help="Spark master; without it the session that exists, else all cores of this machine",
    ),
]
WaitOption = Annotated[
    int,
    typer.Option(
        "--wait-executors",
        min=1,
        metavar="SECONDS",
        help="end the run when the Spark cluster has given it no executor for so long",
    ),
]
LanesOption = Annotated[
    int,
    typer.Option(
        "--lanes",
        min=0,
        help="into how many tasks of Spark the work is divided at most; 0: by its size, more than run at once",
    ),
]
LanesPerBrokerOption = Annotated[
    int,
    typer.Option(
        "--max-lanes-per-broker",
        min=0,
        metavar="N",
        help="at most N lanes at a time read from or write to one broker, the others wait without a slot; 0: any",
    ),
]
RateOption = Annotated[
    int,
    typer.Option(
        "--rate-limit", min=0, help="bytes per second of all lanes together; 0: that of the flow"
    ),
]
ReadRateOption = Annotated[
    int,
    typer.Option(
        "--rate-limit",
        min=0,
        help="bytes per second that all lanes together read of a cluster; 0: as fast as they can",
    ),
]
ExpiryOption = Annotated[
    bool,
    typer.Option(
        "--accept-expiry",
        help="also copy what the target deletes when the copy is done: it keeps records for a shorter time",
    ),
]
SkipOption = Annotated[
    bool,
    typer.Option(
        "--skip-refused",
        help="copy the partitions that no check refuses, name the others, and end with 3",
    ),
]


def refusing(command: Callable[[], int]) -> Callable[[], int]:
    """Return a command whose refusals end with their own exit code and one line on standard error."""

    def run() -> int:
        from mm2py.storage.job_claim import BackfillRefusedError
        from mm2py_cli.output import say

        try:
            return command()
        except BackfillRefusedError as error:
            say(f"mm2py: {error}")
            return REFUSED

    return run
