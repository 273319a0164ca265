"""Whether a membership that the coordinator ended may go on, because nobody else was a member meanwhile.

Flow: generation that ended, group as it was seen, group as it was joined -> ``why_not_the_same`` -> "" or a reason.

A coordinator counts the rounds of its group: each completed join round raises the generation by one, also
the one in which the last member went and nobody is left (``initNextGeneration`` in Kafka). No I/O here.
"""

from typing import Final

from mm2py.protocol.groups import JoinResult

EXPIRY_AND_OURS: Final = 2
"""The round in which our expiry left nobody, and the one in which we joined again."""

_EMPTY: Final = "Empty"


def why_not_empty(state: str, members: int) -> str:
    """Say why a group, seen after our expiry and before our join, may have had other members; else "".

    ``Dead`` is refused: a group that was deleted counts its rounds from nothing again.
    """
    if state == _EMPTY and not members:
        return ""
    return f"another worker is in the group (state {state or 'unknown'})"


def why_not_the_same(ended: int, joined: JoinResult | None, member_id: str) -> str:
    """Say why the new membership does not continue that of generation ``ended``; "" when it does.

    Invariants, given that the group was seen empty after the expiry and before this join:

    1. Work is given out in a completed round only: a worker without one since ``ended`` wrote nothing.
    2. Another worker's round is one round, the group being empty after it is one more, and our join is
       one more. So ``ended + 2`` leaves room for the empty round and ours only.
    3. Without having seen the group empty, one other worker that joined beside us, outlived us and left
       while we joined would count the same two; therefore that is asked first.
    4. A round that we share is not ours alone: others in it are given work when we go on.
    """
    if joined is None or joined.leader != member_id or len(joined.members) != 1:
        return "another worker joined the group at the same time"
    rounds = joined.generation_id - ended
    if rounds != EXPIRY_AND_OURS:
        return f"another worker may have run the flow meanwhile ({rounds} rounds of the group)"
    return ""
