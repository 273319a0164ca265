"""A flow that begins behind records of others: verify does not call equal what the flow's map does not vouch for."""

import json

import pytest

from tests.integration.mirror_process import command_here, running, until
from tests.integration.setups import Setup
from tests.integration.test_group_commands import records
from tests.integration.traffic import ends, write

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_records_of_others_where_the_copy_should_be_are_not_compared(setup: Setup) -> None:
    topic = setup.topic("orders")
    flow = setup.flow(topic, {"{source}->{target}.start.positions": "latest"})
    copy = flow.remote(topic)
    setup.create_topic(setup.b, copy)
    write(setup.a, topic, records(0, 1_000))
    write(setup.b, copy, records(5_000, 1_000))
    with running(flow.file) as worker:
        write(setup.a, topic, records(1_000, 5))
        until(lambda: ends(setup.b, copy)[0] == 1_005, 90, "the new records", alive=worker)
    asked = ("verify", flow.file, "--flow", flow.name, "--tier", "0", "-o", "json")
    found = command_here(*asked)
    report = json.loads(found.stdout)
    assert (found.exit_code, report["equal"]) == (3, False), found.stdout
    assert "source offsets 0 to 1000 were copied by another program" in report["not_compared"][0]
    limited = command_here(*asked, "--from", "map")
    assert (limited.exit_code, json.loads(limited.stdout)["equal"]) == (0, True), limited.stdout
