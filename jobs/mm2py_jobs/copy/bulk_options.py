"""Options that commands with lanes on Spark have in common."""

from typing import Annotated

import typer

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
RateOption = Annotated[
    int,
    typer.Option(
        "--rate-limit", min=0, help="bytes per second of all lanes together; 0: that of the flow"
    ),
]
ExpiryOption = Annotated[
    bool,
    typer.Option(
        "--accept-expiry",
        help="also copy what the target deletes when the copy is done: it keeps records for a shorter time",
    ),
]
