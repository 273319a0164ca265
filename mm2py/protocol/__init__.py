"""Wire formats, sans-I/O: bytes in, values out."""
