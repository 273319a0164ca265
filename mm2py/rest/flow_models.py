"""Bodies of ``/flows`` beside the views, for validation and the OpenAPI document.

Flow: JSON object -> model -> plain values. Unknown members are refused.
"""

from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mm2py.flows.changes import SOURCE, Patches
from mm2py.runtime.herder.errors import HerderError

__all__ = ["ErrorBody", "FlowCreation", "FlowPatch", "NewFlow", "flow_creation", "flow_patch"]

UNPROCESSABLE = 422

_Properties = dict[Annotated[str, Field(min_length=1)], str | None]


class ErrorBody(BaseModel):
    """Why a request failed; ``error_code`` is the HTTP status."""

    error_code: int
    message: str


class FlowPatch(BaseModel):
    """Properties to change; every value is a text, as in the file, and null removes one."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"config": {"topics": "orders.*", "topics.exclude": "orders.test"}},
                {"connectors": {"MirrorHeartbeatConnector": {"emit.heartbeats.enabled": "false"}}},
            ]
        },
    )

    config: _Properties = Field(
        default_factory=dict[str, str | None],
        description="properties of MirrorSourceConnector: topics, topics.exclude, tasks.max, ...",
    )
    connectors: dict[Annotated[str, Field(min_length=1)], _Properties] = Field(
        default_factory=dict[str, _Properties], description="properties by connector"
    )


_Alias = Annotated[str, Field(min_length=1, max_length=255)]


class FlowCreation(FlowPatch):
    """A flow between two clusters of the properties file, and what is not as the file says."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"source": "A", "target": "B", "config": {"topics": "orders.*"}}]
        },
    )

    source: _Alias = Field(description="alias of the cluster to copy from")
    target: _Alias = Field(description="alias of the cluster to copy to")


@dataclass(frozen=True, slots=True)
class NewFlow:
    """What ``POST /flows`` asks for."""

    source: str
    target: str
    patches: Patches


def flow_patch(value: object) -> Patches:
    """Return what a body asks for.

    Raises:
        HerderError: 422, the body is no ``FlowPatch``.
    """
    patches = _patches(_read(FlowPatch, value))
    if not any(patches.values()):
        raise HerderError("body: nothing is to be changed", status=UNPROCESSABLE)
    return patches


def flow_creation(value: object) -> NewFlow:
    """Return what a body asks for.

    Raises:
        HerderError: 422, the body is no ``FlowCreation``.
    """
    found = _read(FlowCreation, value)
    return NewFlow(found.source, found.target, _patches(found))


_Body = TypeVar("_Body", bound=BaseModel)


def _read(model: type[_Body], value: object) -> _Body:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = [
            f"{'.'.join(('body', *(str(part) for part in item['loc'])))}: {item['msg']}"
            for item in error.errors(include_input=False, include_url=False)
        ]
        raise HerderError("; ".join(problems), status=UNPROCESSABLE) from None


def _patches(found: FlowPatch) -> Patches:
    patches = dict(found.connectors)
    if found.config:
        patches[SOURCE] = patches.get(SOURCE, {}) | found.config
    return patches
