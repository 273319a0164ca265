"""What the user wrote: properties files, patterns, providers, the MirrorMaker 2 model."""
