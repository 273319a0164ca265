"""Two clusters, each behind a line that a test can delay, stall and cut, or both behind one of real delay.

Flow: ``far_pair`` -> tests give a flow ``Rig.bootstrap`` and break ``Far.line``; ``heal`` afterwards.
``two_sides`` -> a flow runs ``TwoSides.inside`` the line, with one of the two clusters at its far end.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from tests.kit.kafka.region import Region, start_regions
from tests.kit.kafka.server_properties import Listener
from tests.kit.lines.delay_proxy import DelayProxy
from tests.kit.lines.far_line import FarLine

LISTENER: Final = "FAR"
NEAR_LISTENER: Final = "NEAR"


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


@dataclass(frozen=True, slots=True)
class TwoSides:
    """Source and target with default brokers, and a line whose delay their sockets feel."""

    source: Region
    target: Region
    inside: tuple[str, ...]

    def bootstrap(self, *, far: Region) -> dict[str, str]:
        """Properties for ``write_flow`` by which a flow inside reaches one cluster over the line."""
        sides = {"source": self.source, "target": self.target}
        return {
            f"{{{name}}}.bootstrap.servers": side.listener_servers(
                LISTENER if side is far else NEAR_LISTENER
            )
            for name, side in sides.items()
        }


@contextmanager
def two_sides(one_way_s: float) -> Generator[TwoSides]:
    """Start the two clusters and the line.

    Raises:
        LineUnavailableError: this machine does not allow it.
    """
    with FarLine(one_way_s) as line, ExitStack() as stack:
        listeners = [
            Listener(LISTENER, "PLAINTEXT", host=line.far_host),
            Listener(NEAR_LISTENER, "PLAINTEXT", host=line.near_host),
        ]
        source, target = (
            Region(name, listeners=listeners) for name in ("wan-source", "wan-target")
        )
        for region in (source, target):
            stack.callback(region.close)
        start_regions(source, target)
        yield TwoSides(source, target, line.inside)
