"""A synchronous client of the REST API whose every failure is one line with its remedy.

Flow: ``Access`` -> httpx -> status and JSON -> value, or an error of the tree. Never follows a
redirect, never repeats a request, never puts a credential into a message. Reads answers into the
models that are asked for.
"""

import asyncio
import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Self, TypeVar, cast, final
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from mm2py.errors import (
    AuthenticationError,
    ConfigError,
    ConnectionFailedError,
    FatalError,
    Mm2pyError,
    ProtocolError,
    RequestTimedOutError,
    RetriableError,
    UsageError,
)
from mm2py.flows.view_models import ChangeResult, View
from mm2py_workers.answers import Row

CONNECT_S: Final = 5.0
_MAYBE_MADE: Final = "the change may have been made"
_LOOK: Final = "look with mm2py flow history"
_FORWARDED: Final = "IO Error trying to forward"
"""Connect's words for a worker that does not reach the one that has to answer."""
_NOT_OURS: Final = "is --url the address of a worker of connect-mirror-maker-py?"

_REFUSALS: Final[dict[int, tuple[type[Mm2pyError], str, str]]] = {
    HTTPStatus.FORBIDDEN: (AuthenticationError, "not allowed", ""),
    HTTPStatus.NOT_FOUND: (FatalError, "not found", ""),
    HTTPStatus.CONFLICT: (RetriableError, "not now", ""),
    HTTPStatus.SERVICE_UNAVAILABLE: (RetriableError, "not ready", "try again in a moment"),
}
"""Class, words and remedy of a status; the message has the rest."""

