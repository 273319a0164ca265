"""Connect's dialect: what Java's worker answers to some 400 requests is recorded, and ours answers the same.

``RECORD_JAVA_ANSWERS=1`` writes Java's answers anew.
"""

import os
import re
from pathlib import Path

import pytest

from mm2py.clock import closing
from tests.integration.connect_dialogue import Exchange, exchanges, hold, write_exchanges
from tests.integration.connect_process import DISTRIBUTED, rest_of, write_worker
from tests.integration.java_connect import JavaConnect
from tests.integration.mirror_process import Mirror, until_equal
from tests.integration.rest_asking import ask
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, write

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

COMPATIBILITY = Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md"


@pytest.fixture
def words(setup: Setup) -> dict[str, str]:
    topic = setup.topic("recorded", 2)
    write(setup.a, topic, [Sent(partition, b"x") for partition in (0, 1) for _ in range(3)])
    servers = {"ORIGIN": setup.a.bootstrap_servers, "KAFKA": setup.b.bootstrap_servers}
    return servers | {"TOPIC": topic}


def _differences(expected: list[object], answers: list[Exchange]) -> list[str]:
    return [
        f"{number + 1}: {asked['ask']}\n  expected {wanted}\n  answered {answer}"
        for number, (asked, answer) in enumerate(zip(exchanges(), answers, strict=True))
        if (wanted := expected[number]) != answer
    ]


@pytest.mark.java
@pytest.mark.skipif(
    not os.environ.get("RECORD_JAVA_ANSWERS"), reason="Java is asked when its answers are recorded"
)
async def test_java_is_recorded(setup: Setup, words: dict[str, str]) -> None:
    recorded = exchanges()
    async with closing(
        JavaConnect(setup.b.bootstrap_servers, setup.unique("dialogue"), setup.folder)
    ) as java:
        await java.ready()
        answers = await hold(java.url, words, recorded)
    write_exchanges([{**it, "java": answer} for it, answer in zip(recorded, answers, strict=True)])


@pytest.mark.faults
async def test_our_worker_answers_as_java_but_for_documented_differences(
    setup: Setup, words: dict[str, str]
) -> None:
    recorded = exchanges()
    with Mirror(write_worker(setup.folder, setup.b), name="ours", program=DISTRIBUTED) as worker:
        url = rest_of(worker).url
        until_equal(lambda: ask(f"{url}health")[0], 200, "a worker that is ready, as Java's was")
        answers = await hold(url, words, recorded)
    differences = _differences([it.get("ours", it["java"]) for it in recorded], answers)
    assert not differences, "\n".join(differences)


def test_every_recorded_difference_is_a_row_of_the_document() -> None:
    rows = re.findall(r"^\| (.*?) \|", COMPATIBILITY.read_text(encoding="utf-8"), re.MULTILINE)
    reasons = {str(it["because"]) for it in exchanges() if "ours" in it}
    assert reasons <= set(rows)
