"""Every example folder does what its README promises, on two real clusters."""

import subprocess
import sys
from pathlib import Path

import pytest

from mm2py.config.lint import lint
from mm2py_connectors.config import CONNECTORS
from tests.kit.kafka.region import KafkaAddress

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent.name for path in (ROOT / "examples").glob("*/show.py"))


def test_there_is_an_example_for_each_way_of_two_regions() -> None:
    assert FOLDERS == [
        "active_active_default",
        "active_active_same_names",
        "failover",
        "one_way_same_names",
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_example_shows_what_its_readme_says(
    folder: str, region_a: KafkaAddress, region_b: KafkaAddress
) -> None:
    clusters = [region_a.bootstrap_servers, region_b.bootstrap_servers]
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{folder}.show", *clusters],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "OK"


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_example_is_short_and_its_file_has_no_findings(folder: str) -> None:
    lines = (ROOT / "examples" / folder / "README.md").read_text().splitlines()
    assert len([line for line in lines if line]) <= 10
    assert lint(ROOT / "examples" / folder / "mm2.properties", CONNECTORS) == []
