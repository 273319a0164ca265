"""Child processes that tasks live in, and the pipe to them."""
