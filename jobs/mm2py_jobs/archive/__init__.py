"""Archives of source topics as Parquet, and what restores them."""
