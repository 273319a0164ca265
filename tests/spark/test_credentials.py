"""Credentials that end while a job on Spark runs: named with the cluster and the cause, nothing lost or doubled, the same command continues.

Passwords that change on the broker, tokens that are not renewed, tickets that expire; of lanes that copy, of lanes and drivers that start.
"""

import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import pytest

from mm2py.mirror.backfills import LEASE_S
from tests.integration import test_security_kerberos
from tests.integration.kerberos import NEEDS_KERBEROS, REALM, Kdc, KerberosRegion, login
from tests.integration.mirror_process import Flow, until
from tests.integration.secured import (
    CLIENT_WORD,
    ODD_WORD,
    SCRAM,
    SESSION_MS,
    SecuredRegion,
    TokenEndpoint,
)
from tests.integration.setups import Setup
from tests.integration.test_security_connections import token_properties
from tests.integration.test_security_kerberos import kerberos_flow
from tests.integration.traffic import (
    Load,
    Sent,
    assert_equal,
    copied,
    read,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.kit.kafka.region import KafkaAddress
from tests.spark.backfill_process import BackfillProcess, command, cpu_s, here, leases_of
from tests.spark.test_backfill import history
from tests.spark.test_stream import ON_SPARK, stream_of

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(900)]

TOLD_S = 30.0
"""Within this an operator sees why nothing is copied."""
MASTER = "--master", "local[2]"
FAST = "--rate-limit", "100000000"
SLOW = "--rate-limit", "200000"
BRIEF_S = 12
"""For so long a token lives, and a ticket."""

kdc = test_security_kerberos.kdc
broker = test_security_kerberos.broker


@final
@dataclass(frozen=True)
class Guest:
    """A flow whose user at one of its clusters can be locked out; sessions there last for seconds."""

    flow: Flow
    topic: str
    user: str
    secured: SecuredRegion

    @property
    def refusal(self) -> str:
        return f"refused the login of user {self.user}"

    def lock_out(self) -> None:
        self.secured.set_scram_user(self.user, f"{ODD_WORD}!")

    def let_in(self) -> None:
        self.secured.set_scram_user(self.user, ODD_WORD)

    def is_held(self) -> bool:
        """Whether the lease of a partition has the cause."""
        return any(self.refusal in it.cause for it in leases_of(self.flow))

    def told(self, run: BackfillProcess) -> int:
        """Return how many lines about the progress had the cause."""
        return sum(self.refusal in it and " offsets; " in it for it in run.said())

    def assert_copied(self) -> None:
        """Assert that each record was copied, once and in order."""
        flow = self.flow
        assert_equal(read(flow.source, self.topic), read(flow.target, flow.remote(self.topic)))


def guest_of(
    setup: Setup, secured: SecuredRegion, side: str, properties: Mapping[str, str] | None = None
) -> Guest:
    """Return a guest at the ``source`` or the ``target`` of a flow with some history."""
    user = setup.unique("guest")
    source: KafkaAddress = secured.region if side == "source" else setup.a
    target: KafkaAddress = secured.region if side == "target" else setup.b
    topic = setup.topic("orders", 2, on=source, config={"retention.ms": "-1"})
    word = secured.properties("SHORT", "SCRAM-SHA-512", SCRAM, username=user, password=ODD_WORD)
    write(source, topic, history(2, 30_000))
    own = {f"{{{side}}}.{key}": value for key, value in word.items()}
    flow = setup.flow(topic, {**own, **(properties or {})}, source=source, target=target)
    guest = Guest(flow, topic, user, secured)
    guest.let_in()
    return guest


@pytest.mark.faults
@pytest.mark.usefixtures("lanes_session")
def test_a_login_that_is_refused_later_is_named_and_the_job_goes_on_once_it_is_let_in(
    setup: Setup, secured: SecuredRegion
) -> None:
    """Of lanes that copy, then of one that starts: Spark tries it again when its process has died."""
    guest = guest_of(setup, secured, "source")
    flow, topic = guest.flow, guest.topic
    with BackfillProcess(flow, *SLOW) as run:
        until(lambda: copied(flow, topic) > 1_000, 240, "progress of the lanes")
        guest.lock_out()
        until(guest.is_held, SESSION_MS / 1000 + TOLD_S, "the cause")
        assert run.signal_worker(signal.SIGKILL)

        def waits() -> bool:
            return any("waits for the task's start" in it.cause for it in leases_of(flow))

        until(waits, LEASE_S + TOLD_S, "the cause of one that starts")
        shown = str(command(flow, "status").report["cause"])
        assert "still" in shown
        assert guest.refusal in shown
        guest.let_in()
        ended = run.wait()
    assert ended.code == 0, ended.err
    assert guest.refusal in next(it for it in ended.err.splitlines() if " offsets; " in it)
    guest.assert_copied()


