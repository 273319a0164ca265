"""Side by side with the Java MirrorMaker 2: the same brokers, the same data, one run."""
