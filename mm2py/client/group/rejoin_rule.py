"""Whether an expired membership may continue, because no other worker was assigned its work
meanwhile.

Flow: generation of our last assignment, group as it was seen, generation that we joined ->
``why_not_the_same`` -> "" or a reason.

A coordinator counts the rounds of its group: each completed rebalance increments the generation,
also the one in which the last member left (``initNextGeneration`` in Kafka). It stores a generation
when the leader's SyncGroup succeeds, and when the group is empty; one that was only joined is
forgotten when the coordinator moves or its broker is elected again (``GroupMetadataManager`` loads
the group from ``__consumer_offsets``), and its number is then used again. No I/O here.
"""

from typing import Final

_EXPIRY_AND_OURS: Final = 2
"""Generations between ours and the next one: the rebalance after our expiry, which left the group
empty, and our own."""

_EMPTY: Final = "Empty"


def why_not_empty(state: str, members: int) -> str:
    """Return why a group, seen after our expiry and before our join, may have had other members;
    else "".

    ``Dead`` is refused: a deleted group counts its generations from zero again.
    """
    # A group that the coordinator does not know is described as Dead.
    if state == _EMPTY and not members:
        return ""
    return f"another worker is in the group (state {state or 'unknown'})"


def why_not_the_same(assigned: int, joined: int) -> str:
    """Return why generation ``joined`` does not continue the work of generation ``assigned``; ""
    when it does.

    Invariants, given that the group was seen empty after the expiry and before this join:

    1. Work is assigned only in a round whose SyncGroup succeeded, and that round is stored: a
       worker without one since ``assigned`` wrote nothing.
    2. Another worker's stored round is one round, the group being empty after it is one more, and
       our join is one more. So ``assigned + 2`` leaves room only for the empty round and ours.
    3. Without having seen the group empty, another worker that joined with us, outlived us and left
       while we joined would count the same two; therefore the group is described first.
    4. Counting begins at the last round in which *we* were assigned work, also where we joined a
       later one: of that one only its members know, and a coordinator that has moved gives its
       number to another worker.
    5. Others in our own round are assigned only what we do not report as ours.
    """
    rounds = joined - assigned
    if rounds == _EXPIRY_AND_OURS:
        return ""
    return f"another worker may have run its work meanwhile ({rounds} rounds of the group)"
