"""Request bodies of ``/flows`` and ``/backfills``, for validation and the OpenAPI document.

Flow: JSON object -> model -> plain values. Unknown members are refused.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from mm2py.config.java_regex import PatternList
from mm2py.errors import Mm2pyError
from mm2py.flows.edits import Patches
from mm2py.flows.patch_rules import FLOW
from mm2py.mirror.backfills import Order
from mm2py.mirror.start_positions import parse_boundary
from mm2py.rest.answers import UNPROCESSABLE
from mm2py.rest.refusals import refusal_text
from mm2py.runtime.errors import HerderError

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
        description="properties of the flow, each for the connectors that read it: topics, groups, "
        "...; of those that all connectors have, MirrorSourceConnector's",
    )
    connectors: dict[Annotated[str, Field(min_length=1)], _Properties] = Field(
        default_factory=dict[str, _Properties], description="properties by connector"
    )

    def patches(self) -> Patches:
        """Return the properties by connector, those of the flow under ``FLOW``."""
        return self.connectors | ({FLOW: self.config} if self.config else {})


_Alias = Annotated[str, Field(min_length=1, max_length=255)]


class FlowCreation(FlowPatch):
    """A flow between two clusters of the properties file, and its properties that differ from the
    file."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"source": "A", "target": "B", "config": {"topics": "orders.*"}}]
        },
    )

    source: _Alias = Field(description="alias of the cluster to copy from")
    target: _Alias = Field(description="alias of the cluster to copy to")


@contextmanager
def _as_value_error() -> Generator[None]:
    """Let pydantic name the member that one of our errors is about."""
    try:
        yield
    except Mm2pyError as error:
        raise ValueError(str(error)) from None


class BackfillRequest(BaseModel):
    """A backfill to plan; everything but the flow as the options of ``mm2py backfill plan``."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"flow": "A->B", "topics": "orders.*", "rate_limit": 50_000_000}]
        },
    )

    flow: Annotated[str, Field(min_length=1, max_length=600)] = Field(
        description="the flow, `A->B`", examples=["A->B"]
    )
    topics: Annotated[str, Field(max_length=65_536)] = Field(
        default="",
        description="source topics: names and Java patterns, comma-separated; empty: all topics "
        "of the flow",
    )
    start: Annotated[str, Field(max_length=100)] = Field(
        default="earliest",
        alias="from",
        description="`earliest`, a timestamp (ISO 8601, or ms since the epoch), `24 hours ago` "
        "or `offset:N`; where nothing is copied yet",
    )
    end: Annotated[str, Field(max_length=100)] = Field(
        default="now", alias="to", description="`now`, a timestamp or `offset:N` (exclusive)"
    )
    rate_limit: Annotated[int, Field(strict=True, ge=0, le=(1 << 53) - 1)] = Field(
        default=0, description="bytes per second of all lanes together; 0: the flow's own limit"
    )
    master: Annotated[str, Field(max_length=1_000)] = Field(
        default="",
        description="Spark master: `local[N]`, or one of `rest.spark.masters`; empty: all cores "
        "of the leader's machine",
    )

    wait_executors_s: Annotated[int, Field(strict=True, ge=0, le=(1 << 31) - 1)] = Field(
        default=0,
        description="seconds after which a run ends that the Spark cluster gives no executor; 0: "
        "120",
    )
    lanes: Annotated[int, Field(strict=True, ge=0, le=10_000)] = Field(
        default=0,
        description="into how many tasks of Spark the work is divided at most; 0: by its size",
    )
    max_lanes_per_broker: Annotated[int, Field(strict=True, ge=0, le=10_000)] = Field(
        default=0,
        description="how many lanes at a time read from or write to one broker at most; 0: any",
    )
    accept_expiry: Annotated[bool, Field(strict=True)] = Field(
        default=False,
        description="also copy what the target deletes when the copy is done, as it keeps "
        "records for a shorter time",
    )
    skip_refused: Annotated[bool, Field(strict=True)] = Field(
        default=False, description="copy the partitions that no check refuses, and name the others"
    )

    @field_validator("topics")
    @classmethod
    def _is_pattern(cls, text: str) -> str:
        with _as_value_error():
            PatternList.of(text)
        return text

    @field_validator("start", "end")
    @classmethod
    def _is_boundary(cls, text: str, info: ValidationInfo) -> str:
        name, edge = ("from", "earliest") if info.field_name == "start" else ("to", "now")
        with _as_value_error():
            parse_boundary(text, name, edge)
        return text

    def order(self, by: str) -> Order:
        """Return what is asked for; its id is given later."""
        return Order(id="", by=by, **self.model_dump(exclude={"flow"}))


def body_schema(model: type[BaseModel]) -> dict[str, object]:
    """Return the part of an operation's description that is about its body."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


_Body = TypeVar("_Body", bound=BaseModel)


def parsed_body(model: type[_Body], value: object) -> _Body:
    """Return what a body asks for; ``HerderError`` (422): it does not fit the model."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        text = refusal_text(error.errors(include_url=False), "body")
        raise HerderError(text, status=UNPROCESSABLE) from None
