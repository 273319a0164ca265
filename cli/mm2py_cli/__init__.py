"""The command ``mm2py``: what reads a file or asks a worker over REST, and the frame that every
command has."""
