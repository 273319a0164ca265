"""Loads the schema library through our module, which keeps its import warnings quiet."""

from mm2py.protocol.schema import schema_call

__all__ = ["schema_call"]
