"""Whether an expired membership may continue, because no other worker was a member meanwhile.

Flow: generation that ended, group as it was seen, group as it was joined -> ``why_not_the_same`` -> "" or a reason.

A coordinator counts the rounds of its group: each completed rebalance increments the generation, also
the one in which the last member left (``initNextGeneration`` in Kafka). No I/O here.
"""

from typing import Final

from mm2py.protocol.groups import JoinResult

EXPIRY_AND_OURS: Final = 2
"""Generations between ours and the next one: the rebalance after our expiry, which left the group empty, and our own."""

_EMPTY: Final = "Empty"


def why_not_empty(state: str, members: int) -> str:
    """Return why a group, seen after our expiry and before our join, may have had other members; else "".

    ``Dead`` is refused: a deleted group counts its generations from zero again.
    """
    if state == _EMPTY and not members:
        return ""
    return f"another worker is in the group (state {state or 'unknown'})"


def why_not_the_same(ended: int, joined: JoinResult | None, member_id: str) -> str:
    """Return why the new membership does not continue that of generation ``ended``; "" when it does.

    Invariants, given that the group was seen empty after the expiry and before this join:

    1. Work is assigned only in a completed round: a worker without one since ``ended`` wrote nothing.
    2. Another worker's round is one round, the group being empty after it is one more, and our join is
       one more. So ``ended + 2`` leaves room only for the empty round and ours.
    3. Without having seen the group empty, another worker that joined with us, outlived us and left
       while we joined would count the same two; therefore the group is described first.
    4. A round with other members is not ours alone: they are assigned work when we continue.
    """
    if joined is None or joined.leader != member_id or len(joined.members) != 1:
        return "another worker joined the group at the same time"
    rounds = joined.generation_id - ended
    if rounds != EXPIRY_AND_OURS:
        return f"another worker may have run the flow meanwhile ({rounds} rounds of the group)"
    return ""
