"""The real Java MirrorMaker 2 from the pinned jars, started as its own shell script starts it.

Flow: properties file -> ``start_java`` -> ``MirrorProcess``. ``SCRIPT_FLAGS`` are the JVM flags of
bin/connect-mirror-maker.sh and bin/kafka-run-class.sh: a 2 GB heap with G1 and both compilers.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.mirror_process import MirrorProcess
from mm2py_jobs.spark.java import find_java
from tests.kit.kafka.jars import fetch_jars

MAIN_CLASS: Final = "org.apache.kafka.connect.mirror.MirrorMaker"
SCRIPT_FLAGS: Final = (
    "-Xms256M",
    "-Xmx2G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dcom.sun.management.jmxremote=true",
    "-Dcom.sun.management.jmxremote.authenticate=false",
    "-Dcom.sun.management.jmxremote.ssl=false",
)
QUICK_START_FLAGS: Final = ("-Xmx512M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def start_java(
    properties: Path,
    log_file: Path,
    *,
    clusters: Sequence[str] = (),
    jvm_flags: Sequence[str] = SCRIPT_FLAGS,
) -> MirrorProcess:
    """Start MirrorMaker 2 on a file; ``clusters`` are the targets to run, all when empty."""
    command = [
        str(find_java().executable),
        *jvm_flags,
        "-Dlog4j2.level=INFO",  # what its own logging configuration sets
        "-cp",
        os.pathsep.join(str(jar) for jar in fetch_jars("tools")),
        MAIN_CLASS,
        str(properties),
    ]
    if clusters:
        command += ["--clusters", *clusters]
    return MirrorProcess("Java MirrorMaker 2", command, log_file)
