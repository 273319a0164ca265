"""The pipe between a worker and a task host: each end calls methods of the other. Version 2.

Flow: ``Channel.post`` or ``ask`` -> frame -> socket -> ``HostPipe.listen`` of the other end -> the
method -> its answer.

::

    u32 length of what follows | u8 version | u32 channel | u32 id | u8 length of the name | name | JSON

All numbers are big endian. Channel 0 is the host itself, each flow on it has one of its own. The
name is a method's, and the JSON its arguments in the order of its signature, from whose annotations
both ends know the types. ``=`` is the answer to the call with that id, ``!`` its failure; id 0
wants none. Anything else is a ``ProtocolError``, after which the pipe cannot be used.
"""

import asyncio
import json
import logging
import socket
import struct
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from inspect import Signature, iscoroutinefunction, signature
from itertools import count, pairwise
from types import FunctionType, GenericAlias, MethodType
from typing import (
    Concatenate,
    Final,
    NamedTuple,
    Never,
    ParamSpec,
    TypeVar,
    cast,
    final,
    get_type_hints,
)

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from mm2py import errors
from mm2py.errors import FatalError, Mm2pyError, PartitionError, ProtocolError, ServerError
from mm2py.observability.logging import log_scope
from mm2py.runtime.tasks.lifecycle import one_line, shortened

log = logging.getLogger(__name__)


HEADER: Final = struct.Struct(">IB")
_ADDRESS: Final = struct.Struct(">IIB")
VERSION: Final = 2
LONGEST_BYTES: Final = 64 << 20
"""The largest is a task's config with its partitions: a few MB at most."""
LONGEST_LINE: Final = 100_000
"""Characters of a log line."""
CLOGGED_ABOVE_BYTES: Final = 4 << 20
"""With more than this not taken by the other side, which must be frozen then."""

ANSWER: Final = "="
FAILURE: Final = "!"

_REMEDY: Final = "run the same version of mm2py in every process"

_P = ParamSpec("_P")
_R = TypeVar("_R")

Method = Callable[..., object]


# ---- exceptions as plain data


MOST_CAUSES: Final = 10


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """An exception on its way through the pipe, as plain data: nothing is ever unpickled. Stack
    frames stay behind."""

    kind: str
    message: str
    remedy: str = ""
    causes: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        causes: list[tuple[str, str]] = []
        cause = error.__cause__
        while cause is not None and len(causes) < MOST_CAUSES:
            causes.append((type(cause).__name__, one_line(cause)))
            cause = cause.__cause__
        if isinstance(error, Mm2pyError):
            message, remedy = shortened(error.message), shortened(error.remedy)
            return cls(type(error).__name__, message, remedy, tuple(causes))
        return cls(type(error).__name__, one_line(error), "", tuple(causes))

    def error(self) -> Exception:
        """Return an exception of equal class, text and causes; of a foreign class only the name."""
        chain = [_error(self.kind, self.message, self.remedy)]
        chain += [_error(kind, text) for kind, text in self.causes]
        for error, cause in pairwise(chain):
            error.__cause__ = cause
        return chain[0]

    def own_error(self) -> Mm2pyError:
        """Return the exception; one of a foreign class becomes a ``FatalError``."""
        error = self.error()
        if isinstance(error, Mm2pyError):
            return error
        fatal = FatalError(f"{self.kind}: {self.message}")
        fatal.__cause__ = error.__cause__
        return fatal


def _error(kind: str, message: str, remedy: str = "") -> Exception:
    # By name, in our own module only: what a plug-in raised must not choose a class to build.
    error_class: object = getattr(errors, kind, None)
    if not isinstance(error_class, type) or not issubclass(error_class, Mm2pyError):
        return _foreign(kind)(message)
    error: Mm2pyError
    # Their constructors require arguments that did not travel.
    if issubclass(error_class, PartitionError):
        error = error_class("", topic="", partition=-1, remedy=remedy)
    elif issubclass(error_class, ServerError):
        error = error_class(-1, "", remedy=remedy)
    else:
        error = error_class(message, remedy=remedy)
    # The text that was sent has what a constructor adds, as the partition or the code.
    error.message = message
    return error


