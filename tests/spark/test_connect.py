"""``format("mm2py")`` in a session of Spark Connect: programs run at the server, which finds the source there."""

import os
import subprocess
import sys

import pytest

from tests.integration.setups import Setup
from tests.integration.traffic import Sent, read, write

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(400)]  # fmt: skip

PROGRAM = """
import sys
from pyspark.sql import SparkSession
remote, servers, source, target, state = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
rows = spark.read.format("mm2py").option("kafka.bootstrap.servers", servers).option("subscribe", source).load()
print(rows.count(), rows.schema.simpleString())
writer = rows.select("key", "value").write.format("mm2py").option("kafka.bootstrap.servers", servers)
writer.option("topic", target).mode("append").save()
stream = spark.readStream.format("mm2py").option("kafka.bootstrap.servers", servers)
stream = stream.option("subscribe", source).option("startingOffsets", "earliest").load()
out = stream.select("key", "value").writeStream.format("mm2py").option("kafka.bootstrap.servers", servers)
query = out.option("topic", target).option("checkpointLocation", state).trigger(availableNow=True).start()
query.awaitTermination(200)
print(query.exception())
"""


@pytest.mark.parametrize("connect", ["here", "archive"], indirect=True)
def test_topics_are_read_and_written_in_batches_and_streams(setup: Setup, connect: str) -> None:
    source, target = setup.topic("over-connect", 2), setup.topic("copied", 2)
    write(setup.a, source, [Sent(n % 2, b"%d" % n) for n in range(300)])
    words = [connect, setup.a.bootstrap_servers, source, target, str(setup.folder / "state")]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=380,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ended.returncode == 0, ended.stderr[-3_000:]
    lines = ended.stdout.splitlines()
    assert len(lines) == 2, ended.stdout + ended.stderr[-3_000:]
    assert lines[0].startswith("300 struct<key:binary,value:binary,topic:string")
    assert lines[1] == "None"
    found = sorted(it.value or b"" for log in read(setup.a, target).values() for it in log.records)
    assert found == sorted(2 * [b"%d" % n for n in range(300)])