Query = Mapping[str, str | int | bool | None]
ViewT = TypeVar("ViewT", bound=View)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """PEM files: authorities that are trusted (None: the system's), own certificate and its key."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


@final
class RestClient:
    """Asks one worker; a context manager."""

    def __init__(
        self,
        url: str,
        *,
        login: tuple[str, str] | None,
        token: str | None,
        certificates: Certificates,
        timeout_s: float,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Read certificates; connects at the first request. ``ConfigError``: a credential or
        certificate cannot be used."""
        self._url = url
        self._signed_in = login is not None or token is not None
        try:
            address = httpx.URL(self._url)
        except httpx.InvalidURL as error:
            raise UsageError(f"--url {self._url!r} is not an address: {error}") from None
        self._secure = address.scheme == "https"
        if not self._secure and (certificates.ca_file or certificates.cert_file):
            raise ConfigError(
                f"--ca-file and --cert mean nothing for {self._url}", remedy="use https://"
            )
        headers = {"Accept": "application/json"}
        if token is not None:
            if not token.isascii() or " " in token:
                raise ConfigError("the bearer token holds characters that no token has")
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            auth=None if login is None else httpx.BasicAuth(*login),
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
            verify=_context(certificates)
            if self._secure
            else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            # A proxy cannot reach this machine's own loopback address.
            trust_env=not _is_loopback(address.host),
            transport=transport,
        )

    def rows(self, path: str, query: Query | None = None) -> list[Row]:
        """GET a list of objects; ``Mm2pyError``: there is no such answer; one line has the
        reason."""
        answer = self._ask("GET", path, query)
        if isinstance(answer, list):
            rows = cast("list[object]", answer)
            if all(isinstance(row, dict) for row in rows):
                return cast("list[Row]", rows)
        raise self._not_ours(f"the answer to {path} is not a list of objects")

    def views(self, view: type[ViewT], path: str, query: Query | None = None) -> list[ViewT]:
        """GET a list of objects as models; errors as of ``rows``."""
        return [self._view(view, path, row) for row in self.rows(path, query)]

    def view(self, view: type[ViewT], path: str, query: Query | None = None) -> ViewT:
        """GET one object as a model; errors as of ``rows``."""
        return self._view(view, path, self._object(path, self._ask("GET", path, query)))

    def _view(self, view: type[ViewT], path: str, row: Row) -> ViewT:
        try:
            return view.model_validate(row)
        except ValidationError as error:
            where = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
            raise self._not_ours(f"the answer to {path} is no {view.__name__}: {where}") from None

    def change_flow(
        self, method: str, path: str, query: Query | None = None, body: object = None
    ) -> ChangeResult:
        """Send a change of a flow and return what it did; errors as of ``change``."""
        return self._view(ChangeResult, path, self.change(method, path, query, body))

    def change(
        self, method: str, path: str, query: Query | None = None, body: object = None
    ) -> Row:
        """Send a change and return what it did; sent once. ``Mm2pyError``: it was refused, or its
        outcome is not known; one line names it."""
        return self._object(path, self._ask(method, path, query, body))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def _object(self, path: str, answer: object) -> Row:
        if isinstance(answer, dict):
            return cast("Row", answer)
        raise self._not_ours(f"the answer to {path} is not an object")

    def _ask(self, method: str, path: str, query: Query | None, body: object = None) -> object:
        texts = {
            key: json.dumps(it) if isinstance(it, bool) else str(it)
            for key, it in (query or {}).items()
            if it is not None
        }
        try:
            answer = self._http.request(
                method, self._url + path, params=texts, json=body if body is not None else None
            )
        except httpx.TimeoutException as error:
            raise self._late(method, error) from error
        except httpx.HTTPError as error:
            raise self._unreached(method, error) from error
        return self._read(answer)

    def _read(self, answer: httpx.Response) -> object:
        try:
            document: object = json.loads(answer.content)
        except ValueError:
            document = None
        if answer.is_success and document is not None:
            return document
        status = answer.status_code
        if answer.is_success:
            kind = answer.headers.get("content-type", "").split(";")[0] or "no content type"
            raise self._not_ours(f"the answer is not JSON ({kind})")
        if answer.has_redirect_location:
            raise ConfigError(
                f"{self._url} sends us to {_without_secrets(answer.headers['location'])}",
                remedy="give that address with --url if you trust it",
            )
        message = cast("Row", document).get("message") if isinstance(document, dict) else None
        if status not in (401, 403) and not isinstance(message, str):
            mute = self._not_ours(f"it answers {_phrase(status)} without saying why")
            # A proxy, say, whose worker is about to start.
            is_failure = status >= HTTPStatus.INTERNAL_SERVER_ERROR
            raise RetriableError(mute.message, remedy=mute.remedy) if is_failure else mute
        raise self._refusal(status, message if isinstance(message, str) else _phrase(status))

    def _refusal(self, status: int, message: str) -> Mm2pyError:
        if status == HTTPStatus.UNAUTHORIZED:
            return self._stranger()
        # Connect's words for a path that it does not have at all.
        if status == HTTPStatus.NOT_FOUND and message.startswith("HTTP 404"):
            return self._not_ours("there is no such path (404)")
        kind, words, remedy = _REFUSALS.get(
            status,
            (RetriableError, "the worker failed", "read its log")
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR
            else (ConfigError, "refused", ""),
        )
        if message.startswith(_FORWARDED):
            remedy = "ask another worker (--url), or open the port of their internal.listener"
        return kind(f"{words} ({status}): {message}", remedy=remedy)

    def _stranger(self) -> AuthenticationError:
        if self._signed_in:
            return AuthenticationError(
                f"{self._url} refuses these credentials (401)",
                remedy="check --user, the password or the token",
            )
        return AuthenticationError(
            f"{self._url} wants to know who you are (401)",
            remedy="use --user and --password-file, or --token-file",
        )

    def _not_ours(self, what: str) -> ProtocolError:
        return ProtocolError(f"{self._url}: {what}", remedy=_NOT_OURS)

    def _late(self, method: str, error: httpx.TimeoutException) -> RequestTimedOutError:
        if isinstance(error, httpx.ConnectTimeout):
            return RequestTimedOutError(
                f"{self._url} cannot be reached in time", remedy="check address and firewall"
            )
        text = f"{self._url} did not answer in time"
        if method == "GET":
            return RequestTimedOutError(text, remedy="try again, or use a longer --timeout")
        return RequestTimedOutError(f"{text}: {_MAYBE_MADE}", remedy=_LOOK)

    def _unreached(self, method: str, error: httpx.HTTPError) -> Mm2pyError:
        """Return the error of a request that got no answer: the reason is below httpx's own."""
        for cause in _causes(error):
            worker = self._known(cause)
            if worker is not None:
                return worker
        closed = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)
        if closed and method != "GET":
            return ConnectionFailedError(
                f"{self._url} closed the connection before its answer: {_MAYBE_MADE}", remedy=_LOOK
            )
        if closed and not self._secure:
            return ConnectionFailedError(
                f"{self._url} closed the connection without an answer in HTTP",
                remedy="use https:// if that port speaks TLS",
            )
        return ConnectionFailedError(f"{self._url} cannot be asked: {error}")

    def _known(self, cause: BaseException) -> Mm2pyError | None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return AuthenticationError(
                f"the certificate of {self._url} is not trusted: {cause.verify_message}",
                remedy="give who signed it with --ca-file, and use a name that it is made for",
            )
        if isinstance(cause, ssl.SSLError):
            return self._tls_failure(cause.reason or "")
        if isinstance(cause, ConnectionRefusedError):
            return ConnectionFailedError(
                f"nothing listens at {self._url}",
                remedy="start a worker, or give its address with --url or MM2PY_URL"
                " (a worker logs it as 'rest listens public=')",
            )
        if isinstance(cause, socket.gaierror):
            return ConnectionFailedError(
                f"no address is known for the host of {self._url}", remedy="check --url"
            )
        return None

    def _tls_failure(self, reason: str) -> Mm2pyError:
        if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return ConnectionFailedError(
                f"{self._url} does not speak TLS on this port",
                remedy=f"use http://{urlsplit(self._url).netloc} or the TLS port",
            )
        if "CERTIFICATE" in reason or "BAD_CERT" in reason:
            return AuthenticationError(
                f"{self._url} wants a certificate of ours that it trusts ({reason})",
                remedy="use --cert and --key",
            )
        return ConnectionFailedError(f"TLS with {self._url} failed: {reason or 'no reason given'}")


