"""User configuration: properties files, patterns, providers, the MirrorMaker 2 model."""
