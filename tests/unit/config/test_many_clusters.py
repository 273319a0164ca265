"""A hub with many stores: lint and a start read the file as often as for a few, and find what is wrong of each of them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mm2py.config.catalog import Catalog
from mm2py.config.derivation import Layout, Value
from mm2py.config.findings import Severity
from mm2py.config.lint import findings_of
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.properties import load
from mm2py.types import ClusterAlias, FlowName
from mm2py_connectors.config import CONNECTORS


class Counted(Mapping[str, Value]):
    """The keys of a file; counts how often all of them are gone through."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values, self.passes = dict(values), 0

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        self.passes += 1
        return iter(self._values)


def hub(folder: Path, stores: int, *more: str) -> MirrorMakerConfig:
    """Read the file of a hub into which each store is copied."""
    names = ["hub", *(f"s{number}" for number in range(stores))]
    lines = [f"clusters = {', '.join(names)}", "emit.heartbeats.enabled = false"]
    lines += [f"{name}.bootstrap.servers = {name}:9092" for name in names]
    for name in names[1:]:
        lines += [f"{name}->hub.enabled = true", f"{name}->hub.topics = a.*"]
    file = folder / "mm2.properties"
    file.write_text("\n".join([*lines, *more]))
    return MirrorMakerConfig(load(file), CONNECTORS, environ={})


def passes(config: MirrorMakerConfig) -> int:
    """Return how often lint and the configs of all flows go through the file."""
    counted = Counted(config.raw)
    config.raw = counted
    config.layout = Layout(counted, config.clusters, config.option_names)
    assert findings_of(config) == []
    assert [config.flow_configs(it).enabled for it in config.flows()] == [True] * (
        len(config.clusters) - 1
    )
    return counted.passes


def test_the_file_is_gone_through_as_often_for_300_clusters_as_for_three(tmp_path: Path) -> None:
    few, many = hub(tmp_path, 2), hub(tmp_path, 299)
    assert 0 < passes(few) < 20
    assert passes(hub(tmp_path, 2)) == passes(many)
    assert len(many.telling_pairs) <= 2 * 300


@pytest.mark.parametrize(
    "line",
    [
        "s7.offset.storage.replication.factor = x",
        "s7.consumer.fetch.max.bytes = x",
        "s7.sasl.jaas.config = x",
        "s7.security.protocol = x",
        "s7->hub.replication.factor = x",
        "s7->s8.replication.factor = x",
        "hub->s7.tasks.max = x",
        "replication.factor = x",
    ],
)
def test_what_is_wrong_of_one_of_many_clusters_is_found(tmp_path: Path, line: str) -> None:
    secured = ("s7.security.protocol = SASL_SSL", "s7.sasl.mechanism = PLAIN") * ("jaas" in line)
    found = [
        it for it in findings_of(hub(tmp_path, 12, *secured, line)) if it.severity is Severity.ERROR
    ]
    assert {it.key for it in found} == {line.partition(" ")[0]}


def test_the_longest_alias_owns_a_key() -> None:
    clusters = [ClusterAlias(it) for it in ("a", "a.b", "a-", "b", "b.topics")]
    catalog = Catalog(CONNECTORS, frozenset(), clusters)
    for key, flow, name in (
        ("a->b.enabled", ("a", "b"), "enabled"),
        ("a.b->b.enabled", ("a.b", "b"), "enabled"),
        ("a->b.topics.exclude", ("a", "b.topics"), "exclude"),
        ("a-->b.enabled", ("a-", "b"), "enabled"),
        ("a->a.enabled", ("a", "a"), "enabled"),
    ):
        scope = catalog.scope(key)
        assert (scope.flow, scope.name) == (FlowName(*map(ClusterAlias, flow)), name)
    assert catalog.scope("a.b.x").prefix == "a.b."
    assert catalog.scope("a.b.").prefix == "a."
    assert catalog.scope("c->b.enabled").kind == "top"
