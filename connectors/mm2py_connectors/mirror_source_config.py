"""Options of MirrorSourceConnector and of its tasks.

Flow: config texts -> ``parse_config`` -> ``mirror_source``, ``mirror_source_task``.
"""

from collections.abc import Mapping
from typing import Annotated

from mm2py.config.client_properties import effective_client_properties
from mm2py.config.definitions import ConfigModel, Option, Problem, to_props
from mm2py.config.framework import LossPolicies
from mm2py.config.java_values import JavaType, parse_list
from mm2py.config.mirror_options import UseDefaultsFrom
from mm2py_connectors.mirror_connector_config import (
    MetricNamesFormats,
    OffsetSyncsLocation,
    replicas,
    switch,
)
from mm2py_connectors.mirror_topics_config import (
    HeartbeatsReplication,
    MirrorTopicsConfig,
    StartRules,
    start_problems,
)

_INT, _LONG, _STRING, _LIST = JavaType.INT, JavaType.LONG, JavaType.STRING, JavaType.LIST


class FlowRate(ConfigModel):
    """How much a flow reads; its connector has the whole, each of its tasks and lanes a part."""

    flow_max_bytes_per_second: Annotated[int, Option(
        _LONG,
        "Most bytes per second that the flow reads; its tasks get equal parts. 0 is no limit.",
        low=0, unit="bytes/s", ours=True, java_default="no limit", importance="MEDIUM",
    )] = 0  # fmt: skip

    @staticmethod
    def parts(limit: int, number: int) -> dict[str, str]:
        """Return the property of each of ``number`` tasks or lanes, none without a limit."""
        if not limit or not number:
            return {}
        return to_props(FlowRate, flow_max_bytes_per_second=max(1, limit // number))


class MirrorSourceConfig(LossPolicies, FlowRate, MirrorTopicsConfig):
    """Options of MirrorSourceConnector (``MirrorSourceConfig``)."""

    offset_syncs_topic_replication_factor: Annotated[int, replicas("the offset-syncs topic")] = 3
    offset_lag_max: Annotated[
        int, Option(_LONG, "Records between two offset syncs.", low=0, unit="records")
    ] = 100
    offset_syncs_topic_location: OffsetSyncsLocation = "source"
    emit_offset_syncs_enabled: Annotated[bool, switch("Write offset syncs.")] = True
    heartbeats_replication_enabled: HeartbeatsReplication = True
    metric_names_formats: MetricNamesFormats = ("legacy",)
    use_defaults_from: UseDefaultsFrom = "target"
    flow_engine: Annotated[str, Option(
        JavaType.STRING,
        "What copies the records: worker is the flow's own tasks, spark is mm2py stream, "
        "which is started beside the "
        "workers. While no stream runs, the tasks copy and the flow is DEGRADED.",
        choices=("worker", "spark"), ours=True, java_default="worker", importance="MEDIUM",
    )] = "worker"  # fmt: skip
    start_positions: StartRules = ()
    loop_suppression: Annotated[str, Option(
        JavaType.STRING,
        "Which batches are not copied because a mirror wrote them to the source: on, those of "
        "this flow's target; all, those of any mirror; off, none; auto, as on where the policy "
        "or a RegexRouter keeps names, else off.",
        choices=("auto", "on", "all", "off"), ours=True, java_default="off", importance="MEDIUM",
    )] = "auto"  # fmt: skip

    @classmethod
    def cross_check(cls, props: Mapping[str, str]) -> list[Problem]:
        """``MirrorSourceConnector.validate``: exactly-once and offset-sync combinations; and what
        goes with transforms, or without them."""
        problems = start_problems(props)
        problems += _of_transforms(props)
        required = props.get("exactly.once.support", "").strip().lower() == "required"
        consumer = effective_client_properties(props, "source", "consumer")
        if required and consumer.get("isolation.level") != "read_committed":
            problems.append(
                Problem(
                    "exactly.once.support",
                    "required",
                    "needs a source consumer with isolation.level=read_committed",
                    "set <source alias>.consumer.isolation.level=read_committed",
                )
            )
        if props.get("emit.offset-syncs.enabled") == "false":
            syncs = [k for k in props if k.startswith(("offset-syncs-", "offset-syncs.topic."))]
            if syncs:
                problems.append(
                    Problem(
                        "emit.offset-syncs.enabled",
                        "false",
                        f"contradicts {', '.join(sorted(syncs))}",
                        "remove either",
                    )
                )
        return problems


def _of_transforms(props: Mapping[str, str]) -> list[Problem]:
    """Return what a flow with transforms cannot have, and what one without them cannot."""

    def problem(name: str, message: str, remedy: str) -> Problem:
        return Problem(name, props.get(name), message, remedy)

    if not parse_list(props.get("transforms", "")):
        if props.get("errors.tolerance", "").strip().lower() != "all":
            return []
        return [
            problem(
                "errors.tolerance",
                "drops no record here: what the target refuses stops its partition alone, with a"
                " cause, and nothing behind it is lost",
                "remove it, and cure the cause that the partition shows",
            )
        ]
    problems: list[Problem] = []
    if props.get("offsets.identical", "").strip().lower() == "require":
        problems.append(
            problem(
                "offsets.identical",
                "is not possible with transforms: a record that one drops leaves no offset on "
                "the target",
                "set offsets.identical=prefer, which translates every offset, or remove transforms",
            )
        )
    if props.get("flow.engine", "").strip().lower() == "spark":
        problems.append(
            problem(
                "flow.engine",
                "is not possible with transforms: a stream on Spark moves whole batches, its "
                "records would arrive as they are",
                "set flow.engine=worker, or remove transforms",
            )
        )
    return problems


class MirrorSourceTaskConfig(MirrorSourceConfig):
    """Options of one MirrorSource task: the connector's and the part that is its own."""

    task_index: Annotated[int | None, Option(_INT, "Number of the task.", low=0)] = None
    task_assigned_partitions: Annotated[
        tuple[str, ...], Option(_LIST, "Source partitions as topic-partition.", importance="HIGH")
    ]
    task_source_cluster_id: Annotated[
        str,
        Option(JavaType.STRING, "Kafka's id of the source, where loops are suppressed.", ours=True),
    ] = ""
    task_target_cluster_id: Annotated[
        str,
        Option(JavaType.STRING, "Kafka's id of the target, where loops are suppressed.", ours=True),
    ] = ""
    task_end_offsets: Annotated[tuple[str, ...], Option(
        _LIST,
        "topic-partition:offset of partitions that a backfill copies: nothing is read at and "
        "behind that offset but the rest of its batch.",
        ours=True,
    )] = ()  # fmt: skip
    task_late_partitions: Annotated[tuple[str, ...], Option(
        _LIST,
        "Those of the assigned partitions that were found after the first start of the flow: "
        "they begin at the earliest offset where they were to begin at latest.",
        ours=True,
    )] = ()  # fmt: skip
    task_first_ends: Annotated[tuple[str, ...], Option(
        _LIST,
        "topic-partition:offset of partitions that waited for their copy when the flow first "
        "started: the end of their logs then, where they begin if they are to begin at latest.",
        ours=True,
    )] = ()  # fmt: skip
    task_first_start_ms: Annotated[int, Option(
        JavaType.LONG,
        "When the flow first started with an age in start.positions, ms since the epoch: ages "
        "are counted from it. -1: from the start of the task.",
        ours=True,
    )] = -1  # fmt: skip
