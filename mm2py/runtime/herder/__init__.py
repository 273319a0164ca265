"""What should run and what runs: configs, requests, restarts, connectors of this node."""
