from kafka.protocol.api_message import ApiMessage

class SaslHandshakeRequest(ApiMessage):
    mechanism: str
    def __init__(self, *, mechanism: str = ..., version: int | None = ...) -> None: ...

class SaslHandshakeResponse(ApiMessage):
    error_code: int
    mechanisms: list[str]

class SaslAuthenticateRequest(ApiMessage):
    auth_bytes: bytes
    def __init__(self, *, auth_bytes: bytes = ..., version: int | None = ...) -> None: ...

class SaslAuthenticateResponse(ApiMessage):
    error_code: int
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: int