@pytest.mark.chaos
@pytest.mark.usefixtures("lanes_session")
@pytest.mark.parametrize("word", ["backfill", "restore"])
def test_a_target_that_refuses_the_login_is_named_and_a_stop_ends_the_run_that_is_continued(
    setup: Setup, secured: SecuredRegion, word: str
) -> None:
    """Driver and lanes can store nothing, nor can the run's end be; then a driver that starts is refused."""
    guest = guest_of(setup, secured, "target")
    flow, topic = guest.flow, guest.topic
    words: Sequence[str] = ("backfill", "run")
    options: Sequence[str] = ()
    if word == "restore":
        folder = str(setup.folder / "archive")
        words, options = ("restore",), ("--from", folder)
        archived = here(flow, ("archive",), "--to", folder, *MASTER)
        assert archived.code == 0, archived.err
    with BackfillProcess(flow, *options, "--rate-limit", "100000", words=words) as run:
        until(lambda: copied(flow, topic) > 1_000, 240, "progress of the lanes")
        guest.lock_out()
        until(lambda: guest.told(run), SESSION_MS / 1000 + TOLD_S, "the cause")
        before = copied(flow, topic)
        guest.let_in()
        until(lambda: copied(flow, topic) > before + 1_000, 240, "progress after the first time")
        told = guest.told(run)
        guest.lock_out()
        until(lambda: guest.told(run) > told, SESSION_MS / 1000 + TOLD_S, "the second cause")
        run.send(signal.SIGTERM)
        ended = run.wait()
    assert ended.code == 1
    assert guest.refusal in ended.err.splitlines()[-1]
    with BackfillProcess(flow, *options, words=words) as refused:
        ended = refused.wait()
    assert ended.code == 1
    assert guest.refusal in ended.err.splitlines()[-1]
    assert copied(flow, topic) < 30_000
    guest.let_in()
    done = here(flow, words, *options, *MASTER, *FAST)
    assert (done.code, done.report["state"]) == (0, "DONE"), done.err
    guest.assert_copied()


@pytest.mark.chaos
@pytest.mark.usefixtures("lanes_session")
@pytest.mark.parametrize("word", ["archive", "verify"])
def test_a_login_that_is_refused_while_lanes_read_ends_the_job_with_the_cause(
    setup: Setup, secured: SecuredRegion, word: str
) -> None:
    # More than one fetch of each lane, or none is left that could be refused.
    guest = guest_of(setup, secured, "source", {"{source}.default.api.timeout.ms": "6000"})
    flow = guest.flow
    records = [Sent(it % 2, os.urandom(1_000)) for it in range(24_000)]
    write(secured.region, guest.topic, records)
    options = ("--to", str(setup.folder / "archive")) if word == "archive" else ()
    if word == "verify":
        filled = here(flow, ("backfill", "run"), *MASTER)
        assert filled.code == 0, filled.err
    with BackfillProcess(flow, *options, "--rate-limit", "500000", words=(word,)) as run:
        until(lambda: any(cpu_s(it) > 0.3 for it in run.workers()), 240, "a lane that works")
        guest.lock_out()
        ended = run.wait()
    assert ended.code == 1
    *_, before, last = (it for it in ended.err.splitlines() if guest.refusal in it)
    assert "login of a lane is refused" in before
    assert "the login of each lane is refused" in last
    guest.let_in()
    again = here(flow, (word,), *options, *FAST, *MASTER)
    assert again.code == 0, again.err
    if word == "verify":
        assert again.report["checked_records"] == 54_000
    else:
        left = here(flow, ("job", "archive", "plan"), *options)
        assert left.rows("partitions") == []


