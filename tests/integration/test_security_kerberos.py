"""Kerberos against a real server and a real broker: logins, what each mistake says, tickets that end, the guides' files."""

import asyncio
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaException, Producer

from mm2py.clock import closing
from mm2py.errors import ConnectionFailedError
from mm2py_jobs.spark.java import find_java
from tests.certificates import PASSWORD, write_jks
from tests.integration.clients import connected, in_use, opened
from tests.integration.kerberos import (
    KRB5,
    NEEDS_KERBEROS,
    REALM,
    SESSION_MS,
    Kdc,
    KerberosRegion,
    login,
)
from tests.integration.mirror_maker_1 import (
    Files,
    order_by_key,
    start,
    wait_for_records,
    write_files,
)
from tests.integration.mirror_process import MM2PY, Flow, running, until, until_equal, write_flow
from tests.integration.secured import jaas
from tests.integration.setups import Setup
from tests.integration.test_security_connections import admin_data_and_groups
from tests.integration.traffic import Load, Sent, assert_equal, ends, wait_for_copy, write
from tests.kit.kafka.region import KafkaAddress

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300), NEEDS_KERBEROS]

SEED: Final = Path(__file__).parents[1] / "data" / "config" / "seed_mm2_guide_ssl.properties"
GUIDE_TOPIC: Final = "toa.evehicles-latest-dev"
MIRROR: Final = "mirrormaker/HOSTNAME"
LIFE_S: Final = 12
RATE: Final = 200


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with Kdc(tmp_path_factory.mktemp("kdc")) as server, pytest.MonkeyPatch.context() as environment:
        for name, value in server.environ.items():
            environment.setenv(name, value)
        # Of the broker's JVM.
        environment.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={server.conf}")
        server.principal(MIRROR)
        yield server


@pytest.fixture(scope="module")
def keytab(kdc: Kdc) -> Path:
    """The keytab of the mirror; other tests leave its key alone."""
    return kdc.keytab(MIRROR)


@pytest.fixture(scope="module")
def broker(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosRegion]:
    modules = subprocess.run([find_java().executable, "--list-modules"], capture_output=True)
    if b"jdk.security.auth" not in modules.stdout:
        pytest.skip("this Java has no Kerberos: install openjdk-17-jre-headless")
    with KerberosRegion(kdc, tmp_path_factory.mktemp("kerberos")) as region:
        yield region


def cache_login(cache: Path) -> str:
    return jaas(KRB5, useTicketCache="true", ticketCache=str(cache), serviceName="kafka")


@pytest.mark.parametrize("listener", ["KRB", "KRBTLS"])
async def test_data_group_and_admin_calls_work_with_a_keytab(
    broker: KerberosRegion, keytab: Path, listener: str
) -> None:
    props = broker.properties(listener, login(keytab, MIRROR))
    if listener == "KRBTLS":
        props |= {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": broker.authority.pem(),
        }
    async with connected(props) as cluster:
        await admin_data_and_groups(cluster, props)


