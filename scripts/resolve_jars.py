"""Writes the committed lists of jars: Kafka release -> jgo -> coordinates + sha256 -> jars-<release>.json.

For maintainers: ``.venv/bin/python scripts/resolve_jars.py`` after changing ``KAFKA``, or with the releases
whose brokers the tests start beside it (``2.4.1 2.8.2 4.4.0``); then read the diff. Needs jgo (dependency
group ``dev``) and takes half a minute. The product never resolves anything: ``tests.kit.kafka.jars`` fetches
the pinned list, ``tests/integration/other_releases.py`` the others.
"""

import json
import logging
import sys
import tempfile
import zipfile
from pathlib import Path

import jgo

KAFKA = "4.3.1"
ECJ = "3.40.0"  # the newest Eclipse compiler line that runs on Java 17
LOG4J = "2.25.4"  # as kafka_2.13 asks for; the binding must be of the same release
BROKER = (f"org.apache.kafka:kafka_2.13:{KAFKA}",)
# slf4j-api 1.7 (Kafka's) finds its binding in log4j-slf4j-impl, not in log4j-slf4j2-impl. Resolved
# alone, because jgo lets the managed versions of every coordinate given apply to all of them.
BINDING = f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J}"
TOOLS = (
    *BROKER,
    f"org.apache.kafka:connect-mirror:{KAFKA}",
    f"org.apache.kafka:connect-runtime:{KAFKA}",
    f"org.apache.kafka:connect-json:{KAFKA}",
    f"org.apache.kafka:kafka-tools:{KAFKA}",
)
COMPILER = (f"org.eclipse.jdt:ecj:{ECJ}",)
ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / "mm2py" / "embedded" / f"jars-{KAFKA}.json"


class _Refuse(logging.Handler):
    """jgo only warns of a checksum that does not match; here every warning ends the run."""

    def emit(self, record: logging.LogRecord) -> None:
        """Raise what was only logged."""
        raise RuntimeError(f"jgo warned: {record.getMessage()}")


def _resolve(coordinates: tuple[str, ...], cache: Path) -> dict[str, str]:
    environment = jgo.build("+".join(coordinates), cache_dir=cache)
    for jar in environment.all_jars:
        with zipfile.ZipFile(jar) as archive:  # an interrupted download is a 0-byte jar to jgo
            if (broken := archive.testzip()) is not None:
                raise RuntimeError(f"{jar.name}: {broken} is damaged")
    lockfile = environment.lockfile
    if lockfile is None:
        raise RuntimeError("jgo wrote no lock file")
    jars: dict[str, str] = {}
    for locked in lockfile.dependencies:
        if locked.classifier or locked.sha256 is None:
            raise RuntimeError(f"{locked!r} has a classifier or no hash")
        jars[f"{locked.groupId}:{locked.artifactId}:{locked.version}"] = locked.sha256
    names = {jar.name for jar in environment.all_jars}
    listed = {"{1}-{2}.jar".format(*coordinate.split(":")) for coordinate in jars}
    if names != listed:
        raise RuntimeError(f"lock file and jars differ: {sorted(names ^ listed)}")
    return jars


def _write_broker(release: str, cache: Path) -> None:
    """Write the list of one broker for tests, with log4j 2 behind whatever its code logs with."""
    broker = _resolve((f"org.apache.kafka:kafka_2.13:{release}",), cache)
    theirs = [it.rpartition(":")[2] for it in broker if ":log4j-core:" in it]
    names = ("log4j-slf4j-impl",) if theirs else ("log4j-slf4j-impl", "log4j-1.2-api")
    log4j = theirs[0] if theirs else LOG4J
    have = {it.rpartition(":")[0] for it in broker}
    for name in names:
        logging_jars = _resolve((f"org.apache.logging.log4j:{name}:{log4j}",), cache)
        broker |= {c: it for c, it in logging_jars.items() if c.rpartition(":")[0] not in have}
    path = ROOT / "tests" / "data" / f"jars-{release}.json"
    path.write_text(json.dumps(dict(sorted(broker.items())), indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{path.name}: broker {len(broker)}\n")


def main() -> None:
    """Resolve the releases that are named, else the three groups of the pinned one."""
    logging.getLogger("jgo").addHandler(_Refuse(level=logging.WARNING))
    if releases := sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            for release in releases:
                _write_broker(release, Path(folder))
        return
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        broker, tools, compiler = (_resolve(group, cache) for group in (BROKER, TOOLS, COMPILER))
        binding = _resolve((BINDING,), cache)
    broker[BINDING] = tools[BINDING] = binding[BINDING]
    extra = {coordinate: digest for coordinate, digest in tools.items() if coordinate not in broker}
    dropped = {coordinate for coordinate in broker if coordinate not in tools}
    if dropped:
        raise RuntimeError(f"the groups disagree about versions: {sorted(dropped)}")
    groups = {"broker": broker, "tools": extra, "compiler": compiler}
    document = {
        "kafka": KAFKA,
        "groups": {name: dict(sorted(jars.items())) for name, jars in groups.items()},
    }
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    sizes = ", ".join(f"{name} {len(jars)}" for name, jars in groups.items())
    sys.stdout.write(f"{OUTPUT.name}: {sizes}\n")


if __name__ == "__main__":
    main()
