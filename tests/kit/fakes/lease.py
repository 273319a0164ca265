"""A share in a receive buffer, for tests of who gives it back."""


class CountedLease:
    """Counts the references to a large receive buffer."""

    held_bytes = 1 << 22

    def __init__(self) -> None:
        self.count = 1

    def retain(self) -> None:
        """Take one more."""
        self.count += 1

    def release(self) -> None:
        """Give one back."""
        self.count -= 1

    def copied(self, size_bytes: int) -> "CountedLease":
        """Return the lease of a copy."""
        return CountedLease()
