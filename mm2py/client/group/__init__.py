"""Group membership over a coordinator."""
