"""What a copy would refuse, or lose, of what its source topic takes and keeps; the doctor and a
failover's plan ask it."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_NO_LIMIT: Final = -1
_ANY_TIME: Final = 2**63 - 1
_TIMES: Final = (
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",
)


class Limit(NamedTuple):
    """One config of a copy that is narrower than its source's; ``remedy`` is for ``--add-config``,
    ``loses``: records that were copied go."""

    key: str
    text: str
    remedy: str
    loses: bool = False


def limits_of(ours: Mapping[str, str], theirs: Mapping[str, str]) -> Iterator[Limit]:
    """Compare the configs of a source topic and its copy, defaults included; what is not known is
    no limit."""
    key = "max.message.bytes"
    most, accepted = number_of(ours, key), number_of(theirs, key)
    if most is not None and accepted is not None and accepted < most:
        text = (
            f"takes {accepted} bytes in a batch, its source {most}: a larger record fails its "
            "partition"
        )
        yield Limit(key, text, f"{key}={most}")
    # Nothing ages out of a log that is compacted alone; a source like that is named below.
    ages = all("delete" in it.get("cleanup.policy", "delete") for it in (ours, theirs))
    for key, what in (("retention.ms", "ms"), ("retention.bytes", "bytes")):
        kept, held = number_of(ours, key), number_of(theirs, key)
        if ages and kept is not None and held is not None and is_shorter(held, kept):
            longer = "ever" if kept == _NO_LIMIT else f"{kept} {what}"
            text = (
                f"keeps records for {held} {what}, its source for {longer}: a copy of older "
                "records is deleted at once"
            )
            yield Limit(key, text, f"{key}={kept}")
    key = "cleanup.policy"
    policy, copied = ours.get(key, ""), theirs.get(key, "")
    if policy and "compact" in copied and "compact" not in policy:
        text = f"is compacted, its source is not ({key}={policy}): records of the same key are lost"
        yield Limit(key, text, f"{key}={policy}", loses=True)
    if policy == "compact" and "delete" in copied:
        text = (
            f"deletes old records ({key}={copied}), its source is compacted alone: the last "
            "values of keys are lost"
        )
        yield Limit(key, text, f"{key}=compact", loses=True)
    for key in _TIMES:
        kept, held = number_of(ours, key), number_of(theirs, key)
        kept = _ANY_TIME if kept is None else kept
        if held is not None and held < kept and _is_checked(key, theirs):
            taken = "any" if kept == _ANY_TIME else f"within {kept} ms"
            text = (
                f"takes only records with times within {held} ms ({key}), its source {taken}: "
                "others fail their partition"
            )
            yield Limit(key, text, f"{key}={kept}")
    key = "compression.type"
    used, written = ours.get(key, "producer"), theirs.get(key, "producer")
    if written not in ("producer", used):
        text = (
            f"has {key}={written}, its source {used}: the target's brokers compress each "
            "batch anew, and it may become too large"
        )
        yield Limit(key, text, f"{key}=producer")


def _is_checked(key: str, theirs: Mapping[str, str]) -> bool:
    """Whether a broker refuses by this limit: those of KIP-937 replace the former one, and nothing
    is refused where the broker stamps records."""
    if theirs.get("message.timestamp.type") == "LogAppendTime":
        return False
    return "difference" not in key or _TIMES[0] not in theirs


def is_shorter(held: int, kept: int) -> bool:
    """Whether one retention ends before another; -1 is for ever."""
    return held != _NO_LIMIT and (kept == _NO_LIMIT or held < kept)


def number_of(configs: Mapping[str, str], key: str) -> int | None:
    """Return a config that is a number, None where it is absent."""
    text = configs.get(key, "")
    return int(text) if text.lstrip("-").isdigit() else None
