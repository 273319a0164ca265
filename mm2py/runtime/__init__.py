"""Runs connectors: herder, worker, task loop, lifecycle, offset commits."""
