"""A target that is rebuilt under running workers: wiped, at the same address."""

import pytest

from tests.integration.mirror_process import SHORT_SESSION, running, until
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, assert_equal, wait_for_copy, write
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.mark.parametrize("keeps_id", [False, True])
def test_a_target_that_is_rebuilt_says_restart_the_worker_and_is_filled_again(
    setup: Setup, new_region: NewRegion, *, keeps_id: bool
) -> None:
    target = new_region("rebuilt")
    topic = setup.topic("rebuilt", 2)
    # For so long a topic that is not there may only be new.
    properties = {**SHORT_SESSION, "{target}.default.api.timeout.ms": "10000"}
    flow = setup.flow(topic, properties, target=target)
    write(setup.a, topic, [Sent(number % 2, b"%d" % number) for number in range(20)])
    with running(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        target.kill()
        target.wipe(keeps_id=keeps_id)
        write(setup.a, topic, [Sent(number % 2, b"%d" % number) for number in range(20, 40)])
        target.start()
        url = public_url(mirror)

        def shown() -> str:
            return str(ask(url + "flows")[1][0]["errors"])

        until(lambda: "restart the flow's workers" in shown(), 90, shown, alive=mirror)
        assert "the target was rebuilt" in shown()
        cause = "UNKNOWN_TOPIC_OR_PARTITION" if keeps_id else "its cluster id was "
        assert cause in shown()
        code, body = ask(url + "health")
        assert (code, "restart the flow's workers" in body["message"]) == (503, True)
    with running(flow.file) as mirror:
        assert_equal(*wait_for_copy(mirror, flow, topic))
