class DataContainer:
    tags: set[str] | None
