"""The policy of docs/reference/extend.md, taken from the page, in a worker and in the client of consumers."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import Sent, commit, committed, read, write
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "extend.md"
ASK = """\
import sys
from mm2py import mirror_client
props = {"bootstrap.servers": sys.argv[1], "replication.policy.class": "my_names:SuffixPolicy"}
print(*sorted(mirror_client.remote_topics(props, sys.argv[2])))
for tp, found in mirror_client.exact_offsets(props, sys.argv[2], sys.argv[3]).items():
    print(tp.topic, tp.partition, found.offset)
"""


@pytest.mark.parametrize("topic_name", ["orders", "orders.from-elsewhere"])
def test_the_policy_of_the_page_names_copies_groups_and_answers(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
    tmp_path: Path,
    topic_name: str,
) -> None:
    policy = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[0]
    (tmp_path / "my_names.py").write_text(policy)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    topic, group = f"{unique('policy')}-{topic_name}", unique("group")
    create_topic(region_a, topic, 1)
    write(region_a, topic, [Sent(0, b"%d" % number) for number in range(50)])
    commit(region_a, group, topic, {0: 20})
    own = {
        "replication.policy.class": "my_names:SuffixPolicy",
        "emit.checkpoints.interval.seconds": "1",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "groups": group,
    }
    flow = write_flow(tmp_path, region_a, region_b, re.escape(topic), own)
    copy = f"{topic}.from-{flow.source_alias}"
    with Mirror(flow.file, environ={"PYTHONPATH": path}) as mirror:
        until(
            lambda: committed(region_b, group, copy) == {0: 20}, 60, "the group moves", alive=mirror
        )
        assert mirror.stop() == 0
    values = [record.value for log in read(region_b, copy).values() for record in log.records]
    assert values == [b"%d" % number for number in range(50)]
    asked = subprocess.run(
        [sys.executable, "-c", ASK, region_b.bootstrap_servers, flow.source_alias, group],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert asked.stderr == ""
    assert asked.stdout.split() == [copy, copy, "0", "20"]
