"""What commands give to jobs: a frozen class for each kind, whose fields are the options of
``mm2py job KIND``.

Flow: arguments -> ``mm2py_cli.command_frame`` -> an object of the class -> what the kind does.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import typer

from mm2py.errors import UsageError
from mm2py_cli.output import FileArgument
from mm2py_jobs.spark.place import MasterOption, SparkPlace

REFUSED: Final = 3
"""Exit code where a check refuses; nothing was changed."""

TopicsOption = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help="topics in place of those of the file: names and Java patterns, comma-separated",
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
        help="also copy what the target deletes when the copy is done: it keeps records for a "
        "shorter time",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowOptions:
    """A flow of a file; what a job has that needs no other options."""

    file: FileArgument
    flow: Annotated[str, typer.Option(metavar="A->B", help="which flow")]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions(FlowOptions):
    """Of ``mm2py job backfill``."""

    topics: Annotated[
        str,
        typer.Option(
            help="source topics: names and Java patterns, comma-separated; all topics of the "
            "flow without it"
        ),
    ] = ""
    start: Annotated[
        str,
        typer.Option(
            "--from", help="earliest, a timestamp, or offset:N; where nothing is copied yet"
        ),
    ] = "earliest"
    end: Annotated[str, typer.Option("--to", help="now, a timestamp, or offset:N (exclusive)")] = (
        "now"
    )
    place: SparkPlace
    rate_limit: RateOption = 0
    accepts_expiry: ExpiryOption = False
    skips_refused: Annotated[
        bool,
        typer.Option(
            "--skip-refused",
            help="copy the partitions that no check refuses, name the others, and end with 3",
        ),
    ] = False
    id: Annotated[
        str,
        typer.Option(
            "--order",
            hidden=True,
            help="id of what is begun; ends in order when standard input does",
        ),
    ] = ""
    """Of the job, where a worker has planned it; this process then ends with that worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(FlowOptions):
    """Of ``mm2py job stream run``."""

    checkpoint: Annotated[
        str, typer.Option(help="folder of Spark's checkpoint; where it is lost, nothing else is")
    ] = ""
    master: MasterOption = ""
    term_s: Annotated[
        float,
        typer.Option("--term", min=1, help="seconds that lanes copy until they are dealt anew"),
    ] = 120.0
    """A second or two pass between terms; partitions that come do not wait for the end of one."""
    most_bytes: Annotated[
        int,
        typer.Option(
            "--max-bytes-per-trigger",
            min=0,
            help="all lanes end a term early when they have copied so much; 0: no limit",
        ),
    ] = 0
    cancel: Annotated[
        bool,
        typer.Option(
            "--cancel",
            help="end a stream whose driver is gone: the flow's workers continue its partitions",
        ),
    ] = False


FROM_MAP: Final = "map"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions(FlowOptions):
    """Of ``mm2py job verify run``."""

    flow: Annotated[str, typer.Option(metavar="A->B", help="which flow", show_default=False)] = ""
    topics: TopicsOption = None
    tier: Annotated[
        int,
        typer.Option(
            min=0,
            max=3,
            help="0 ends only, 1 batches by their bytes, 2 every record and digests, 3 also all "
            "differences",
        ),
    ] = 1
    repairs: Annotated[
        bool, typer.Option("--repair", help="copy again what is missing at the end of a copy")
    ] = False
    deletes: Annotated[
        bool,
        typer.Option(
            "--delete-copies",
            help="with --repair: delete the records of copies that cannot be repaired otherwise, "
            "and copy them again",
        ),
    ] = False
    begins: Annotated[
        str,
        typer.Option(
            "--from",
            metavar=FROM_MAP,
            help="map: leave out what another program copied before the flow's offset map begins",
        ),
    ] = ""
    rate_limit: ReadRateOption = 0
    place: SparkPlace

    def check(self) -> None:
        """Refuse what does not belong together; ``UsageError``: two options contradict each
        other."""
        if not self.flow:
            raise UsageError("--flow is missing", remedy="write --flow 'A->B'")
        if self.begins not in ("", FROM_MAP):
            raise UsageError(f"--from {self.begins}", remedy=f"write --from {FROM_MAP}")
        if self.deletes and not self.repairs:
            raise UsageError("--delete-copies is about --repair", remedy="add --repair")
        if self.repairs and not self.tier:
            raise UsageError(
                "--repair needs records that were compared", remedy="use --tier 1 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsOptions(FlowOptions):
    """Of ``mm2py job verify plan``."""

    topics: TopicsOption = None


class ShapeOption(StrEnum):
    """What a row of an archive is."""

    BATCHES = "batches"
    RECORDS = "records"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions(FlowOptions):
    """Of ``mm2py job archive``."""

    folder: Annotated[
        str, typer.Option("--to", metavar="DIR", help="folder, or a path of pyarrow.fs or fsspec")
    ]
    topics: TopicsOption = None
    shape: Annotated[
        ShapeOption, typer.Option(help="batches can be restored, records can be queried")
    ] = ShapeOption.BATCHES
    joins: Annotated[
        bool,
        typer.Option(
            "--join", help="then join the small files of each partition and date that runs leave"
        ),
    ] = False
    keep: Annotated[
        str,
        typer.Option(
            metavar="AGE",
            help="then remove files whose last record is older: '90 days'; all are kept without it",
        ),
    ] = ""
    rate_limit: ReadRateOption = 0
    place: SparkPlace

    def oldest_ms(self, now_ms: int) -> int:
        """Return from when on records are kept, -1: all of them; ``UsageError``: ``--keep`` is no
        age."""
        if not self.keep:
            return -1
        from mm2py.mirror.start_positions import age_ms  # help does without

        age = age_ms(f"{self.keep} ago")
        if age < 0:
            raise UsageError(f"--keep {self.keep} is no age", remedy="write --keep '90 days'")
        return now_ms - age


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions(FlowOptions):
    """Of ``mm2py job restore``."""

    folder: Annotated[str, typer.Option("--from", metavar="DIR", help="as --to of mm2py archive")]
    topics: Annotated[
        str | None, typer.Option(metavar="REGEX", help="archived topics; default: all")
    ] = None
    rename: Annotated[
        str | None,
        typer.Option(metavar="REGEX=REPLACEMENT", help="other names than the flow's copies have"),
    ] = None
    end: Annotated[
        str,
        typer.Option(
            "--to",
            help="now (all that is archived), a timestamp, 1 hour ago, or offset:N (exclusive)",
        ),
    ] = "now"
    place: SparkPlace
    rate_limit: RateOption = 0
    accepts_expiry: ExpiryOption = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunOptions(FlowOptions):
    """Of ``mm2py job rerun``; no partitions are all of them."""

    topic: Annotated[str, typer.Option(help="topic of the source")]
    into: Annotated[str, typer.Option(metavar="TOPIC", help="new or empty topic of the target")]
    start: Annotated[
        str, typer.Option("--from", help="earliest, a timestamp, 24 hours ago, or offset:N")
    ] = "earliest"
    end: Annotated[
        str, typer.Option("--to", help="now, a timestamp, 1 hour ago, or offset:N (exclusive)")
    ] = "now"
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", min=0, help="this one only; may be repeated"),
    ] = None
