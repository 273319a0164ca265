"""The mirror connectors, found by entry point."""
