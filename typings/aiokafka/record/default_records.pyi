from collections.abc import Iterator

class DefaultRecord:
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

class DefaultRecordBatch:
    base_offset: int
    attributes: int
    compression_type: int
    is_transactional: bool
    is_control_batch: bool
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    next_offset: int
    def __init__(self, buffer: bytes | bytearray | memoryview) -> None: ...
    def __iter__(self) -> Iterator[DefaultRecord]: ...
    def validate_crc(self) -> bool: ...

class DefaultRecordBatchBuilder:
    def __init__(self, magic: int, compression_type: int, is_transactional: int, producer_id: int, producer_epoch: int, base_sequence: int, batch_size: int) -> None: ...
    def append(self, offset: int, timestamp: int | None, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> object | None: ...
    def build(self) -> bytearray: ...
