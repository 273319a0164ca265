"""From older mirrors: MirrorMaker 1 and its command, Strimzi, positions that are carried over."""
