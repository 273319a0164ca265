"""Where lanes of a command run, and how many: ``--master``, ``--wait-executors``, ``--lanes`` and
``--max-lanes-per-broker``.

Flow: arguments -> ``SparkPlace`` -> ``open`` -> ``OpenSession``. Tasks of Spark do not load it:
typer is a part of a command alone.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from mm2py_jobs.spark.job_watch import WAIT_EXECUTORS_S

if TYPE_CHECKING:
    from mm2py_jobs.spark.session import OpenSession

MasterOption = Annotated[
    str,
    typer.Option(
        "--master",
        help="Spark master; without it the session that exists, else all cores of this machine",
    ),
]


@dataclass(frozen=True, slots=True)
class SparkPlace:
    """A Spark master, how long a run waits for executors, and how many lanes it has at most: in
    all, and at one broker."""

    master: MasterOption = ""
    wait_executors_s: Annotated[
        int,
        typer.Option(
            "--wait-executors",
            min=1,
            metavar="SECONDS",
            help="end the run when the Spark cluster has given it no executor for so long",
        ),
    ] = WAIT_EXECUTORS_S
    lanes: Annotated[
        int,
        typer.Option(
            "--lanes",
            min=0,
            help="into how many tasks of Spark the work is divided at most; 0: by its size, more "
            "than run at once",
        ),
    ] = 0
    lanes_per_broker: Annotated[
        int,
        typer.Option(
            "--max-lanes-per-broker",
            min=0,
            metavar="N",
            help="at most N lanes at a time read from or write to one broker, the others wait "
            "without a slot; 0: any",
        ),
    ] = 0

    def open(self, name: str = "mm2py") -> "OpenSession":
        """Open a session there; see ``open_session``."""
        from mm2py_jobs.spark.session import open_session

        opened = open_session(self.master, name=name)
        opened.wait_executors_s = self.wait_executors_s
        opened.lanes, opened.lanes_per_broker = self.lanes, self.lanes_per_broker
        return opened
