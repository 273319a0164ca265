"""Writing: the Sender of the mirror, and the writer of internal topics."""
