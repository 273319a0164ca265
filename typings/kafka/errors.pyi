class KafkaError(Exception):
    retriable: bool

def for_code(error_code: int) -> type[KafkaError]: ...
