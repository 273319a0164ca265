"""What REST of one process answers about; loads no HTTP library.

Flow: ``wiring``, ``connect_wiring`` -> ``Served`` -> ``RestNode.serve`` -> ``rest_wiring``.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mm2py.flows.fleet import FlowFleet
from mm2py.observability.metrics import FlowMeter
from mm2py.runtime.herder.herder import Herder
from mm2py.types import FlowName
from mm2py_workers.flow_parts import NodeParts


@dataclass(frozen=True, slots=True)
class Served:
    """What REST answers about: herders by flow (None: the one of an ordinary worker).

    ``fleet`` has the flows that ``/flows`` shows and changes, ``property_problem`` judges names of
    their properties and ``readers`` has the connectors they are for; an ordinary worker has no
    flows, its counts are in ``meters``.
    """

    herders: Mapping[FlowName | None, Herder]
    parts: NodeParts
    fleet: FlowFleet | None = None
    property_problem: Callable[[str], str] = lambda _: ""
    readers: Callable[[str], Sequence[str]] = lambda _: ()
    meters: Callable[[], Collection[FlowMeter]] = tuple
    file: Path | None = None
    """The properties file of a worker that has flows."""

    @property
    def dedicated(self) -> bool:
        """Whether each flow is a worker of its own."""
        return self.fleet is not None
