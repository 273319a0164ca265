"""The worker group: membership, rounds, assignments, signed requests."""
