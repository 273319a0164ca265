"""Handlers of the REST dialect, one module per subject; each lists its routes in ``ROUTES``."""
