"""Plug-ins by entry point, validation of their configs, converters."""
