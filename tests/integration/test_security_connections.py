"""Secured connections on real brokers: TLS and SASL of each kind, sessions that end, users that are let in later, under load."""

import asyncio
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.connection import BrokerConnection
from mm2py.client.fetch.log_reader import LogReader
from mm2py.client.send.record_writer import RecordWriter
from mm2py.clock import SYSTEM_CLOCK, closing
from mm2py.config.clients import connection_settings, producer_settings
from mm2py.errors import AuthenticationError, ConnectionFailedError, FatalServerError
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from mm2py.protocol.buffers import BufferPool
from mm2py.protocol.messages import metadata
from mm2py.protocol.records import NewRecord, Record
from mm2py.protocol.topics import NewTopic
from mm2py.types import TopicPartition
from tests.certificates import PASSWORD, Authority
from tests.integration.clients import connected, in_use, opened
from tests.integration.mirror_process import Flow, Mirror, run_to_end, until, write_flow
from tests.integration.secured import (
    CLIENT_WORD,
    DENIED_WORD,
    LONG_SESSION_MS,
    OAUTH,
    ODD_WORD,
    PLAIN,
    PLAIN_WORD,
    SCRAM,
    SCRAM_WORD,
    SESSION_MS,
    SecuredRegion,
    TokenEndpoint,
)
from tests.integration.setups import Setup
from tests.integration.traffic import Load, Sent, assert_equal, wait_for_copy, write

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

Properties = dict[str, str]
PATIENCE_S = 90.0
"""How long a test waits for what a session's end brings."""
WRONG = "no-way"
STRANGER = Authority("A stranger")


async def admin_data_and_groups(cluster: Cluster, props: Mapping[str, str]) -> None:
    admin, topic = Admin(cluster), f"t-{secrets.token_hex(4)}"
    assert await admin.create_topics([NewTopic(topic, 1, 1)]) == {topic: None}
    async with closing(
        RecordWriter(cluster, producer_settings(props), clock=SYSTEM_CLOCK)
    ) as writer:
        await writer.start()
        big = secrets.token_bytes(600_000)
        records = [NewRecord(b"k", b"v", (), -1), NewRecord(None, big, (), -1)]
        assert await writer.write(TopicPartition(topic, 0), records) == 0
        found: list[Record] = []
        reader = LogReader(cluster, topic, clock=SYSTEM_CLOCK)
        await reader.read_to_end(lambda _, record: found.append(record))
        await reader.close()
        assert [(record.key, record.value) for record in found] == [(b"k", b"v"), (None, big)]
    assert (await admin.describe_group(f"g-{topic}")).members == ()


GOOD: dict[str, Callable[[SecuredRegion], Properties]] = {
    "ssl, pkcs12": lambda r: r.properties("TLS"),
    "ssl, pem keystore, client certificate asked for": lambda r: {
        **r.properties("MUTUAL"),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": r.client.chain_pem().replace("\n", " "),
        "ssl.keystore.key": r.client.key_pem("pw"),
        "ssl.key.password": "pw",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(r.pem_truststore()),
    },
    "ssl, pkcs12 keystore, client certificate asked for": lambda r: r.with_client_key("MUTUAL"),
    "ssl, jks stores, client certificate asked for": lambda r: r.with_jks_stores("MUTUAL"),
    "ssl, host name not checked": lambda r: {
        **r.properties("OTHERHOST"),
        "ssl.endpoint.identification.algorithm": "",
    },
    "plain": lambda r: r.properties("LOGIN", "PLAIN", PLAIN, username="alice", password=PLAIN_WORD),
    "scram 256": lambda r: r.scram("LOGIN", "SCRAM-SHA-256"),
    "scram 512": lambda r: r.scram("LOGIN"),
    "unsigned token": lambda r: r.properties(
        "LOGIN", "OAUTHBEARER", OAUTH, unsecuredLoginStringClaim_sub="bob"
    ),
    "tls plain": lambda r: r.properties(
        "TLSLOGIN", "PLAIN", PLAIN, username="alice", password=PLAIN_WORD
    ),
    "tls scram 256": lambda r: r.scram("TLSLOGIN", "SCRAM-SHA-256"),
    "tls scram 512": lambda r: r.scram("TLSLOGIN"),
}


