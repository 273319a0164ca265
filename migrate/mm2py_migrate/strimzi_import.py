"""A ``KafkaMirrorMaker2`` resource as a file, and the positions of the operator's connectors as those of its flows.

Flow: YAML -> ``mm2py_migrate.from_strimzi`` -> the file; with ``carries`` each flow's plan from that very text -> ``migrated_positions``.
"""

import asyncio
from dataclasses import replace

from mm2py.types import ClusterAlias, FlowName
from mm2py_migrate.from_strimzi import mirror_maker_2_file, operator_flows
from mm2py_migrate.migrated_positions import carry_operator_positions, plan_of
from mm2py_migrate.written_file import Translation
from mm2py_migrate.yaml_resources import resource_of


def imported(file: str, secrets: str, *, carries: bool) -> Translation:
    """Return the file of a resource; store the positions of its flows first where ``carries``.

    Raises:
        ConfigError: the resource is wrong; or of ``carry_operator_positions``.
    """
    resource = resource_of(file)
    found = mirror_maker_2_file(resource, secrets=secrets, carries=carries)
    told: list[str] = []
    for it in operator_flows(resource) if carries else ():
        flow = FlowName(ClusterAlias(it.source), ClusterAlias(it.target))
        told += asyncio.run(carry_operator_positions(plan_of(found.text, flow), it))
    return replace(found, remarks=(*found.remarks, *told))
