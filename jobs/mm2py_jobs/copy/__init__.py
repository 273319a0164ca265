"""Copies of history on Spark: backfills, streams, reruns; their lanes, leases and drivers."""