@pytest.mark.parametrize("name", GOOD)
async def test_data_group_and_admin_calls_work_over(secured: SecuredRegion, name: str) -> None:
    props = GOOD[name](secured)
    async with connected(props) as cluster:
        await admin_data_and_groups(cluster, props)


async def test_a_token_is_fetched_once_for_all_connections(secured: SecuredRegion) -> None:
    with TokenEndpoint() as endpoint:
        props = token_properties(secured, endpoint, "TLSLOGIN")
        async with connected(props) as cluster:
            await admin_data_and_groups(cluster, props)
        assert endpoint.seen.bodies == ["grant_type=client_credentials&scope=read+write"]


async def test_a_user_name_with_signs_of_the_scram_syntax_logs_in(secured: SecuredRegion) -> None:
    secured.set_scram_user("odd=,name", ODD_WORD)
    props = secured.properties(
        "LOGIN", "SCRAM-SHA-512", SCRAM, username="odd=,name", password=ODD_WORD
    )
    async with connected(props) as cluster:
        await admin_data_and_groups(cluster, props)


def token_properties(
    region: SecuredRegion, endpoint: TokenEndpoint, listener: str, *, secret: str = CLIENT_WORD
) -> Properties:
    return {
        **region.properties(
            listener,
            "OAUTHBEARER",
            OAUTH,
            clientId="mirror",
            clientSecret=secret,
            scope="read write",
        ),
        "sasl.oauthbearer.token.endpoint.url": endpoint.url,
        "sasl.login.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        ),
    }


def at(region: SecuredRegion, props: Properties, listener: str) -> Properties:
    servers = (
        region.region.listener_servers(listener) if listener else region.region.bootstrap_servers
    )
    return {**props, "bootstrap.servers": servers}


def without_stores(props: Properties) -> Properties:
    return {key: value for key, value in props.items() if not key.startswith("ssl.")}


def stranger_key() -> Properties:
    issued = STRANGER.issue("client")
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": issued.chain_pem(),
        "ssl.keystore.key": issued.key_pem(),
    }