def _context(files: Certificates) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
    except OSError as error:
        raise ConfigError(f"--ca-file {files.ca_file} cannot be used: {_reason(error)}") from None
    # Python 3.13 refuses authorities without a key identifier, which Java and curl take.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if files.cert_file is None:
        if files.key_file is not None:
            raise ConfigError("--key was given without --cert")
        return context
    try:
        # Without a password OpenSSL would ask the terminal itself.
        context.load_cert_chain(
            files.cert_file, files.key_file, os.environ.get("MM2PY_KEY_PASSWORD", "")
        )
    except OSError as error:
        raise ConfigError(
            f"--cert {files.cert_file} with --key {files.key_file or 'in the same file'}"
            f" cannot be used: {_reason(error)}",
            remedy="an encrypted key needs its password in MM2PY_KEY_PASSWORD",
        ) from None
    return context


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not PEM, or a wrong password"
    return error.strerror or "not PEM"


def _causes(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return (
        f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.netloc else url
    )


def _phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


@final
class RemoteApi:
    """Asks a worker over the network, from a thread, one request at a time."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest
        self._turn = asyncio.Lock()

    async def rows(self, path: str) -> Sequence[Row]:
        async with self._turn:
            return await asyncio.to_thread(self._rest.rows, path)

    async def post(self, path: str, body: object = None, *, dry_run: bool = False) -> None:
        query = {"dry_run": True} if dry_run else None
        async with self._turn:
            await asyncio.to_thread(self._rest.change, "POST", path, query, body)
