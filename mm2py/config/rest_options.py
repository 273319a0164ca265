"""The REST keys of a worker: Java's ``RestServerConfig`` and ours.

Flow: property texts -> ``parse_config(RestOptions, ...)`` -> ``rest_settings``, which says what follows.
"""

from typing import Annotated, Final

from mm2py.config.definitions import ConfigModel, Option
from mm2py.config.java_values import JavaType

__all__ = ["DEFAULT_PORT", "MAX_PORT", "RestOptions"]

DEFAULT_PORT: Final = 8083
MAX_PORT: Final = 65_535
_LIST, _STRING, _INT = JavaType.LIST, JavaType.STRING, JavaType.INT


def _option(kind: JavaType, doc: str, *, ours: bool = False) -> Option:
    return Option(kind, doc, group="rest", importance="low", ours=ours)


class RestOptions(ConfigModel):
    """The REST keys of a worker (Java's ``RestServerConfig`` and ours)."""

    listeners: Annotated[
        tuple[str, ...],
        Option(
            _LIST, "Addresses of the public REST API, http or https.",
            group="rest", java_default="http://:8083",
        ),
    ] = (f"http://127.0.0.1:{DEFAULT_PORT}",)  # fmt: skip
    internal_listener: Annotated[
        str,
        _option(
            _STRING,
            "Address for the other workers; serves signed requests only. Not set: the address that is "
            "advertised, and https where `listeners` has it with a certificate for that address.",
            ours=True,
        ),
    ] = "http://:0"
    admin_listeners: Annotated[
        tuple[str, ...] | None,
        _option(_LIST, "Empty: no /admin endpoints. Addresses of their own are not supported."),
    ] = None
    rest_advertised_host_name: Annotated[
        str, _option(_STRING, "Host name that other workers are given.")
    ] = ""
    rest_advertised_port: Annotated[
        int | None,
        Option(_INT, "Port that other workers are given.", low=0, high=MAX_PORT, group="rest"),
    ] = None
    rest_advertised_listener: Annotated[
        str,
        Option(
            _STRING, "Which listener other workers are given.",
            choices=("", "http", "https"), any_case=True, group="rest",
        ),
    ] = ""  # fmt: skip
    rest_extension_classes: Annotated[
        tuple[str, ...], _option(_LIST, "Java's basic authentication; other classes are refused.")
    ] = ()
    rest_basic_auth_file: Annotated[
        str, _option(_STRING, "Properties file with one user=password per line.", ours=True)
    ] = ""
    rest_bearer_tokens_file: Annotated[
        str, _option(_STRING, "Properties file with one name=token per line.", ours=True)
    ] = ""
    rest_read_only_users: Annotated[
        tuple[str, ...], _option(_LIST, "Users and token names that may only read.", ours=True)
    ] = ()
    rest_max_body_bytes: Annotated[
        int,
        Option(
            _INT, "Longest request body.",
            low=1, unit="bytes", group="rest", importance="low", ours=True,
        ),
    ] = 1_048_576  # fmt: skip
    rest_config_providers_allow: Annotated[
        tuple[str, ...],
        _option(_LIST, "Config providers that configs sent over REST may use.", ours=True),
    ] = ()
    rest_insecure: Annotated[
        bool,
        _option(JavaType.BOOLEAN, "Serve other machines without authentication.", ours=True),
    ] = False
    access_control_allow_origin: Annotated[
        str,
        _option(_STRING, "Origins, in full or *, whose pages may use the API; empty: none."),
    ] = ""
    access_control_allow_methods: Annotated[
        str, _option(_STRING, "Methods that a preflight is answered; empty: POST,HEAD,GET.")
    ] = ""
    response_http_headers_config: Annotated[
        str, _option(_STRING, "Headers of every answer: [set|add|setDate|addDate] name:value, …")
    ] = ""
