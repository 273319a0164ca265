"""Log context and counters."""
