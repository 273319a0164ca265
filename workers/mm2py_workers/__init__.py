"""Processes and command lines; the composition root."""
