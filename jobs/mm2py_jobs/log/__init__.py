"""Reads whole ranges of a log, batch by batch, for jobs that compare, archive or copy them
again."""
