"""Sockets on top of the protocol: connections, cluster metadata, Fetcher, Sender, admin."""
