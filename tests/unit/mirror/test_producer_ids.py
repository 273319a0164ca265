"""Format of ``mm2py-producers.internal``, what a flow concludes from it, and when it does at all."""

import re
from pathlib import Path

import pytest

from mm2py.errors import ConfigError, ProtocolError
from mm2py.mirror.producer_ids import (
    MOST_PASSING,
    MirrorProducer,
    ProducerOrigins,
    Suppression,
    decode_producer,
    encode_producer,
    suppression_of,
)

IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
FORMATS = Path(__file__).parents[3] / "docs" / "reference" / "formats.md"


def producer(
    producer_id: int, source: str = "A", source_cluster: str = "id-of-a"
) -> MirrorProducer:
    return MirrorProducer(
        producer_id=producer_id,
        flow=f"{source}->B",
        source=source,
        source_cluster=source_cluster,
        task="MirrorSourceConnector-0",
        worker="host-1/4711",
        time_ms=1_700_000_000_000,
    )


def origins(*, everything: bool = False, target_cluster: str = "id-of-a") -> ProducerOrigins:
    return ProducerOrigins(everything=everything, target="A", target_cluster=target_cluster)


def test_the_golden_vector_of_the_page_is_what_is_written_and_read() -> None:
    chapter = FORMATS.read_text().split("## Producer ids of mirrors")[1].split("\n## ")[0]
    blocks = re.findall(r"(?:^    (?:[0-9a-f]{2} ?)+\n)+", chapter, re.MULTILINE)
    key, value = (bytes.fromhex(block) for block in blocks)
    assert encode_producer(producer(1001)) == (key, value)
    assert decode_producer(key, value) == producer(1001)


def test_members_that_are_not_known_are_ignored() -> None:
    assert decode_producer(b"5", b'\x01{"source":"A","more":[1]}').source == "A"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"5", b""),
        (b"5", b"\x02{}"),
        (b"five", b"\x01{}"),
        (None, b"\x01{}"),
        (b"5", b"\x01[]"),
        (b"5", b"\x01{"),
        (b"5", b'\x01{"source":1}'),
    ],
)
def test_a_record_that_cannot_be_read_is_refused(key: bytes | None, value: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_producer(key, value)


def test_only_mirrors_of_our_target_loop() -> None:
    found = origins()
    found.learn(producer(1))
    found.learn(producer(2, "C", "id-of-c"))
    assert (found.known.looping, found.known.passing) == ({1}, {2})


def test_with_all_every_mirror_loops() -> None:
    found = origins(everything=True)
    found.learn(producer(1))
    found.learn(producer(2, "C", "id-of-c"))
    assert found.known.looping == {1, 2}


def test_clusters_are_compared_by_id_and_by_alias_only_where_an_id_is_missing() -> None:
    found = origins()
    found.learn(producer(1, "other-name", "id-of-a"))
    found.learn(producer(2, "A", "id-of-another-cluster-called-A"))
    found.learn(producer(3, "A", ""))
    assert (found.known.looping, found.known.passing) == ({1, 3}, {2})
    unnamed = origins(target_cluster="")
    unnamed.learn(producer(1))
    assert unnamed.known.looping == {1}


def test_3_a_judgement_is_final() -> None:
    found = origins()
    found.learn(producer(1))
    found.judge([1, 4])
    found.judge([4])
    assert (found.known.looping, found.known.passing) == ({1}, {4})


def test_ids_of_applications_are_forgotten_before_they_fill_memory_and_mirrors_never() -> None:
    found = origins()
    found.learn(producer(2, "C", "id-of-c"))
    found.judge(range(1_000, 1_000 + MOST_PASSING))
    found.judge([5])
    assert found.known.passing == {2, 5}


def test_it_is_on_where_names_are_kept_unless_it_is_set() -> None:
    keeps = {"replication.policy.class": IDENTITY, "source.cluster.alias": "A"}
    assert suppression_of({}) is Suppression.OFF
    assert suppression_of(keeps) is Suppression.AUTO
    assert suppression_of({**keeps, "loop.suppression": "off"}) is Suppression.OFF
    assert suppression_of({"loop.suppression": "ON"}) is Suppression.ON
    assert suppression_of({"loop.suppression": "all"}) is Suppression.ALL
    with pytest.raises(ConfigError, match=r"loop\.suppression=maybe"):
        suppression_of({"loop.suppression": "maybe"})
