"""What arrives as a body or a query: JSON, config maps with their scalars as written, flags.

Flow: request -> plain values, or ``BadRequestError`` that names what does not fit. Where Java
answers 500 to an undecodable body this answers 400; no client depends on the 500.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Final, NoReturn, cast

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import Request

from mm2py.rest.answers import UNPROCESSABLE
from mm2py.runtime.errors import BadRequestError, HerderError
from mm2py.runtime.herder.api import JsonScalar, OffsetEntry
from mm2py.runtime.herder.offset_editing import NOTHING_GIVEN

JSON: Final = "application/json"
SHOWN_CHARS: Final = 200
FORWARD: Final = "forward"
"""Query parameter of requests that workers send on to each other."""
NO_BODY: Final = (b"", b"{}")


class MediaTypeError(HerderError):
    """The request declares or accepts something else than JSON (415, 406)."""


class _Number(str):
    """A JSON number as it was written, so that ``1.50`` stays ``1.50``."""

    __slots__ = ()


class _DuplicateKeyError(ValueError):
    """An object has one key twice: which of both is meant is not known."""


def _constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # `json`, as Jackson, would keep the last one silently.
    members = dict(pairs)
    if len(members) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise _DuplicateKeyError(f"key {twice[:SHOWN_CHARS]!r} is there twice")
    return members


async def read_json(request: Request, *, numbers_as_written: bool = True) -> object:
    """Return the body's value; numbers are texts by default. ``BadRequestError``: no body, not
    JSON, or an object that has a key twice."""
    body = await request.body()
    if not body.strip():
        raise BadRequestError("Request body is empty, a JSON value is needed")
    try:
        value: object = (
            json.loads(
                body,
                parse_int=_Number,
                parse_float=_Number,
                parse_constant=_constant,
                object_pairs_hook=_object,
            )
            if numbers_as_written
            else json.loads(body, parse_constant=_constant, object_pairs_hook=_object)
        )
        # Half a surrogate pair is JSON, but no text that can be stored.
        json.dumps(value, ensure_ascii=False).encode()
    # Deep nesting exhausts the parser's recursion.
    except (ValueError, RecursionError) as error:
        known = isinstance(error, json.JSONDecodeError | _DuplicateKeyError)
        reason = str(error) if known else "not UTF-8 JSON"
        raise BadRequestError(f"Cannot read the request body as JSON: {reason}") from None
    return value


def json_object(value: object, what: str) -> Mapping[str, object]:
    """Return a JSON object; ``BadRequestError`` for another type."""
    if not isinstance(value, dict):
        raise BadRequestError(f"Cannot deserialize value of {what} from {_kind(value)}")
    return cast("Mapping[str, object]", value)


def text_of(value: object, what: str) -> str | None:
    """Return a scalar as Jackson coerces it to a text; null stays None."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return str(value)
    raise BadRequestError(
        f"Cannot deserialize value of type `String` for {what} from {_kind(value)}"
    )


def config_map(value: object) -> dict[str, str | None]:
    """Return a config, its scalars as texts."""
    items = json_object(value, "a config map").items()
    return {key: text_of(item, f"key {key}") for key, item in items}


def refuse_dry_run(request: Request) -> None:
    """Refuse a change in Connect's dialect that asks for a dry run: Connect has none and would
    change. ``BadRequestError``: any spelling of ``dry_run`` is in the query."""
    words = {re.sub("[^a-z]", "", key.lower()) for key in request.query_params}
    if request.method != "GET" and "dryrun" in words:
        raise BadRequestError(
            "Kafka Connect's API has no dry run; use /connector-plugins/{plugin}/config/validate, "
            "or /flows?dry_run=true where this worker runs a mirror maker file"
        )


