"""Plug-ins that cannot be imported, for any reason: named, and no harm to others."""

import logging
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mm2py.errors import ConfigError
from mm2py.runtime.plugins.catalog import InstalledPlugins
from mm2py.runtime.plugins.plugins import Plugins

GROUP = "mm2py.connectors"
SOURCE = "org.apache.kafka.connect.mirror.MirrorSourceConnector"
GOOD = EntryPoint("Mirror", "mm2py_connectors.mirror_source:MirrorSourceConnector", GROUP)
REASONS = {
    "no_library": "import ctypes\nctypes.CDLL('libnothere.so')\n",
    "no_python": "def broken(:\n",
    "own_error": "raise RuntimeError('no licence')\n",
    "ends": "raise SystemExit('needs another Python')\n",
    "no_module": "import no_such_module_at_all\n",
    "no_class": "",
    "no_connector": "class C: pass\n",
}


@pytest.fixture(params=REASONS)
def broken(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> EntryPoint:
    module = f"plugin_{request.param}"
    (tmp_path / f"{module}.py").write_text(REASONS[request.param])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, module, raising=False)
    return EntryPoint("Broken", f"{module}:C", GROUP)


def test_a_plugin_that_cannot_be_imported_leaves_the_others_usable(broken: EntryPoint) -> None:
    plugins = Plugins([broken, GOOD])
    assert plugins.find("MirrorSourceConnector").java_class == SOURCE
    assert [it.java_class for it in plugins.factories()] == [SOURCE]
    # What a Java worker left in the topics and is not installed here.
    with pytest.raises(ConfigError, match="no such connector is installed"):
        plugins.find("org.example.Elsewhere")
    with pytest.raises(ConfigError, match=r"connector Broken .* (cannot be loaded|no connector)"):
        plugins.find("Broken")


def test_a_plugin_that_cannot_be_imported_is_listed_with_the_reason_and_logged_once(
    broken: EntryPoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    catalog = InstalledPlugins(Plugins([broken, GOOD]))
    for _ in range(2):
        good, bad = catalog.plugins(connectors_only=True)
        assert good.java_class == SOURCE
        assert (bad.java_class, bad.type, bad.version) == ("Broken", "unknown", None)
        assert bad.error.startswith("connector Broken (plugin_")
    assert len(caplog.records) == 1
    assert "connector left out name=Broken" in caplog.records[0].getMessage()
