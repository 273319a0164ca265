"""Where records that are no copies may be in the log of a copy, by the map and by what is read between the copies."""

from typing import Any, Final, cast

import pytest

from mm2py.client.connect.admin import ListedOffset
from mm2py.client.connect.cluster import Cluster
from mm2py.errors import ServerError
from mm2py.mirror.offset_map import Page, Segment, encode_page, encode_page_key
from mm2py.mirror.offset_map_reader import MARKERS_AT_ONCE, OffsetMapReader, no_record_until
from mm2py.protocol.error_codes import (
    OFFSET_OUT_OF_RANGE,
    TOPIC_AUTHORIZATION_FAILED,
    server_error,
)
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.records import Record
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from tests.kit.fakes.batches import ABORT, COMMIT, TRANSACTIONAL, marker, stored_batch

T: Final = TopicPartition("t", 0)
NO_ID: Final = b"\0" * 16
PART: Final = "mm2py.mirror.offset_map_reader."


class CopyLog:
    """The log of a copy: its batches by their first offset, and the offsets that were asked for."""

    def __init__(self, *batches: bytearray, aborted: list[tuple[int, int]] | None = None) -> None:
        self.batches = {int.from_bytes(it[:8]): it for it in batches}
        self.aborted, self.error = aborted or [], cast("ServerError | None", None)
        self.asked: list[int] = []

    async def fetch(
        self, _cluster: object, _tp: object, at: int, *, max_bytes: int, isolation_level: int
    ) -> FetchedPartition:
        assert (max_bytes, isolation_level) == (1, 1)
        self.asked.append(at)
        if self.error is not None:
            raise self.error
        data = next((it for base, it in sorted(self.batches.items()) if base >= at), None)
        records = None if data is None else memoryview(data)
        return FetchedPartition("t", NO_ID, 0, 0, 99, 99, 0, self.aborted, -1, records)


@pytest.mark.parametrize(
    ("log", "end"),
    [
        (CopyLog(stored_batch(5)), 5),
        (CopyLog(marker(5, 7, COMMIT)), 6),
        (CopyLog(stored_batch(5, 3, flags=TRANSACTIONAL, producer=7), aborted=[(7, 4)]), 8),
        (CopyLog(stored_batch(5, 3, flags=TRANSACTIONAL, producer=7), aborted=[(7, 6)]), 5),
        (CopyLog(stored_batch(5, 3, flags=TRANSACTIONAL, producer=7), aborted=[(8, 4)]), 5),
        (CopyLog(stored_batch(9)), 9),  # compacted
        (CopyLog(), 5),  # above the last stable offset
    ],
)
async def test_markers_and_aborted_batches_are_no_records(
    monkeypatch: pytest.MonkeyPatch, log: CopyLog, end: int
) -> None:
    monkeypatch.setattr(PART + "fetch_partition", log.fetch)
    assert await no_record_until(cast("Cluster", None), T, 5) == end


@pytest.mark.parametrize(
    ("code", "end"), [(OFFSET_OUT_OF_RANGE, 40), (TOPIC_AUTHORIZATION_FAILED, 5)]
)
async def test_what_is_gone_from_a_log_is_no_record_and_what_may_not_be_read_may_be_one(
    monkeypatch: pytest.MonkeyPatch, code: int, end: int
) -> None:
    class Starts:
        def __init__(self, _cluster: object) -> None:
            pass

        async def list_offsets(self, _asked: object) -> dict[TopicPartition, ListedOffset]:
            return {T: ListedOffset(40, -1)}

    log = CopyLog()
    log.error = server_error(code, "reading")
    monkeypatch.setattr(PART + "fetch_partition", log.fetch)
    monkeypatch.setattr(PART + "Admin", Starts)
    assert await no_record_until(cast("Cluster", None), T, 5) == end


async def test_each_place_between_copies_is_read_once_and_so_many_for_one_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = MARKERS_AT_ONCE + 9
    log = CopyLog(*(marker(2 * it + 1, 7, ABORT) for it in range(many)))
    monkeypatch.setattr(PART + "fetch_partition", log.fetch)
    reader = cast("Any", OffsetMapReader(cast("Cluster", None), "A", clock=FakeClock()))
    copies = tuple(Segment(it, 1, 2 * it) for it in range(many + 1))
    page = Page(0, NO_ID, NO_ID, many + 1, -1, -1, -1, 0, copies)
    reader._take(0, Record(0, 0, encode_page_key(T, 0), encode_page(page)))
    end = 2 * many + 1
    assert await reader.own_from(T, 0, end) == 2 * MARKERS_AT_ONCE
    assert await reader.own_from(T, 4, end) == end
    assert await reader.own_from(T, 0, end) == end
    assert log.asked == [2 * it + 1 for it in range(many)], "each once"
    log.batches[5] = stored_batch(5)
    reader._markers.clear()
    assert await reader.own_from(T, 2, end) == 5
    assert await reader.own_from(TopicPartition("u", 0), 0, end) is None