async def refuse_unknown(request: Request) -> None:
    """Refuse what a route of ``/flows`` does not take: unknown or repeated query parameters, a
    body.

    A misspelt ``dry_run`` or ``topic`` must not change more than was meant. ``HerderError``: 422.
    """
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = set(_query_names(route.dependant))
    given = [key for key, _ in request.query_params.multi_items()]
    for key in given:
        if key not in known and key != FORWARD:
            near = get_close_matches(key, known, n=1, cutoff=0.5)
            hint = (
                f"did you mean {near[0]}?"
                if near
                else f"known: {', '.join(sorted(known)) or 'none'}"
            )
            raise HerderError(f"query.{key}: unknown parameter; {hint}", status=UNPROCESSABLE)
        if given.count(key) > 1:
            raise HerderError(f"query.{key}: given more than once", status=UNPROCESSABLE)
    takes_body = "requestBody" in (route.openapi_extra or {})
    if request.method != "GET" and not takes_body and (await request.body()).strip() not in NO_BODY:
        raise HerderError("body: this request takes none", status=UNPROCESSABLE)


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (param.alias for param in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)


def offset_entries(value: object) -> list[OffsetEntry]:
    """Return the entries of an alter offsets request."""
    body = json_object(value, "an alter offsets request")
    for key in body:
        if key != "offsets":
            raise BadRequestError(f'Unrecognized field "{key}", only "offsets" is known')
    offsets = body.get("offsets")
    if offsets is None or offsets == []:
        raise BadRequestError(NOTHING_GIVEN)
    if not isinstance(offsets, list):
        raise BadRequestError(f"Cannot deserialize value of `offsets` from {_kind(offsets)}")
    return [_offset_entry(item) for item in cast("list[object]", offsets)]


def _offset_entry(item: object) -> OffsetEntry:
    entry = json_object(item, "an offset entry")
    for key in entry:
        if key not in {"partition", "offset"}:
            raise BadRequestError(f'Unrecognized field "{key}" of an offset entry')
    return OffsetEntry(_scalars(entry, "partition"), _scalars(entry, "offset"))


def _scalars(entry: Mapping[str, object], member: str) -> Mapping[str, JsonScalar] | None:
    value = entry.get(member)
    if value is None:
        return None
    scalars: dict[str, JsonScalar] = {}
    for key, item in json_object(value, f"`{member}`").items():
        if item is not None and not isinstance(item, str | int | float | bool):
            kind = "MAP" if isinstance(item, dict) else "ARRAY"
            # The text is Java's (OffsetUtils.validateFormat), whose status is 500.
            raise BadRequestError(
                "Offsets may only contain primitive types as values, but field"
                f" {key} contains {kind}"
            )
        # Java's converter has no whole numbers of more than 64 bits, and would answer 500.
        is_huge = isinstance(item, int) and not -(1 << 63) <= item < 1 << 63
        if is_huge or (isinstance(item, float) and not math.isfinite(item)):
            raise BadRequestError(f"Field {key} of `{member}` holds a number that is too large")
        scalars[key] = item
    return scalars


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "Object value"
    if isinstance(value, list):
        return "Array value"
    return "null" if value is None else "a scalar"


async def check_media_types(request: Request) -> None:
    """Refuse a Content-Type or Accept header other than JSON, whether a body is read or not.
    ``MediaTypeError``: 415 or 406."""
    declared = request.headers.get("content-type")
    if request.method != "GET":
        wrong = declared is not None and _media_type(declared) != JSON
        if wrong or (declared is None and await request.body()):
            raise MediaTypeError("HTTP 415 Unsupported Media Type", status=415)
    # Several headers are one list (RFC 9110).
    accept = ",".join(request.headers.getlist("accept"))
    if accept.strip() and not any(_takes_json(item) for item in accept.split(",")):
        raise MediaTypeError("HTTP 406 Not Acceptable", status=406)


def _media_type(header: str) -> str:
    return header.split(";", 1)[0].strip().lower()


def _takes_json(item: str) -> bool:
    if _media_type(item) not in {JSON, "application/*", "*/*", "*"}:
        return False
    # `q=0` means: not acceptable.
    weights = [part.strip() for part in item.lower().split(";")[1:]]
    return not any(part.startswith("q=") and not part[2:].strip("0.") for part in weights)
