"""The processes; the composition root."""