@cache
def _foreign(kind: str) -> type[Exception]:
    """Return a class of that name: the text of a ``KeyError`` is meaningless without its class."""
    return type(kind, (Exception,), {"__module__": __name__})


# ---- bytes


class Frame(NamedTuple):
    """A call or an answer; ``payload`` is JSON."""

    channel: int
    id: int
    name: str
    payload: bytes


def encode_frame(frame: Frame) -> bytes:
    """Return the bytes of a frame; ``FatalError``: it is too long for the other end."""
    name = frame.name.encode()
    body = _ADDRESS.pack(frame.channel, frame.id, len(name)) + name + frame.payload
    # Refused by the sender: at the receiver it would end the pipe, with all its tasks.
    if len(body) >= LONGEST_BYTES:
        raise FatalError(
            f"{frame.name} with {len(body)} bytes is too long for the pipe between worker and task "
            f"host, which takes {LONGEST_BYTES}",
            remedy="spread its partitions over more tasks",
        )
    return HEADER.pack(len(body) + 1, VERSION) + body


def body_size(header: bytes) -> int:
    """Return how many bytes follow a header; ``ProtocolError``: no frame of this version."""
    length, version = cast("tuple[int, int]", HEADER.unpack(header))
    # Before the body is read: a wrong length would make the reader wait for ever.
    if version != VERSION or not _ADDRESS.size < length <= LONGEST_BYTES:
        raise ProtocolError(
            f"frame of version {version} and {length} bytes between worker and task host",
            remedy=_REMEDY,
        )
    return length - 1


def decode_body(body: bytes) -> Frame:
    """Read what follows a header; ``ProtocolError``: it is no frame."""
    try:
        channel, number, length = cast("tuple[int, int, int]", _ADDRESS.unpack_from(body))
        start = _ADDRESS.size + length
        name = body[_ADDRESS.size : start].decode("ascii")
    except (struct.error, UnicodeDecodeError) as error:
        raise _damaged(f"{len(body)} bytes without channel, id and name") from error
    if len(body) <= start:
        raise _damaged(f"{len(body)} bytes without arguments")
    return Frame(channel, number, name, body[start:])


def _damaged(what: str) -> ProtocolError:
    return ProtocolError(f"damaged message between worker and task host: {what}", remedy=_REMEDY)


# ---- arguments and results


_Types = TypeAdapter[tuple[object, ...]]


def _types(*types: object) -> _Types:
    # Bytes travel as hex: JSON has none.
    array = cast("type[tuple[object, ...]]", GenericAlias(tuple, types))
    return TypeAdapter(array, config=ConfigDict(ser_json_bytes="hex", val_json_bytes="hex"))


class _MethodTypes(NamedTuple):
    """Types of a method's arguments and of its result."""

    signature: Signature
    names: tuple[str, ...]
    arguments: _Types
    result: _Types


@cache
def _codec(function: FunctionType) -> _MethodTypes:
    # Slow, hence the cache: per method, not per call.
    types, described = get_type_hints(function), signature(function)
    names = tuple(described.parameters)[1:]
    arguments = _types(*(types[name] for name in names))
    return _MethodTypes(described, names, arguments, _types(types["return"]))


_FAILURES: Final = _types(Failure)


def _function(method: Method) -> FunctionType:
    function: object = method.__func__ if isinstance(method, MethodType) else method
    if not isinstance(function, FunctionType):
        raise TypeError(f"{method!r} is no method of a class")
    return function


def _dump(types: _Types, values: tuple[object, ...]) -> bytes:
    try:
        return types.dump_json(values)
    except PydanticSerializationError:
        # A text of others may hold half of a surrogate pair, which UTF-8 has no bytes for.
        plain = json.dumps(types.dump_python(values, mode="json"), ensure_ascii=False)
        return plain.encode("utf-8", "replace")


