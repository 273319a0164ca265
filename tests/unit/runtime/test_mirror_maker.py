"""The flows of one process: what one of them does leaves the others alone. Plug-ins by all their names."""

from importlib.metadata import EntryPoint

import pytest

from mm2py.errors import ConfigError
from mm2py.runtime.herder.mirror_maker import MirrorMaker
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.testing.waiting import until
from mm2py.types import ClusterAlias, FlowName
from tests.unit.runtime.herder_fakes import Cluster

ONE = FlowName(ClusterAlias("A"), ClusterAlias("B"))
OTHER = FlowName(ClusterAlias("B"), ClusterAlias("A"))


async def test_a_flow_that_cannot_run_fails_and_the_others_go_on() -> None:
    bad, good = Cluster().node(), Cluster().node()
    bad.errors["prepare"] = [ConfigError("topic is not compacted", remedy="alter it")]
    maker = MirrorMaker({ONE: bad.herder, OTHER: good.herder})
    maker.start()
    await until(lambda: bad.herder.failure is not None and good.meter.state == "STANDBY")
    assert bad.meter.state == "FAILED"
    assert maker.problems(ONE) == ("topic is not compacted; alter it",)
    assert list(maker.problems(OTHER)) == []
    await good.put("c", work="0")
    await good.runs("c-0")
    assert await maker.stop(5.0)
    assert list(await maker.wait()) == [ONE]


def _plugins() -> Plugins:
    module = "tests.unit.runtime.herder_fakes"
    return Plugins([EntryPoint("TestConnector", f"{module}:TestConnector", "mm2py.connectors")])


def test_plugins_are_found_by_java_name_simple_name_and_entry_point() -> None:
    for name in ("TestConnector", "org.example.TestConnector", " TestConnector ", "Test"):
        assert _plugins().find(name).java_class == "org.example.TestConnector"


@pytest.mark.parametrize("name", ["", "com.acme.TestConnector", "Other"])
def test_an_unknown_connector_class_is_refused_with_what_is_installed(name: str) -> None:
    with pytest.raises(ConfigError, match="use one of TestConnector"):
        _plugins().find(name)
