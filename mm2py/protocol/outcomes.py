"""Outcomes of requests about many things: one error code for each.

Flow: answer -> ``admin_messages``, ``group_messages`` -> one of these -> the client.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamedError:
    """Outcome for one named thing (a topic, a member, a resource, an ACL)."""

    name: str
    error_code: int
    error_message: str = ""


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """Outcome for one partition."""

    topic: str
    partition: int
    error_code: int
