"""Converters of ordinary records: keys, values and headers to bytes, as Java Connect's built-in
ones do."""
