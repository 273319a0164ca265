"""The schema library is loaded without the client around it."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from mm2py.protocol.schema import QuietPackage, prepare_package


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_only_the_schemas_of_the_library_are_loaded() -> None:
    code = "import sys, mm2py.protocol.messages; print('kafka.net' in sys.modules)"
    assert run(code) == "False"


def test_whoever_asks_for_the_client_still_gets_it() -> None:
    code = "import mm2py.protocol.messages, kafka; print(kafka.KafkaProducer.__name__)"
    assert run(code) == "KafkaProducer"


def test_a_library_that_is_loaded_already_is_used_as_it_is() -> None:
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import kafka, mm2py.protocol.messages as m; print(m.metadata(None).api_key, kafka.KafkaProducer.__name__)"
    )
    assert run(code) == "3 KafkaProducer"


def test_a_quiet_package_loads_the_real_one_when_a_name_is_missing() -> None:
    package = QuietPackage("colorsys")
    package.__spec__ = find_spec("colorsys")
    assert callable(package.rgb_to_hsv)
    with pytest.raises(AttributeError, match="__version__"):
        _ = package.__version__
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = QuietPackage("nothing").no_such_name


def test_preparing_twice_changes_nothing() -> None:
    before = sys.modules["kafka"]
    prepare_package()
    assert sys.modules["kafka"] is before
