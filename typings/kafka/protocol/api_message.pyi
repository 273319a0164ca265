from typing import Self

from kafka.protocol.data_container import DataContainer

class ApiMessage(DataContainer):
    API_KEY: int
    API_VERSION: int
    valid_versions: tuple[int, int]
    def with_header(self, correlation_id: int = ..., client_id: str = ...) -> None: ...
    def encode(self, version: int | None = ..., header: bool = ..., framed: bool = ...) -> bytearray: ...
    @classmethod
    def flexible_version_q(cls, version: int) -> bool: ...
    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, version: int | None = ..., header: bool = ..., framed: bool = ...) -> Self: ...
