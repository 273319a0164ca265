"""Backing stores of the runtime."""
