"""Failover and failback: clients change sides, nothing is lost."""
