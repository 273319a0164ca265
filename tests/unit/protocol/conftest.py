"""Loads the schema library through our module, which keeps its import warnings quiet."""
