"""Reading: the Fetcher of the mirror, and the reader of internal topics."""
