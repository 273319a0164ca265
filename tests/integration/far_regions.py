"""Two clusters, each behind a line that a test can delay, stall and cut.

Flow: ``far_pair`` -> tests give a flow ``Rig.bootstrap`` and break ``Far.line``; ``heal`` afterwards.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from mm2py.embedded.region import Listener, Region, start_regions
from mm2py.testing.delay_proxy import DelayProxy

__all__ = ["Far", "Rig", "far_pair"]

LISTENER: Final = "FAR"


@dataclass(frozen=True, slots=True)
class Far:
    """A cluster and the line to it; its plain listener is the tests' own way past the line."""

    region: Region
    line: DelayProxy


@dataclass(frozen=True, slots=True)
class Rig:
    """Source and target, each behind a line of its own."""

    source: Far
    target: Far

    @property
    def bootstrap(self) -> dict[str, str]:
        """Properties for ``write_flow`` by which a flow knows both clusters by their lines only."""
        return {
            "{source}.bootstrap.servers": self.source.line.bootstrap_servers,
            "{target}.bootstrap.servers": self.target.line.bootstrap_servers,
        }

    def heal(self) -> None:
        """Take every fault and delay away."""
        for far in (self.source, self.target):
            far.line.heal()
            far.line.set_round_trip(0.0)


@contextmanager
def far_pair() -> Generator[Rig]:
    """Start the two clusters; both are removed at the end."""
    with ExitStack() as stack:
        found: list[Far] = []
        for name in ("far-source", "far-target"):
            line = stack.enter_context(DelayProxy())
            listener = Listener(LISTENER, "PLAINTEXT", advertise=line.front)
            region = Region(name, listeners=[listener])
            stack.callback(region.close)
            found.append(Far(region, line))
        start_regions(*(far.region for far in found))
        yield Rig(*found)
