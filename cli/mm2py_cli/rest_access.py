"""How a command reaches the REST API: options and environment that all such commands share.

Flow: command line -> ``Access`` -> ``rest_client``, loaded only when a command asks. Passwords and
tokens come from files, the environment or a prompt, never from the command line, which every user
of a machine can read.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, cast
from urllib.parse import urlsplit

import typer

from mm2py.errors import ConfigError, Mm2pyError, UsageError
from mm2py.flows.view_models import FlowView
from mm2py_cli.command_frame import framed, options_of
from mm2py_workers.worker_place import find_worker

if TYPE_CHECKING:
    import httpx

    from mm2py_cli.rest_client import RestClient

ANSWER_S: Final = 60.0
"""A change may wait for a rebalance; Connect's own requests may take 90 s."""
COMPLETION_S: Final = 1.0
"""The shell waits for the answer before it shows completions."""

_PANEL: Final = "Connection"


def _option(text: str, variable: str, metavar: str | None, *names: str) -> object:
    """Return an option of the connection, which an environment variable may give as well."""
    return typer.Option(*names, envvar=variable, metavar=metavar, help=text, rich_help_panel=_PANEL)


_URL: Final = (
    "REST address of any worker (default: that of --file, or of the only file that runs here)"
)
_FILE: Final = "mirror maker file whose worker on this machine is asked"
_USER: Final = "user; the password comes from --password-file, MM2PY_PASSWORD or a prompt"
_TOKEN: Final = "file that holds a bearer token (or MM2PY_TOKEN holds it)"  # noqa: S105 - a help text
_CA: Final = "who signed the worker's certificate (default: whom the system trusts)"
_KEY: Final = "its private key, if it is not in --cert (password: MM2PY_KEY_PASSWORD)"
_PASSWORD: Final = _option("file that holds the password", "MM2PY_PASSWORD_FILE", "FILE")
_CERT: Final = _option("own certificate, with its chain", "MM2PY_CERT_FILE", "PEM", "--cert")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the API is and who asks; ``transport`` replaces the network in tests."""

    url: Annotated[str | None, _option(_URL, "MM2PY_URL", None)] = None
    file: Annotated[Path | None, _option(_FILE, "MM2PY_FILE", "FILE")] = None
    user: Annotated[str | None, _option(_USER, "MM2PY_USER", "NAME")] = None
    password_file: Annotated[Path | None, _PASSWORD] = None
    token_file: Annotated[Path | None, _option(_TOKEN, "MM2PY_TOKEN_FILE", "FILE")] = None
    ca_file: Annotated[Path | None, _option(_CA, "MM2PY_CA_FILE", "PEM")] = None
    cert_file: Annotated[Path | None, _CERT] = None
    key_file: Annotated[Path | None, _option(_KEY, "MM2PY_KEY_FILE", "PEM", "--key")] = None
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            min=0.1,
            metavar="SECONDS",
            help="how long to wait for an answer, or with --wait for the state",
            rich_help_panel=_PANEL,
        ),
    ] = ANSWER_S
    may_prompt: bool = True
    transport: "httpx.BaseTransport | None" = None

    def client(self) -> "RestClient":
        """Return a client; close it. Loads httpx.

        Raises:
            UsageError: the options contradict each other.
            ConfigError: a file of theirs cannot be used.
        """
        from mm2py_cli.rest_client import Certificates, RestClient

        return RestClient(
            self.base_url(),
            login=self.login(),
            token=self.token(),
            certificates=Certificates(
                ca_file=self.ca_file, cert_file=self.cert_file, key_file=self.key_file
            ),
            timeout_s=self.timeout_s,
            transport=self.transport,
        )

    def base_url(self) -> str:
        """Return the address without a slash at its end; ``UsageError``: it is no address, holds a
        password, or it is not known which worker is meant."""
        url = self.url
        if url is None:
            url = find_worker(self.file)
        elif self.file is not None:
            raise UsageError(
                "an address (--url, MM2PY_URL) and a file (--file, MM2PY_FILE) were both given",
                remedy="leave one of them out",
            )
        # An address ends up in shell histories and error lines.
        if "@" in url:
            raise UsageError(
                "--url holds a user or password", remedy="use --user and --password-file"
            )
        try:
            parts = urlsplit(url)
            whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            whole = False
        if not whole or "?" in url or "#" in url:
            raise UsageError(
                f"--url {url!r} is not an address of a worker",
                remedy="write it like http://localhost:8083 or https://worker:8443",
            )
        return url.rstrip("/")

    def token(self) -> str | None:
        return _secret(self.token_file, "MM2PY_TOKEN")

    def login(self) -> tuple[str, str] | None:
        """Return user and password, if a user was given; asks on a terminal where no password was.
        ``UsageError``: there is no password, or a token as well."""
        if self.user is None:
            return None
        if self.token() is not None:
            raise UsageError(
                "a user and a bearer token were both given", remedy="leave one of them out"
            )
        password = _secret(self.password_file, "MM2PY_PASSWORD")
        if password is None:
            if not self.may_prompt or not os.isatty(0):
                raise UsageError(
                    f"no password for user {self.user}",
                    remedy="use --password-file, or MM2PY_PASSWORD in the environment",
                )
            password = str(typer.prompt(f"Password of {self.user}", hide_input=True, err=True))
        return self.user, password


def asks_rest(command: Callable[..., int]) -> Callable[..., NoReturn]:
    """Return a command for typer, which ends with ``command``'s exit code; see ``framed``."""
    return framed(command, as_typed)


