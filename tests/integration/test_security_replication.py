"""Whole replications between secured clusters by the command line, read back with another client."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.certificates import PASSWORD
from tests.integration.mirror_process import Flow, Mirror, run_to_end, until, write_flow
from tests.integration.secured import (
    LONG_SESSION_MS,
    ODD_WORD,
    PLAIN,
    SCRAM,
    SCRAM_WORD,
    SecuredRegion,
)
from tests.integration.traffic import Load, Sent, assert_equal, wait_for_copy, write
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

RATE = 200


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredRegion]:
    with SecuredRegion("secured-target", tmp_path_factory.mktemp("secured-target")) as region:
        yield region


def secured_flow(
    folder: Path,
    source: tuple[SecuredRegion, Mapping[str, str]],
    target: tuple[SecuredRegion, Mapping[str, str]],
    topic: str,
) -> Flow:
    """Write the file of a flow whose clusters are reached as the properties say."""
    flow = write_flow(folder, source[0].region, target[0].region, topic)
    with flow.file.open("a", encoding="latin-1") as file:
        for alias, props in ((flow.source_alias, source[1]), (flow.target_alias, target[1])):
            for key, value in props.items():
                escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
                file.write(f"{alias}.{key} = {escaped}\n")
    return flow


def test_records_go_from_sasl_ssl_scram_to_ssl_with_a_client_certificate(
    secured: SecuredRegion,
    target: SecuredRegion,
    tmp_path: Path,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
) -> None:
    topic = unique("secured")
    create_topic(secured.region, topic, 3)
    there, back = secured.scram("TLSLOGIN"), target.with_client_key("MUTUAL")
    flow = secured_flow(tmp_path, (secured, there), (target, back), topic)
    sent = [Sent(n % 3, b"%d" % n + b"." * 5_000, b"k%d" % n) for n in range(3_000)]
    write(secured.region, topic, sent, linger_ms=50)
    with Mirror(flow.file) as mirror:
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert mirror.stop() == 0
        log = mirror.log()
    for secret in (SCRAM_WORD, PASSWORD, "BEGIN PRIVATE"):
        assert secret not in log
    assert not list(tmp_path.glob("*.pem"))


def test_a_mirror_outlives_its_sessions_under_load(
    secured: SecuredRegion,
    target: SecuredRegion,
    tmp_path: Path,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
) -> None:
    topic = unique("sessions")
    create_topic(secured.region, topic, 2)
    there, back = secured.scram("LONG"), target.scram("LONG", "SCRAM-SHA-256")
    flow = secured_flow(tmp_path, (secured, there), (target, back), topic)
    with Mirror(flow.file) as mirror:
        # REST is loaded beside the first records; sessions begin with their connections, so none ends before that.
        mirror.wait_for_log("rest listens", 90)
        with Load(secured.region, topic, 2, rate=RATE) as load:
            load.wait_acked(2 * RATE * LONG_SESSION_MS // 1000)  # the third session begins
            load.stop()
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert not mirror.lines("connection lost|not renewed|unreachable")


def test_a_flow_waits_for_a_refused_user_says_so_and_goes_on_when_it_is_let_in(
    secured: SecuredRegion,
    target: SecuredRegion,
    tmp_path: Path,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
) -> None:
    topic, user = unique("waiting"), unique("late")
    create_topic(secured.region, topic)
    write(secured.region, topic, [Sent(0, b"one"), Sent(0, b"two")])
    there = secured.properties("TLSLOGIN", "SCRAM-SHA-512", SCRAM, username=user, password=ODD_WORD)
    flow = secured_flow(tmp_path, (secured, there), (target, target.properties("TLS")), topic)
    with Mirror(flow.file) as mirror:
        line = mirror.wait_for_log(rf"refused the login of user {user}", 90)
        assert "sasl.jaas.config" in line
        told = f"waiting for=source cluster .*user {user}"
        until(lambda: len(mirror.lines(told)) > 1, 90, "said again", alive=mirror)
        secured.set_scram_user(user, ODD_WORD)
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        # Locked out and let in again while it runs.
        secured.set_scram_user(user, ODD_WORD + "x")
        secured.region.restart()
        mirror.wait_for_log(rf"broker unreachable.*user {user}", 90)
        secured.set_scram_user(user, ODD_WORD)
        write(secured.region, topic, [Sent(0, b"three")])
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert ODD_WORD not in mirror.log()


BAD: dict[str, tuple[Callable[[SecuredRegion], dict[str, str]], str]] = {
    "keystore password": (
        lambda r: r.with_client_key("TLS") | {"ssl.keystore.password": "nope-nope"},
        r":\d+: src\w+\.ssl\.keystore\.password: .*does not open",
    ),
    "no truststore": (
        lambda r: r.properties("TLS") | {"ssl.truststore.location": "/no/such/file"},
        r":\d+: src\w+\.ssl\.truststore\.location: .*No such file",
    ),
    "no mechanism": (
        lambda r: r.properties("LOGIN"),
        r":\d+: src\w+\.security\.protocol: sasl\.mechanism is missing",
    ),
    "jaas": (
        lambda r: r.properties("LOGIN", "PLAIN", PLAIN, username="alice"),
        r":\d+: src\w+\.sasl\.jaas\.config: .*has no password",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_log_in_is_refused_with_its_line(
    secured: SecuredRegion, tmp_path: Path, name: str
) -> None:
    make, said = BAD[name]
    flow = secured_flow(tmp_path, (secured, make(secured)), (secured, {}), "t")
    ended = run_to_end(flow.file)
    assert ended.returncode == 1
    (line,) = [each for each in ended.stderr.splitlines() if "bad configuration" in each]
    assert re.search(said, line), line
    assert "nope-nope" not in ended.stderr