async def test_a_ticket_cache_is_used_and_read_again_when_its_ticket_has_ended(
    broker: KerberosRegion, kdc: Kdc, keytab: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    props = broker.properties("KRB", cache_login(cache))
    props |= {"reconnect.backoff.max.ms": "200", "sasl.kerberos.min.time.before.relogin": "1"}
    with pytest.raises(
        ConnectionFailedError, match=rf"no ticket of any principal in .*{cache}.*kinit"
    ):
        async with connected(props):
            pass
    kdc.kinit(keytab, MIRROR, life="10s", cache=cache)
    async with connected(props) as cluster:
        await cluster.metadata()
    await asyncio.to_thread(until, lambda: not _is_valid(kdc, cache), 60, "the ticket has ended")
    with pytest.raises(
        ConnectionFailedError, match=rf"the ticket of .* in .*{cache} has expired; .*kinit"
    ):
        async with connected(props):
            pass
    kdc.kinit(keytab, MIRROR, life="1h", cache=cache)
    async with connected(props) as cluster:
        await cluster.metadata()


def _is_valid(kdc: Kdc, cache: Path) -> bool:
    command = ["klist", "-s", "-c", str(cache)]
    return subprocess.run(command, env={**os.environ, **kdc.environ}).returncode == 0


def _stale(kdc: Kdc, _folder: Path) -> str:
    kdc.principal("stale")
    old = kdc.keytab("stale", file="stale-old.keytab")
    kdc.keytab("stale")
    return login(old, "stale")


BAD: Final[dict[str, tuple[Callable[[Kdc, Path], str], str]]] = {
    "an old key": (_stale, r"the KDC refuses the key of stale@EXAMPLE.COM in keytab .*stale-old"),
    "no keytab": (
        lambda _, folder: login(folder / "none.keytab", MIRROR),
        r"keytab .*none.keytab cannot be read: No such file.*keyTab",
    ),
    "another principal": (
        lambda kdc, _: login(kdc.folder / "mirrormaker-HOSTNAME.keytab", "other"),
        r"no ticket of other@EXAMPLE.COM by keytab .*klist -k",
    ),
    "a service that is not there": (
        lambda kdc, _: login(kdc.folder / "mirrormaker-HOSTNAME.keytab", MIRROR, "kafkaesque"),
        r"the KDC knows no service kafkaesque/localhost: .*sasl.kerberos.service.name",
    ),
    "a service of another program": (
        lambda kdc, _: login(kdc.folder / "mirrormaker-HOSTNAME.keytab", MIRROR, "other"),
        r"refused the login of principal mirrormaker/HOSTNAME@EXAMPLE.COM by GSSAPI: .*\(58\); .*service.name",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_mistake_is_named_at_once_with_what_to_do(
    broker: KerberosRegion, kdc: Kdc, keytab: Path, tmp_path: Path, name: str
) -> None:
    assert keytab.exists()
    if name == "a service of another program":
        kdc.principal("other/localhost")
    make, said = BAD[name]
    # What may still come right would be tried for longer than the test lasts.
    props = broker.properties("KRB", make(kdc, tmp_path)) | {"default.api.timeout.ms": "600000"}
    with pytest.raises(ConnectionFailedError, match=said):
        async with asyncio.timeout(90), connected(props):
            pass


async def test_without_a_server_one_line_says_so_and_a_valid_ticket_still_counts(
    broker: KerberosRegion, kdc: Kdc, keytab: Path, caplog: pytest.LogCaptureFixture
) -> None:
    props = broker.properties("KRBSHORT", login(keytab, MIRROR))
    # Each login wants a new ticket.
    props |= {
        "sasl.kerberos.ticket.renew.window.factor": "0",
        "sasl.kerberos.ticket.renew.jitter": "0",
        "sasl.kerberos.min.time.before.relogin": "1",
    }
    connection = await opened(props)
    try:
        kdc.stop()
        with pytest.raises(
            ConnectionFailedError, match=r"no Kerberos server answers: .*krb5\.conf"
        ):
            async with connected(props):
                pass
        with caplog.at_level(logging.WARNING):
            await in_use(connection, 2 * SESSION_MS / 1000)
        assert [it for it in caplog.messages if "ticket not renewed, the old one is valid" in it]
    finally:
        kdc.start()
        await connection.close()


async def test_tickets_are_renewed_and_sessions_too_under_load(
    broker: KerberosRegion, kdc: Kdc, caplog: pytest.LogCaptureFixture
) -> None:
    kdc.principal("brief", life=f"{LIFE_S}s")
    props = broker.properties("KRBSHORT", login(kdc.keytab("brief"), "brief"))
    props["sasl.kerberos.min.time.before.relogin"] = "1000"
    with caplog.at_level(logging.INFO):
        async with closing(await opened(props)) as connection:
            await in_use(connection, 2.2 * LIFE_S)
    lives = [it for it in caplog.messages if "Kerberos ticket principal=brief" in it]
    assert len(lives) >= 3, caplog.messages
    assert not [it for it in caplog.messages if "not renewed" in it]


async def test_the_ticket_of_a_cache_is_renewed_by_kinit_under_load(
    broker: KerberosRegion, kdc: Kdc, keytab: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    kdc.kinit(keytab, MIRROR, life="16s", cache=cache, renewable="1h")
    props = broker.properties("KRBSHORT", cache_login(cache))
    props |= {
        "sasl.kerberos.min.time.before.relogin": "1",
        "sasl.kerberos.ticket.renew.window.factor": "0.5",
    }
    with caplog.at_level(logging.INFO):
        async with closing(await opened(props)) as connection:
            await in_use(connection, 24)
    assert len([it for it in caplog.messages if "Kerberos ticket principal=-" in it]) >= 2
    assert not [it for it in caplog.messages if "kinit does not renew" in it]


def kerberos_flow(
    folder: Path,
    broker: KerberosRegion,
    other: KafkaAddress,
    topic: str,
    jaas_text: str,
    properties: Mapping[str, str] | None = None,
) -> Flow:
    """Write a flow from the Kerberos listener to another region."""
    lines = broker.properties("KRBSHORT", jaas_text)
    lines["sasl.kerberos.min.time.before.relogin"] = "1000"
    own = {"{source}." + name: text for name, text in lines.items()}
    return write_flow(folder, broker.region, other, topic, {**own, **(properties or {})})


def test_a_flow_outlives_its_tickets_under_load(
    setup: Setup, broker: KerberosRegion, kdc: Kdc
) -> None:
    topic = setup.topic("tickets", 2, on=broker.region)
    kdc.principal(topic, life=f"{LIFE_S}s")
    flow = kerberos_flow(setup.folder, broker, setup.b, topic, login(kdc.keytab(topic), topic))
    with running(flow.file) as mirror:
        with Load(broker.region, topic, 2, rate=RATE) as load:
            load.wait_acked(2 * RATE * LIFE_S)
            load.stop()
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert not mirror.lines("connection lost|not renewed|unreachable")
        assert len(mirror.lines(f"Kerberos ticket principal={topic}")) > 2


def test_a_flow_waits_for_a_keytab_and_a_server_and_continues_when_they_are_repaired(
    setup: Setup, broker: KerberosRegion, kdc: Kdc
) -> None:
    topic = setup.topic("repaired", on=broker.region)
    write(broker.region, topic, [Sent(0, b"one"), Sent(0, b"two")])
    kdc.principal(topic)
    keytab = setup.folder / "mirror.keytab"
    shutil.copy(kdc.keytab(topic), keytab)
    new = kdc.keytab(topic)
    flow = kerberos_flow(setup.folder, broker, setup.b, topic, login(keytab, topic))
    with running(flow.file, ready=False) as mirror:
        told = f"refuses the key of {topic}@{REALM} in keytab {keytab}"
        mirror.wait_for_log(told)
        until(lambda: len(mirror.lines(told)) > 1, 90, "said again", alive=mirror)
        kdc.stop()
        try:
            mirror.wait_for_log("no Kerberos server answers")
            shutil.copy(new, keytab)
        finally:
            kdc.start()
        assert_equal(*wait_for_copy(mirror, flow, topic))


def test_a_flow_waits_for_an_ended_ticket_and_continues_after_kinit(
    setup: Setup, broker: KerberosRegion, kdc: Kdc, keytab: Path
) -> None:
    topic, cache = setup.topic("ended", on=broker.region), setup.folder / "cache"
    write(broker.region, topic, [Sent(0, b"one"), Sent(0, b"two")])
    kdc.kinit(keytab, MIRROR, life="2s", cache=cache)
    until(lambda: not _is_valid(kdc, cache), 60, "the ticket has ended")
    flow = kerberos_flow(setup.folder, broker, setup.b, topic, cache_login(cache))
    with running(flow.file, ready=False) as mirror:
        mirror.wait_for_log(rf"the ticket of the principal in ticket cache {cache} has expired")
        kdc.kinit(keytab, MIRROR, life="1h", cache=cache)
        assert_equal(*wait_for_copy(mirror, flow, topic))


def jaas_file(folder: Path, keytab: Path) -> Path:
    """The file of the HDP guide as written, but for path and host."""
    file = folder / "kafka_mirrormaker_jaas.conf"
    file.write_text(
        f"""KafkaClient {{
    com.sun.security.auth.module.Krb5LoginModule required
    useKeyTab=true
    keyTab="{keytab}"
    storeKey=true
    useTicketCache=false
    serviceName="kafka"
    principal="mirrormaker/HOSTNAME@EXAMPLE.COM";
}};
""",
        encoding="ascii",
    )
    return file


def opts(kdc: Kdc, file: Path) -> dict[str, str]:
    options = f"-Djava.security.auth.login.config={file} -Djava.security.krb5.conf={kdc.conf}"
    # As a user has it who configured Java alone.
    return {"KAFKA_OPTS": options, "KRB5_CONFIG": ""}


def test_the_file_of_the_guide_copies_with_the_jaas_file_of_the_other(
    setup: Setup, broker: KerberosRegion, kdc: Kdc, keytab: Path
) -> None:
    text = SEED.read_text(encoding="latin-1")
    trust = write_jks(setup.folder / "trust.jks", trusted=[broker.authority.certificate])
    keys = write_jks(setup.folder / "keys.jks", own=broker.authority.issue("client"))
    for found, put in (
        (r"wn0-src-kafka\S*", setup.a.bootstrap_servers),
        (r"wn0-dest-kafka\S*", broker.region.listener_servers("KRBTLS")),
        ("<password>", PASSWORD),
        ("/path/to/kafka.server.truststore.jks", str(trust)),
        ("/path/to/kafka.server.keystore.jks", str(keys)),
        ("(?m)^replication.factor=3", "replication.factor=1"),  # one broker here
    ):
        text = re.sub(found, put, text)
    file = setup.folder / "mm2.properties"
    file.write_text(text, encoding="latin-1")
    setup.create_topic(setup.a, GUIDE_TOPIC, 3)
    write(setup.a, GUIDE_TOPIC, (Sent(n % 3, b"%d" % n, b"%d" % (n % 7)) for n in range(300)))
    flow = Flow(setup.a, broker.region, "source", "destination", file)
    with running(file, environ=opts(kdc, jaas_file(setup.folder, keytab))) as mirror:
        assert_equal(*wait_for_copy(mirror, flow, GUIDE_TOPIC))
    assert not mirror.lines("ERROR")


def files_of(setup: Setup, broker: KerberosRegion) -> Files:
    """Write both files of MirrorMaker 1, whose login is in a JAAS file."""
    servers = broker.region.listener_servers("KRB")
    login = {"bootstrap.servers": servers, "security.protocol": "SASL_PLAINTEXT"}
    return write_files(setup.folder, broker.region, setup.b, setup.unique("g"), consumer=login)


def has_gssapi() -> bool:
    try:
        Producer({"builtin.features": "sasl_gssapi", "log_level": 0})
    except KafkaException:
        return False
    return True


def test_mirror_maker_1_copies_with_the_guides_jaas_file_or_names_what_its_library_lacks(
    setup: Setup, broker: KerberosRegion, kdc: Kdc, keytab: Path
) -> None:
    topic = setup.unique("my-topic")
    files = files_of(setup, broker)
    environ = {
        **opts(kdc, jaas_file(setup.folder, keytab)),
        "KRB5CCNAME": str(setup.folder / "cache"),
    }
    words = ("--whitelist", topic, "--new.consumer")
    if not has_gssapi():
        with start(files, *words, environ=environ) as mirror:
            assert mirror.wait() == 1
            (line,) = mirror.lines("GSSAPI")
            assert re.search(r"built without Kerberos.*docs/guide/security\.md", line)
        return
    setup.create_topic(broker.region, topic, 2)
    setup.create_topic(setup.b, topic, 2)
    write(broker.region, topic, [Sent(n % 2, b"%d" % n, b"k%d" % (n % 2)) for n in range(100)])
    with start(files, *words, environ=environ) as mirror:
        wait_for_records(setup.b, topic, 100, mirror)
        assert order_by_key(setup.b, topic).keys() == {b"k0", b"k1"}
        assert mirror.stop() == 0


def test_a_sink_outlives_its_tickets_under_load_or_names_what_its_library_lacks(
    setup: Setup, broker: KerberosRegion, kdc: Kdc
) -> None:
    topic = setup.topic("group", 2, on=broker.region)
    kdc.principal(topic, life=f"{LIFE_S}s")
    text = login(kdc.keytab(topic), topic)
    by_sink = {"{source}->{target}.copy.connector": "sink"}
    flow = kerberos_flow(setup.folder, broker, setup.b, topic, text, by_sink)
    with running(
        flow.file, environ={"KRB5CCNAME": str(setup.folder / "cache")}, ready=False
    ) as mirror:
        if not has_gssapi():
            mirror.wait_for_log(r"built without Kerberos \(GSSAPI\).*docs/guide/security\.md")
            return
        mirror.wait_for_log("partitions assigned")
        with Load(broker.region, topic, 2, rate=RATE) as load:
            load.wait_acked(2 * RATE * LIFE_S)
            load.stop()
        assert_equal(*wait_for_copy(mirror, flow, topic))


def test_the_jaas_file_of_a_mirror_becomes_the_login_of_the_flow_that_takes_its_place(
    setup: Setup, broker: KerberosRegion, kdc: Kdc, keytab: Path
) -> None:
    topic = setup.topic("migrated", 2, on=broker.region)
    write(broker.region, topic, [Sent(n % 2, b"%d" % n) for n in range(100)])
    files = files_of(setup, broker)
    names, file = (setup.unique("old"), setup.unique("new")), setup.folder / "mm2.properties"
    words = ("--consumer.config", str(files.consumer), "--producer.config", str(files.producer))
    done = subprocess.run(
        [MM2PY, "migrate", "mm1", *words, "--whitelist", topic,
         "--source", names[0], "--target", names[1], "--to", str(file)],
        env={**os.environ, **opts(kdc, jaas_file(setup.folder, keytab))},
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "java.security.krb5.conf has no property" in done.stderr
    assert f"{names[0]}.sasl.jaas.config = {KRB5} required" in file.read_text()
    # The file alone logs in; where Kerberos is, krb5.conf says.
    with running(file, environ={"KRB5_CONFIG": str(kdc.conf)}) as mirror:
        until_equal(lambda: ends(setup.b, topic), {0: 50, 1: 50}, alive=mirror)
