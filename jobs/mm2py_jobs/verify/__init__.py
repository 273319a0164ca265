"""Verify: what a flow has copied, compared with its source."""
