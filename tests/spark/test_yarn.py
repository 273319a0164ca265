"""Jobs on YARN by ``spark-submit``, as docs/reference/jobs.md has the commands: the driver here, and in a container.

Containers have mm2py from the archive of ``make dist-spark`` alone.
"""

from pathlib import Path

import pytest

from scripts.spark_archive import build
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, assert_equal, read, write
from tests.spark.yarn_cluster import YarnCluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.timeout(900),
]


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_history_is_copied_and_proved_on_yarn(setup: Setup, tmp_path: Path, mode: str) -> None:
    topic = setup.topic(f"yarn-{mode}", 3, config={"retention.ms": "-1"})
    write(setup.a, topic, [Sent(n % 3, b"%d" % n) for n in range(3_000)])
    flow = setup.flow(topic)
    # A container has the file where it runs, under its name.
    file = str(flow.file) if mode == "client" else flow.file.name
    options = [file, "--flow", flow.name, "-o", "json"]
    archive = build(tmp_path / "dist")
    with YarnCluster(tmp_path) as cluster:
        copied = cluster.submit(
            mode, ["backfill", "run", *options], archive, spark_files=flow.file.as_uri()
        )
        assert copied.returncode == 0, copied.stdout + copied.stderr[-2_000:]
        assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))
        if mode == "client":
            # spark-submit writes what its program does on standard error there, too.
            assert '"state": "DONE"' in copied.stdout
            proved = cluster.submit(mode, ["verify", *options], archive)
            assert proved.returncode == 0
            assert '"equal": true' in proved.stdout
        else:
            assert '"state": "DONE"' in cluster.said()
            wrong = cluster.submit(mode, ["verify", file, "--flow", "A->C"], archive, spark_files=flow.file.as_uri(), spark_yarn_maxAppAttempts="1")  # fmt: skip
            assert wrong.returncode == 1
