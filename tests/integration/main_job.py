"""What a mirror is for, wherever it runs: the same two tests on processes and jars, and on containers.

Flow: a flow and its empty topic -> ``Start`` gives workers -> records -> both clusters compared.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from mm2py.clock import SYSTEM_CLOCK
from tests.integration.mirror_process import Flow, Mirror, Running, until_equal
from tests.integration.traffic import (
    YEAR_MS,
    Sent,
    assert_equal,
    committed_positions,
    wait_for_copy,
    write,
)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 8

Start = Callable[[Flow, str], AbstractContextManager[Running]]
"""Start a worker of a flow under a name; it ends with the ``with`` block in any case."""


def processes(flow: Flow, name: str) -> AbstractContextManager[Running]:
    """Start a worker as a process of this machine."""
    return Mirror(flow.file, name=name)


def kinds(count: int, *, seed: int) -> Iterator[Sent]:
    """Every kind of record, on all partitions, up to thirty years old."""
    chance = random.Random(seed)
    now_ms = SYSTEM_CLOCK.now_ms()
    for number in range(count):
        headers: list[tuple[str, bytes | None]] = []
        if number % 3 == 0:
            headers = [("same", b"1"), ("same", b"2"), ("", b""), ("null", None)]
        if number % 5 == 0:
            headers += [("latin", b"\xff\xfe\x00\x80"), ("same", None), ("é", b"\xc3")]
        yield Sent(
            number % PARTITIONS,
            None if number % 7 == 0 else chance.randbytes(chance.randrange(300)),
            None if number % 4 == 0 else b"key-%d" % (number % 50),
            headers,
            now_ms - (number % 31) * YEAR_MS,
        )


def every_kind_of_record_and_codec_is_copied(flow: Flow, topic: str, start: Start) -> None:
    """Copy what was there before and what comes while the flow runs; the topic has ``PARTITIONS``."""
    source = flow.source
    for number, codec in enumerate(CODECS):
        write(source, topic, kinds(800, seed=number), compression_type=codec, linger_ms=20)
    with start(flow, "only") as worker:
        worker.wait_ready()
        # A batch of its own for every record, live.
        for number, codec in enumerate(CODECS):
            write(
                source,
                topic,
                kinds(40, seed=10 + number),
                compression_type=codec,
                batch_num_messages=1,
                linger_ms=0,
            )
        truth, copy = wait_for_copy(worker, flow, topic)
        assert_equal(truth, copy)
        assert sum(len(log.records) for log in copy.values()) == 5 * 840
        assert worker.stop() == 0
        assert not worker.complaints()


def the_tasks_of_a_killed_worker_run_in_the_other(flow: Flow, topic: str, start: Start) -> None:
    """Kill one of two workers that share a flow of two tasks; nothing is lost or doubled."""
    partitions = range(4)

    def send(word: bytes, count: int) -> None:
        write(flow.source, topic, (Sent(n % len(partitions), word % n) for n in range(count)))

    send(b"%d", 2_000)
    with start(flow, "one") as one, start(flow, "two") as two:
        one.wait_ready()
        two.wait_ready()
        assert_equal(*wait_for_copy(one, flow, topic))
        last = 2_000 // len(partitions) - 1
        until_equal(lambda: committed_positions(flow, topic), dict.fromkeys(partitions, last))
        one.kill()
        # Its session ends, then the delay in which it might come back.
        send(b"more %d", 500)
        assert_equal(*wait_for_copy(two, flow, topic))
        assert two.stop() == 0
