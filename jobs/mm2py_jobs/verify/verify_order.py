"""The arguments of a verify and of its repair."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from mm2py.errors import UsageError
from mm2py_jobs.spark.session import SparkPlace

FROM_MAP: Final = "map"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOrder:
    """The arguments of ``mm2py verify``."""

    file: Path
    flow: str | None
    topics: str | None
    tier: int
    place: SparkPlace
    repairs: bool = False
    deletes: bool = False
    rate_limit: int = 0
    begins: str = ""
    """``map``: what lies below the beginning of the offset map is left out."""

    def check(self) -> None:
        """Refuse what does not belong together.

        Raises:
            UsageError: two options contradict each other.
        """
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