def _load(types: _Types, frame: Frame, what: str) -> tuple[object, ...]:
    try:
        return types.validate_json(frame.payload)
    except ValidationError:
        # Without the cause: it quotes the values, and those may be secrets.
        raise _damaged(f"{what} of other types than known here") from None


# ---- calls


class _ServedMethods(NamedTuple):
    scope: str
    methods: Mapping[str, tuple[Method, _MethodTypes]]


class _PendingCall(NamedTuple):
    answer: asyncio.Future[object]
    codec: _MethodTypes


@final
class HostPipe:
    """One end of the pipe, over a stream socket. Sending never waits."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ids = count(1)
        self._served: dict[int, _ServedMethods] = {}
        self._pending: dict[int, _PendingCall] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._failed: Mm2pyError | None = None
        self.received = 0
        """How many frames came."""

    @classmethod
    async def over(cls, sock: socket.socket) -> "HostPipe":
        reader, writer = await asyncio.open_connection(sock=sock)
        return cls(reader, writer)

    @property
    def clogged(self) -> bool:
        """Whether the other side does not read; callers leave out then what may be left out."""
        return self._writer.transport.get_write_buffer_size() > CLOGGED_ABOVE_BYTES

    def channel(self, number: int) -> "Channel":
        return Channel(self, number)

    def serve(self, channel: int, methods: tuple[Method, ...], scope: str) -> None:
        """Let the other side call ``methods`` on a channel, and nothing else of their objects."""
        functions = ((method, _function(method)) for method in methods)
        named = {function.__name__: (method, _codec(function)) for method, function in functions}
        self._served[channel] = _ServedMethods(scope, named)

    def withdraw(self, channel: int) -> None:
        """Serve a channel no more; calls that come for it later are ignored."""
        self._served.pop(channel, None)

    def send(self, frame: Frame) -> None:
        """Send a frame; nothing happens when the pipe is closed."""
        # asyncio warns for each write to a closed transport.
        if not self._writer.is_closing():
            # No ``drain``, which waits for a frozen peer; ``clogged`` says what to leave.
            self._writer.write(encode_frame(frame))

    async def call(self, channel: int, function: FunctionType, payload: bytes) -> object:
        """Send a call and return its result; ``Mm2pyError``: what the method raised, or what
        ``fail`` was given."""
        if self._failed is not None:
            raise self._failed
        number = next(self._ids)
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._pending[number] = _PendingCall(answer, _codec(function))
        try:
            # The answer cannot come before ``_pending`` has its number: nothing awaits between.
            self.send(Frame(channel, number, function.__name__, payload))
            return await answer
        finally:
            del self._pending[number]

    async def listen(self) -> None:
        """Carry out what the other side calls, until it is gone.

        An async method runs beside the others, any other before the next frame is read.
        ``ProtocolError``: the bytes are no frame, or name a method that is not served.
        """
        while (frame := await self._receive()) is not None:
            self.received += 1
            # A method name is an identifier, so these two cannot be one.
            if frame.name in {ANSWER, FAILURE}:
                self._take_answer(frame)
            else:
                self._take_call(frame)

    def fail(self, error: Mm2pyError) -> None:
        """Let all calls fail that wait, and all later ones: the other side is gone."""
        self._failed = error
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(error)

    def hang_up(self) -> None:
        """End the pipe at once, as the death of this process would."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Write what was posted as far as the other side takes it, and close; safe twice."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            # The other side is gone: nothing is left to close.
            return

    async def _receive(self) -> Frame | None:
        try:
            size = body_size(await self._reader.readexactly(HEADER.size))
            return decode_body(await self._reader.readexactly(size))
        # The end of the peer, also in the middle of a frame.
        except (asyncio.IncompleteReadError, OSError):
            return None

    def _take_answer(self, frame: Frame) -> None:
        pending = self._pending.get(frame.id)
        if pending is None or pending.answer.done():
            return  # the caller waits no more
        if frame.name == FAILURE:
            (failure,) = _load(_FAILURES, frame, "a failure")
            pending.answer.set_exception(cast("Failure", failure).own_error())
        else:
            (value,) = _load(pending.codec.result, frame, "an answer")
            pending.answer.set_result(value)

    def _take_call(self, frame: Frame) -> None:
        served = self._served.get(frame.channel)
        if served is None:
            # The flow was closed while the call was under way.
            self._refuse(frame, FatalError("the flow is not open at the other end of the pipe"))
            return
        if frame.name not in served.methods:
            raise _damaged(f"a call of {frame.name!r}")
        method, codec = served.methods[frame.name]
        values = _load(codec.arguments, frame, f"{frame.name}()")
        arguments = dict(zip(codec.names, values, strict=True))
        with log_scope(served.scope) if served.scope else nullcontext():
            if iscoroutinefunction(method):
                # Beside the reader, or a call could block the answer it waits for.
                work = asyncio.create_task(self._await(frame, codec, method(**arguments)))
                # asyncio keeps only weak references to tasks.
                self._work.add(work)
                work.add_done_callback(self._work.discard)
            elif frame.id:
                with self._refusing(frame):
                    self._answer(frame, codec, method(**arguments))
            else:
                method(**arguments)

    async def _await(
        self, frame: Frame, codec: _MethodTypes, outcome: Coroutine[None, None, object]
    ) -> None:
        with self._refusing(frame):
            self._answer(frame, codec, await outcome)

    @contextmanager
    def _refusing(self, frame: Frame) -> Generator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self._refuse(frame, error)

    def _answer(self, frame: Frame, codec: _MethodTypes, value: object) -> None:
        self.send(Frame(frame.channel, frame.id, ANSWER, _dump(codec.result, (value,))))

    def _refuse(self, frame: Frame, error: Exception) -> None:
        # A post: its sender expects no answer, and ``listen`` raises the error instead.
        if not frame.id:
            return
        if not isinstance(error, Mm2pyError):
            log.error("call failed method=%s", frame.name, exc_info=error)
        self.send(Frame(frame.channel, frame.id, FAILURE, _dump(_FAILURES, (Failure.of(error),))))


