"""What Connect checks of sink connectors alone: topics and the group's name (kcr 1.11, 5.4).

Flow: ``ConfigValidator`` -> ``topic_problems``, ``group_problem``; texts are Connect's.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from mm2py.config.client_properties import with_prefix
from mm2py.config.java_regex import PatternList
from mm2py.config.java_values import parse_list, rendered
from mm2py.errors import ConfigError

_Texts = Mapping[str, str]

_TOPICS: Final = "topics"
_REGEX: Final = "topics.regex"
_DEAD: Final = "errors.deadletterqueue.topic.name"
_OVERRIDE: Final = "consumer.override."


def topic_problems(texts: _Texts) -> Iterator[tuple[str, str]]:
    """Return what is wrong with the topics of a sink (``SinkConnectorConfig.validate``), by key."""
    named, regex = parse_list(texts.get(_TOPICS, "")), texts.get(_REGEX, "").strip()
    problem = ""
    if named and regex:
        problem = f"{_TOPICS} and {_REGEX} are mutually exclusive options, but both are set."
    elif not named and not regex:
        problem = f"Must configure one of {_TOPICS} or {_REGEX}"
    if problem:
        yield from ((_TOPICS, problem), (_REGEX, problem))
        return
    dead = texts.get(_DEAD, "").strip()
    if dead and dead in named:
        yield (
            _TOPICS,
            f"The DLQ topic '{dead}' may not be included in the list of topics ('{_TOPICS}={rendered(named)}') consumed by the"
            " connector",
        )
    elif dead and regex and _matches(regex, dead):
        yield (
            _REGEX,
            f"The DLQ topic '{dead}' may not be matched by the regex for the topics ('{_REGEX}={regex}') consumed by the"
            " connector",
        )


def _matches(regex: str, topic: str) -> bool:
    try:
        return PatternList((regex,)).matches(topic)
    except ConfigError:
        return False  # a finding of its own


def group_problem(texts: _Texts, worker: _Texts) -> tuple[str, str] | None:
    """Return the key and the text where a sink's consumer group is the workers' own, None where it is not."""
    workers = worker.get("group.id", "")
    given = with_prefix(texts, _OVERRIDE).get("group.id")
    if given is not None and given == workers:
        return (
            f"{_OVERRIDE}group.id",
            f"Consumer group {given} conflicts with Connect worker group {workers}",
        )
    name = texts.get("name", "")
    if given is None and f"connect-{name}" == workers:
        return (
            "name",
            f"Consumer group for sink connector named {name} conflicts with Connect worker group {workers}",
        )
    return None
