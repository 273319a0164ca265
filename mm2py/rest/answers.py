"""Responses: JSON as Connect writes it, nothing at all, and errors in their one shape.

``{"error_code": n, "message": text}``, the code equal to the status. No charset in the
Content-Type.
"""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from starlette.responses import Response

UNPROCESSABLE: Final = 422


def json_response(
    body: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return ``body`` as compact UTF-8 JSON."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Response(
        text.encode("utf-8", "replace"),
        status_code=status,
        headers=headers,
        media_type="application/json",
    )


def empty(status: int) -> Response:
    """Return an answer without a body."""
    return Response(status_code=status)


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a refusal."""
    return json_response({"error_code": status, "message": message}, status, headers)


def framework_text(status: int) -> str:
    """Return the text of Connect's HTTP framework for a status (``HTTP 404 Not Found``)."""
    return f"HTTP {status} {HTTPStatus(status).phrase}"