@final
class Channel(NamedTuple):
    """One channel of a pipe: the methods of this end and calls of those of the other.

    A call names the method of the class at the other end, which gives its name and types.
    """

    pipe: HostPipe
    number: int

    def serve(self, *methods: Method, scope: str = "") -> None:
        """Let the other side call ``methods``, whose log lines get ``scope``."""
        self.pipe.serve(self.number, methods, scope)

    def close(self) -> None:
        """Serve it no more."""
        self.pipe.withdraw(self.number)

    def post(
        self, method: Callable[Concatenate[Never, _P], None], *args: _P.args, **kwargs: _P.kwargs
    ) -> None:
        """Call a method without an answer; nothing happens when the pipe is closed."""
        function, payload = _packed(method, args, kwargs)
        self.pipe.send(Frame(self.number, 0, function.__name__, payload))

    async def confirm(
        self, method: Callable[Concatenate[Never, _P], None], *args: _P.args, **kwargs: _P.kwargs
    ) -> None:
        """Call a method and wait until it has returned; ``Mm2pyError``: what it raised, or the
        other side is gone."""
        await self.pipe.call(self.number, *_packed(method, args, kwargs))

    async def ask(
        self,
        method: Callable[Concatenate[Never, _P], Coroutine[None, None, _R]],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R:
        """Call an async method and return its result; ``Mm2pyError``: what it raised, or the other
        side is gone."""
        return cast("_R", await self.pipe.call(self.number, *_packed(method, args, kwargs)))


def _packed(
    method: Method, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[FunctionType, bytes]:
    function = _function(method)
    codec = _codec(function)
    # None stands for ``self``.
    bound = codec.signature.bind(None, *args, **kwargs)
    bound.apply_defaults()
    values = tuple(bound.arguments[name] for name in codec.names)
    return function, _dump(codec.arguments, values)