@pytest.mark.chaos
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_stream_that_is_refused_says_so_as_long_as_that_lasts_and_goes_on_when_it_is_let_in(
    setup: Setup, secured: SecuredRegion, side: str
) -> None:
    """Then one that is ended while it is refused, and one that continues it."""
    guest = guest_of(setup, secured, side, ON_SPARK)
    flow, topic = guest.flow, guest.topic
    with Load(flow.source, topic, 2, rate=200) as load:
        with stream_of(flow, "--term", "8") as stream:
            wait_for_progress(stream, flow, topic, 1_000)
            guest.lock_out()
            stream.wait_for_log(f"cluster={getattr(flow, f'{side}_alias')} .*{guest.refusal}")
            if side == "source":
                ended = len(stream.lines("term ended"))
                until(guest.is_held, 90, "the cause", alive=stream)
                until(
                    lambda: len(stream.lines("term ended")) > ended + 1 and guest.is_held(),
                    180,
                    alive=stream,
                )
            guest.let_in()
            wait_for_progress(stream, flow, topic, 1_000)
            told = len(stream.lines(guest.refusal))
            guest.lock_out()
            until(lambda: len(stream.lines(guest.refusal)) > told, 90, "the cause", alive=stream)
            code = stream.stop()
            if side == "target":  # which cannot be told to end its lanes
                assert code == 1, stream.tail()
                assert stream.lines(f"mm2py: ended, which is not noted: .*{guest.refusal}")
        guest.let_in()
        with stream_of(flow, name="again") as stream:
            wait_for_progress(stream, flow, topic, 1_000)
            load.stop()
            assert_equal(*wait_for_copy(stream, flow, topic, timeout_s=150))
            assert stream.stop() == 0, stream.tail()


@pytest.mark.chaos
@pytest.mark.usefixtures("lanes_session")
def test_lanes_renew_their_tokens_and_an_endpoint_that_refuses_the_client_is_named(
    setup: Setup, secured: SecuredRegion
) -> None:
    """Each lane has its tokens by the properties of the flow; the client's secret changes and is put back."""
    topic = setup.topic("tokens", 2, on=secured.region, config={"retention.ms": "-1"})
    write(secured.region, topic, history(2, 30_000))
    with TokenEndpoint(lifetime_s=BRIEF_S) as endpoint:
        properties = token_properties(secured, endpoint, "SHORT")
        own = {f"{{source}}.{key}": value for key, value in properties.items()}
        flow = setup.flow(topic, own, source=secured.region)
        told = "refused the client with HTTP 401: unknown client"

        def is_held() -> bool:
            return any(told in it.cause for it in leases_of(flow))

        with BackfillProcess(flow, "--rate-limit", "100000") as run:
            until(lambda: copied(flow, topic) > 1_000, 240, "progress of the lanes")
            before = len(endpoint.seen.bodies)
            until(lambda: len(endpoint.seen.bodies) > before + 4, 4 * BRIEF_S, "new tokens")
            assert not any(it.cause for it in leases_of(flow))
            endpoint.seen.word = "another secret"
            until(is_held, BRIEF_S + SESSION_MS / 1000 + TOLD_S, "the cause")
            endpoint.seen.word = CLIENT_WORD
            ended = run.wait()
        assert ended.code == 0, ended.err
    assert_equal(read(flow.source, topic), read(flow.target, flow.remote(topic)))


@pytest.mark.chaos
@NEEDS_KERBEROS
def test_lanes_renew_their_tickets_and_a_keytab_whose_key_has_changed_is_named(
    setup: Setup, broker: KerberosRegion, kdc: Kdc
) -> None:
    topic = setup.topic("tickets", 2, on=broker.region, config={"retention.ms": "-1"})
    write(broker.region, topic, history(2, 30_000))
    kdc.principal(topic, life=f"{BRIEF_S}s")
    keytab = setup.folder / "mirror.keytab"
    shutil.copy(kdc.keytab(topic), keytab)
    flow = kerberos_flow(setup.folder, broker, setup.b, topic, login(keytab, topic))
    told = f"refuses the key of {topic}@{REALM} in keytab {keytab}"

    def is_held() -> bool:
        return any(told in it.cause for it in leases_of(flow))

    with BackfillProcess(flow, "--rate-limit", "100000") as run:
        until(lambda: copied(flow, topic) > 1_000, 240, "progress of the lanes")
        begun_s = time.monotonic()
        until(lambda: time.monotonic() > begun_s + 2 * BRIEF_S, 90, "the end of two tickets")
        assert not any(it.cause for it in leases_of(flow))
        new = kdc.keytab(topic)
        until(is_held, BRIEF_S + SESSION_MS / 1000 + TOLD_S, "the cause")
        shutil.copy(new, keytab)
        ended = run.wait()
    assert ended.code == 0, ended.err
    assert_equal(read(flow.source, topic), read(flow.target, flow.remote(topic)))