def as_typed(context: typer.Context, given: object) -> object:
    """Return an ``Access`` in which an address or a file that was typed wins over the other one of
    the environment; others as they are."""
    if not isinstance(given, Access):
        return given
    url, file = (_is_typed(context, name) for name in ("url", "file"))
    return replace(
        given,
        url=None if file and not url else given.url,
        file=None if url and not file else given.file,
        transport=context.obj,
    )


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def complete_flow(context: typer.Context, incomplete: str) -> list[str]:
    """Return a worker's flows, in the form without quotes; none if it is not there."""
    members: dict[str, object] = {
        it.name: context.params[it.name]
        for it in options_of(Access)
        if context.params.get(it.name) is not None
    }
    members |= {"timeout_s": COMPLETION_S, "may_prompt": False}
    try:
        with cast("Callable[..., Access]", Access)(**members).client() as rest:
            names = [f"{view.source}/{view.target}" for view in rest.views(FlowView, "/flows")]
    except Mm2pyError:
        return []
    return [name for name in names if name.startswith(incomplete) and name.count("/") == 1]


FlowOption = Annotated[
    str | None, typer.Option(help="one flow only: A/B", autocompletion=complete_flow)
]


def flow_name(text: str) -> str:
    """Return a flow's name: ``A->B`` as it is, ``A/B`` needs no quotes in a shell. ``UsageError``:
    it is neither."""
    source, arrow, target = text.partition("->")
    if not arrow:
        source, arrow, target = text.partition("/")
    if source and target:
        return f"{source}->{target}"
    raise UsageError(
        f"{text!r} is not a flow",
        remedy="write A/B or, in quotes, 'A->B': without them a shell writes to a file B",
    )


def _secret(file: Path | None, variable: str) -> str | None:
    """Return a secret; errors name where it was looked for, never what was found."""
    secret = os.environ.get(variable, "") if file is None else _text_in(file)
    if file is None and not secret:
        return None
    # Checked here: an HTTP library would quote the whole value.
    if not secret or not secret.isprintable():
        where = variable if file is None else file
        raise ConfigError(f"{where} holds no secret of one line of printable characters")
    return secret


def _text_in(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip("\r\n")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not text in UTF-8") from None