BAD: dict[str, tuple[Callable[[SecuredRegion], Properties], str]] = {
    "expired certificate": (lambda r: r.properties("EXPIRED"), "certificate of .* has expired"),
    "wrong host name": (
        lambda r: r.properties("OTHERHOST"),
        "expected .*, the certificate is for DNS:kafka.example.com; .*"
        "ssl.endpoint.identification.algorithm",
    ),
    "not trusted by the system": (
        lambda r: without_stores(r.properties("TLS")), "ssl.truststore.location",
    ),
    "not trusted by the truststore": (
        lambda r: {
            **without_stores(r.properties("TLS")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": STRANGER.pem(),
        },
        "is not trusted .*ssl.truststore.location",
    ),
    "no client certificate": (
        lambda r: r.properties("MUTUAL"), "with no certificate.*ssl.keystore.location",
    ),
    "client certificate of a stranger": (
        lambda r: {**r.properties("MUTUAL"), **stranger_key()},
        "with our certificate.*ssl.keystore.location",
    ),
    "wrong password, plain": (
        lambda r: r.properties("LOGIN", "PLAIN", PLAIN, username="alice", password=WRONG),
        r"refused the login of user alice by PLAIN.*\(58\); .*sasl.jaas.config",
    ),
    "wrong password, scram": (
        lambda r: r.properties("TLSLOGIN", "SCRAM-SHA-256", SCRAM, username="alice", password=WRONG),
        r"refused the login of user alice by SCRAM-SHA-256.*\(58\); .*sasl.jaas.config",
    ),
    "unknown user, scram": (
        lambda r: r.properties("LOGIN", "SCRAM-SHA-512", SCRAM, username="who", password=WRONG),
        r"refused the login of user who .*\(58\)",
    ),
    "mechanism": (
        lambda r: r.properties("SCRAMONLY", "PLAIN", PLAIN, username="alice", password=PLAIN_WORD),
        "does not take sasl.mechanism=PLAIN, only SCRAM-SHA-256",
    ),
    "plaintext at a TLS port": (
        lambda r: at(r, {}, "TLS"), "is a TLS listener.*security.protocol to SSL",
    ),
    "sasl without TLS at a TLS port": (
        lambda r: at(r, r.scram("LOGIN"), "TLSLOGIN"), "is a TLS listener.*security.protocol",
    ),
    "TLS at a plaintext port": (
        lambda r: at(r, r.properties("TLS"), ""), "without TLS do; set security.protocol",
    ),
    "TLS at a sasl plaintext port": (
        lambda r: at(r, r.scram("TLSLOGIN"), "LOGIN"), "without TLS do; set security.protocol",
    ),
    "no login at a sasl port": (
        lambda r: at(r, {}, "LOGIN"), "SASL listeners do without a login: check security.protocol",
    ),
    "login at a plaintext port": (
        lambda r: at(r, r.scram("LOGIN"), ""), "has no SASL; set security.protocol=PLAINTEXT",
    ),
    "login at a TLS port": (
        lambda r: at(r, r.scram("TLSLOGIN"), "TLS"), "has no SASL; set security.protocol=SSL",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
async def test_a_mistake_is_named_at_once_with_the_property_to_change(
    secured: SecuredRegion, name: str
) -> None:
    make, said = BAD[name]
    # What may still come right would be tried for longer than the test lasts.
    props = make(secured) | {"default.api.timeout.ms": "600000"}
    with pytest.raises(ConnectionFailedError, match=said) as refusal:
        async with asyncio.timeout(90), connected(props):
            pass
    assert WRONG not in str(refusal.value)


async def test_a_refusing_token_endpoint_is_told_from_an_absent_one(secured: SecuredRegion) -> None:
    with TokenEndpoint() as endpoint:
        props = token_properties(secured, endpoint, "LOGIN", secret=WRONG)
        with pytest.raises(ConnectionFailedError, match=r"HTTP 401: unknown client.*clientSecret"):
            async with connected(props):
                pass
        other = {
            **props,
            "sasl.oauthbearer.token.endpoint.url": endpoint.url.replace("http", "https"),
        }
        other["sasl.login.retry.backoff.max.ms"] = "200"
        with pytest.raises(ConnectionFailedError, match=r"token endpoint .* does not answer"):
            async with connected(other):
                pass
    with TokenEndpoint(lifetime_s=-10) as endpoint:
        props = token_properties(secured, endpoint, "LOGIN")
        with pytest.raises(ConnectionFailedError, match=r"token of client mirror .*\(58\)"):
            async with connected(props):
                pass


async def test_missing_acls_for_idempotent_writes_are_named(secured: SecuredRegion) -> None:
    def acl(
        kind: AclResourceType,
        name: str,
        operation: AclOperation,
        user: str,
        permission: AclPermission,
    ) -> Acl:
        return Acl(kind, name, PatternType.LITERAL, user, "*", operation, permission)

    topic, cluster = (AclResourceType.TOPIC, "*"), (AclResourceType.CLUSTER, "kafka-cluster")
    deny, everyone = ("User:denied", AclPermission.DENY), ("User:*", AclPermission.ALLOW)
    acls = [
        acl(*cluster, AclOperation.IDEMPOTENT_WRITE, *deny),
        acl(*topic, AclOperation.WRITE, *deny),
        # A resource with an ACL is closed to all whom no ACL lets in: the other tests go on.
        acl(*cluster, AclOperation.ALL, *everyone),
        acl(*topic, AclOperation.ALL, *everyone),
    ]

    async with connected(secured.region) as admin:
        assert await Admin(admin).create_acls(acls) == [None] * 4
        async with asyncio.timeout(90):  # the answer is the controller's
            while acls[1] not in (await Admin(admin).describe_topic_acls() or ()):
                pass
    props = secured.properties("LOGIN", "PLAIN", PLAIN, username="denied", password=DENIED_WORD)

    async with connected(props) as client:
        writer = RecordWriter(client, producer_settings(props), clock=SYSTEM_CLOCK)
        with pytest.raises(FatalServerError, match="IdempotentWrite on the Cluster resource"):
            await writer.start()
        await writer.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
async def test_a_login_is_renewed_under_load_without_losing_a_request(
    secured: SecuredRegion, mechanism: str
) -> None:
    props = secured.scram("SHORT")
    if mechanism == "OAUTHBEARER":
        props = secured.properties(
            "SHORT", "OAUTHBEARER", OAUTH, unsecuredLoginStringClaim_sub="bob"
        )

    async with closing(await opened(props)) as connection:
        # The broker ends a session after this time; it is renewed twice while it is used.
        await in_use(connection, 2.2 * SESSION_MS / 1000)


async def test_an_idle_connection_ends_with_its_session(secured: SecuredRegion) -> None:
    ended: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    settings = connection_settings(secured.scram("SHORT"))
    (host, port), *_ = settings.bootstrap_servers
    await BrokerConnection.open(
        host, port, settings, BufferPool(),
        on_closed=lambda _, reason, in_flight: ended.put_nowait((reason, in_flight)),
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE_S):
        assert await ended.get() == ("idle for a whole session", 0)


async def test_a_login_refused_later_ends_its_connection_with_why(secured: SecuredRegion) -> None:
    secured.set_scram_user("leaver", ODD_WORD)
    props = secured.properties(
        "SHORT", "SCRAM-SHA-512", SCRAM, username="leaver", password=ODD_WORD
    )

    connection = await opened(props)
    await asyncio.to_thread(secured.set_scram_user, "leaver", WRONG)

    async def use() -> None:
        while True:
            await connection.call(metadata(()))

    with pytest.raises(ConnectionFailedError, match=r"login not renewed: .*user leaver"):
        await asyncio.wait_for(use(), PATIENCE_S)
    with pytest.raises(AuthenticationError, match="user leaver"):
        await opened(props)


async def test_a_changed_truststore_counts_from_the_next_connection(
    secured: SecuredRegion, tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(STRANGER.pem())
    props = {
        **without_stores(secured.properties("TLS")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(file),
    }

    async with closing(Cluster(connection_settings(props), alias="A")) as cluster:
        with pytest.raises(ConnectionFailedError, match="is not trusted"):
            await cluster.connect()
        file.write_text(STRANGER.pem() + secured.authority.pem())
        await cluster.connect()


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


def certificates(mirror: Mirror) -> set[tuple[str, str]]:
    """Return of which owner and cluster the worker shows until when a certificate is valid, some days from now."""
    line = mirror.wait_for_log("rest listens public=")
    found = re.search(r"public=(http://[^/ ,]+)", line)
    assert found is not None, line
    samples = re.findall(
        r'^mm2py_certificate_expiry_timestamp_seconds\{address="[^"]*",cluster="(\w*)",owner="(\w+)"\} (\S+)$',
        httpx.get(f"{found[1]}/metrics", timeout=30).text,
        re.MULTILINE,
    )
    now_s = SYSTEM_CLOCK.now_ms() / 1000
    return {
        (owner, cluster) for cluster, owner, until_s in samples if float(until_s) > now_s + 86_400
    }


def test_records_go_from_sasl_ssl_scram_to_ssl_with_a_client_certificate(
    setup: Setup, secured: SecuredRegion, target: SecuredRegion
) -> None:
    topic = setup.topic("secured", 3, on=secured.region)
    there, back = secured.scram("TLSLOGIN"), target.with_client_key("MUTUAL")
    flow = secured_flow(setup.folder, (secured, there), (target, back), topic)
    sent = [Sent(n % 3, b"%d" % n + b"." * 5_000, b"k%d" % n) for n in range(3_000)]
    write(secured.region, topic, sent, linger_ms=50)
    with Mirror(flow.file) as mirror:
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert certificates(mirror) == {
            ("broker", flow.source_alias),
            ("broker", flow.target_alias),
            ("client", flow.target_alias),
        }
        assert mirror.stop() == 0
        log = mirror.log()
    for secret in (SCRAM_WORD, PASSWORD, "BEGIN PRIVATE"):
        assert secret not in log
    assert not list(setup.folder.glob("*.pem"))


def test_a_mirror_outlives_its_sessions_under_load(
    setup: Setup, secured: SecuredRegion, target: SecuredRegion
) -> None:
    topic = setup.topic("sessions", 2, on=secured.region)
    there, back = secured.scram("LONG"), target.scram("LONG", "SCRAM-SHA-256")
    flow = secured_flow(setup.folder, (secured, there), (target, back), topic)
    with Mirror(flow.file) as mirror:
        # REST is loaded beside the first records; sessions begin with their connections, so none ends before that.
        mirror.wait_for_log("rest listens", 90)
        with Load(secured.region, topic, 2, rate=RATE) as load:
            load.wait_acked(2 * RATE * LONG_SESSION_MS // 1000)  # the third session begins
            load.stop()
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert not mirror.lines("connection lost|not renewed|unreachable")


def test_a_flow_waits_for_a_refused_user_says_so_and_goes_on_when_it_is_let_in(
    setup: Setup, secured: SecuredRegion, target: SecuredRegion
) -> None:
    topic, user = setup.topic("waiting", on=secured.region), setup.unique("late")
    write(secured.region, topic, [Sent(0, b"one"), Sent(0, b"two")])
    there = secured.properties("TLSLOGIN", "SCRAM-SHA-512", SCRAM, username=user, password=ODD_WORD)
    flow = secured_flow(setup.folder, (secured, there), (target, target.properties("TLS")), topic)
    with Mirror(flow.file) as mirror:
        line = mirror.wait_for_log(rf"refused the login of user {user}", 90)
        assert "sasl.jaas.config" in line
        told = f"waiting for=source cluster .*user {user}"
        until(lambda: len(mirror.lines(told)) > 1, 90, "said again", alive=mirror)
        secured.set_scram_user(user, ODD_WORD)
        assert_equal(*wait_for_copy(mirror, flow, topic))
        # Locked out and let in again while it runs.
        secured.set_scram_user(user, ODD_WORD + "x")
        secured.region.restart()
        mirror.wait_for_log(rf"broker unreachable.*user {user}", 90)
        secured.set_scram_user(user, ODD_WORD)
        write(secured.region, topic, [Sent(0, b"three")])
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert ODD_WORD not in mirror.log()


BAD_FLOWS: dict[str, tuple[Callable[[SecuredRegion], dict[str, str]], str]] = {
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


@pytest.mark.parametrize("name", BAD_FLOWS)
def test_a_file_that_cannot_log_in_is_refused_with_its_line(
    secured: SecuredRegion, tmp_path: Path, name: str
) -> None:
    make, said = BAD_FLOWS[name]
    flow = secured_flow(tmp_path, (secured, make(secured)), (secured, {}), "t")
    ended = run_to_end(flow.file)
    assert ended.returncode == 1
    (line,) = [each for each in ended.stderr.splitlines() if "bad configuration" in each]
    assert re.search(said, line), line
    assert "nope-nope" not in ended.stderr
