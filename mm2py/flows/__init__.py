"""``/flows``: an ordered pair with its connectors; views of it, changes to it, the graph of all."""
