"""Kafka's own converters still write what our unit tests expect."""

import json
from pathlib import Path

import pytest

from tests.kit.kafka.java import compile_java, run_java

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[1]


def test_the_truth_that_converters_are_compared_with_is_what_java_says(tmp_path: Path) -> None:
    compile_java([ROOT / "java" / "Conversions.java"], tmp_path)
    done = run_java("Conversions", classpath=[tmp_path], timeout_s=120)
    written = (ROOT / "data" / "conversions.json").read_text()
    assert json.loads(done.check()) == json.loads(written)
