"""``KafkaMirrorMaker2`` resources as a file, and the positions of the operator's connectors as
those of its flows.

Flow: YAML -> the documents of the kind -> ``mm2py_migrate.from_strimzi`` -> the file; with
``carries`` each flow's plan from that very text -> ``migrated_positions``.
"""

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import yaml

from mm2py.errors import ConfigError
from mm2py.types import ClusterAlias, FlowName
from mm2py_migrate.from_strimzi import KIND, mirror_maker_2_file, operator_flows
from mm2py_migrate.migrated_positions import carry_operator_positions, plan_of
from mm2py_migrate.written_file import TranslatedFile


def imported(file: str, secrets: str, *, carries: bool) -> TranslatedFile:
    """Return the file of all resources in a file; store the positions of its flows first where
    ``carries``. ``ConfigError``: a resource is wrong; or of ``carry_operator_positions``."""
    resources = resources_of(file)
    written = mirror_maker_2_file(*resources, secrets=secrets, carries=carries)
    told: list[str] = []
    for it in operator_flows(*resources) if carries else ():
        flow = FlowName(ClusterAlias(it.source), ClusterAlias(it.target))
        told += asyncio.run(carry_operator_positions(plan_of(written.text, flow), it))
    return replace(written, remarks=(*written.remarks, *told))


def resources_of(file: str) -> Sequence[object]:
    """Return each ``KafkaMirrorMaker2`` of a file with one or more documents; ``-`` is standard
    input. ``ConfigError``: it cannot be read, is no YAML, or has none."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        documents = cast("list[object]", list(yaml.safe_load_all(text)))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", remedy="check the path") from None
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{file} is no YAML: {' '.join(str(error).split())}", remedy="correct the file"
        ) from None
    resources = [it for it in _resources(documents) if it.get("kind") == KIND]
    if not resources:
        raise ConfigError(f"{file} has no resource of kind {KIND}", remedy="give a file with one")
    return resources


def _resources(documents: Iterable[object]) -> Iterator[Mapping[str, object]]:
    """Return the resources of documents; a list, as of ``kubectl get -o yaml``, is opened."""
    for document in documents:
        if not isinstance(document, dict):
            continue
        resource = cast("Mapping[str, object]", document)
        items = resource.get("items")
        if str(resource.get("kind", "")).endswith("List") and isinstance(items, list):
            yield from _resources(cast("list[object]", items))
        else:
            yield resource
