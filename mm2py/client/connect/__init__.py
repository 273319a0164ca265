"""Connections to brokers, what they know of the cluster, and one-off requests."""
