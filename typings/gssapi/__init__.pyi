from collections.abc import Iterable, Mapping
from enum import IntEnum

from . import exceptions as exceptions

class NameType:
    hostbased_service: object
    kerberos_principal: object

class RequirementFlag(IntEnum):
    mutual_authentication = 2
    integrity = 32

class Name:
    def __init__(self, base: str, name_type: object = ...) -> None: ...

class Credentials:
    def __init__(
        self, *, name: Name | None = ..., usage: str = ..., store: Mapping[str, str] | None = ...
    ) -> None: ...
    @property
    def lifetime(self) -> int | None: ...
    @property
    def name(self) -> Name: ...

class WrapResult:
    message: bytes
    encrypted: bool

class UnwrapResult:
    message: bytes
    encrypted: bool

class SecurityContext:
    def __init__(
        self,
        *,
        name: Name | None = ...,
        creds: Credentials | None = ...,
        flags: Iterable[RequirementFlag] | None = ...,
        usage: str = ...,
    ) -> None: ...
    @property
    def complete(self) -> bool: ...
    def step(self, token: bytes | None = ...) -> bytes | None: ...
    def unwrap(self, message: bytes) -> UnwrapResult: ...
    def wrap(self, message: bytes, encrypt: bool) -> WrapResult: ...
