"""The schema library is loaded without the client around it."""

import subprocess
import sys


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
