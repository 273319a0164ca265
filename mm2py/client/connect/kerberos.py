"""SASL GSSAPI: tickets of one cluster's connections, and the exchange of RFC 4752 with a broker.

Flow: JAAS login -> ``KerberosLogin.prepare`` (ticket of the principal, ticket for the broker's
service) -> ``exchange`` per connection. MIT's library does Kerberos; this module decides when to
log in, and explains errors. Its calls ask the KDC and block, so they run in threads. Java's
``KerberosLogin`` renews in a thread of its own; here the next login renews the ticket, and waits
for that only where the old one has ended (``renewal``).
"""

import ctypes
import itertools
import logging
import os
import random
import subprocess
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from mm2py.client.connect.renewal import RETRY_S, Renewal, in_own_thread
from mm2py.clock import Clock
from mm2py.config.jaas import KRB5_CONF, system_property
from mm2py.config.security import KerberosSettings
from mm2py.errors import AuthenticationError, ConfigError, ConnectionFailedError

if TYPE_CHECKING:
    import gssapi

log = logging.getLogger(__name__)

_KINIT_TIMEOUT_S: Final = 60
_NO_SECURITY_LAYER: Final = 1
_NUMBERS: Final = itertools.count()

# Minor codes of MIT's library (krb5.h), as unsigned 32-bit numbers.
_KRB5: Final = (1 << 32) - 1765328384
_CLIENT_EXPIRED, _CLIENT_UNKNOWN, _SERVICE_UNKNOWN = _KRB5 + 1, _KRB5 + 6, _KRB5 + 7
_WRONG_KEY: Final = (_KRB5 + 24, _KRB5 + 31)
_TICKET_EXPIRED, _SKEW = _KRB5 + 32, _KRB5 + 37
_NO_KDC: Final = (_KRB5 + 156, _KRB5 + 154)


def use_java_krb5_conf() -> None:
    """Configure MIT's library by ``-Djava.security.krb5.conf`` in ``KAFKA_OPTS``.

    ``KRB5_CONFIG`` wins where it is set. The library reads it when it is first used.
    """
    path = system_property(KRB5_CONF, os.environ)
    if path and not os.environ.get("KRB5_CONFIG"):
        os.environ["KRB5_CONFIG"] = path


@final
class KerberosExchange:
    """One login at a broker: the client's side of RFC 4752, without a security layer, as in
    Kafka."""

    def __init__(self, context: "gssapi.SecurityContext", first: bytes, host: str) -> None:
        self._context, self._message, self._host = context, first, host
        self._layer_chosen = False
        self._done = False

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to send."""
        return self._done

    def message(self) -> bytes:
        return self._message

    def take(self, answer: bytes) -> None:
        """Take the broker's response to the last message; it must have no error code.

        Raises:
            AuthenticationError: the broker does not prove that it has the key of its service, or
                asks for a security layer.
        """
        import gssapi

        try:
            # The broker's last message has no content: the exchange is over.
            if self._layer_chosen:
                self._done = True
            elif not self._context.complete:
                self._message = self._context.step(answer) or b""
            else:
                self._choose_layer(self._context.unwrap(answer).message)
        except gssapi.exceptions.GSSError as error:
            raise AuthenticationError(
                f"{self._host} does not prove that it is the service asked for: {_reason(error)}",
                remedy="check bootstrap.servers, sasl.kerberos.service.name and the clocks of "
                "both machines",
            ) from None

    def _choose_layer(self, offered: bytes) -> None:
        # RFC 4752: one byte of layers, three of the largest message.
        if len(offered) != 4 or not offered[0] & _NO_SECURITY_LAYER:
            raise AuthenticationError(
                f"{self._host} asks for a security layer of SASL, which Kafka does not have",
                remedy="check bootstrap.servers",
            )
        # No buffer size and no authorization id: the broker uses the principal.
        self._message = self._context.wrap(bytes((_NO_SECURITY_LAYER, 0, 0, 0)), False).message  # noqa: FBT003
        self._layer_chosen = True


@final
class KerberosLogin:
    """The ticket that a cluster's connections share; methods are for the loop's thread."""

    def __init__(self, settings: KerberosSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._renewal = Renewal(partial(in_own_thread, self._renew))
        self._credentials: gssapi.Credentials | None = None
        self._logged_in_s = 0.0
        self._renew_s = 0.0
        self._end_s = 0.0
        self._caches: list[str] = []

    async def prepare(self, host: str) -> None:
        """Get the tickets that a login at ``host`` needs, so that no connection waits for the KDC.

        Raises:
            AuthenticationError: the KDC refuses principal or service, or there is no valid ticket.
            ConnectionFailedError: no KDC answers.
            ConfigError: the package gssapi or the keytab is missing.
        """
        now_s = self._clock.monotonic()
        if self._credentials is None or now_s >= self._end_s:
            await self._renewal.finished()
        elif now_s >= self._renew_s:
            await self._renewal.tried()
        await self.exchange(host)

    async def exchange(self, host: str) -> KerberosExchange:
        """Begin a login at ``host``; raises what ``prepare`` raises."""
        return await in_own_thread(partial(self._begin, host))

    def refused(self) -> None:
        """Get a new ticket before the next exchange: after a key change of the service the current
        one is useless."""
        least_s = self._settings.min_time_before_relogin_ms / 1000
        self._renew_s = min(self._renew_s, self._logged_in_s + least_s)

    # ---- in threads ----

    def _renew(self) -> None:
        try:
            self._log_in()
        except (AuthenticationError, ConnectionFailedError, ConfigError) as error:
            now_s = self._clock.monotonic()
            if now_s >= self._end_s:
                raise
            self._renew_s = now_s + RETRY_S
            log.warning(
                "Kerberos ticket not renewed, the old one is valid for_s=%d cause=%s",
                self._end_s - now_s, error,
            )  # fmt: skip

    def _log_in(self) -> None:
        _load_library()
        import gssapi

        settings = self._settings
        now_s = self._clock.monotonic()
        try:
            credentials, life_s = self._acquire()
        except gssapi.exceptions.GSSError as error:
            raise _ticket_error(settings, error) from None
        if not life_s:
            raise _expired(settings)
        window_s = life_s * (
            settings.renew_window_factor + random.uniform(0, settings.renew_jitter)  # noqa: S311 - no secret
        )
        least_s = settings.min_time_before_relogin_ms / 1000
        # Java's KerberosLogin: a share of the ticket's life with jitter, but not
        # before sasl.kerberos.min.time.before.relogin unless the ticket ends sooner.
        self._renew_s = now_s + (window_s if least_s >= life_s else max(window_s, least_s))
        # Monotonic instants: the library's lifetime is relative, and wall clocks are set.
        self._credentials, self._logged_in_s, self._end_s = credentials, now_s, now_s + life_s
        log.info("Kerberos ticket principal=%s valid_s=%d", settings.principal or "-", life_s)

    def _acquire(self) -> "tuple[gssapi.Credentials, int]":
        """Use the ticket cache while its ticket is valid, else the keytab (``Krb5LoginModule``)."""
        import gssapi

        settings = self._settings
        if settings.ticket_cache is not None:
            store = {"ccache": settings.ticket_cache} if settings.ticket_cache else None
            try:
                cached = self._from_cache(store)
            except gssapi.exceptions.GSSError:
                if not settings.keytab:
                    raise
            else:
                # Without a keytab an expired ticket is returned, too: its error names the cache.
                if cached[1] or not settings.keytab:
                    return cached
        _check_keytab(settings.keytab)
        # A separate in-memory cache per login: MIT's
        # library would renew a shared one by its own rules.
        cache = f"MEMORY:mm2py-{os.getpid()}-{next(_NUMBERS)}"
        store = {"client_keytab": f"FILE:{settings.keytab}", "ccache": cache}
        name = gssapi.Name(settings.principal, gssapi.NameType.kerberos_principal)
        life_s = 0
        try:
            credentials = gssapi.Credentials(name=name, usage="initiate", store=store)
            life_s = credentials.lifetime or 0
        finally:
            if life_s:
                self._caches.append(cache)
            # A login that has begun may still use the last but one.
            useless = self._caches[:-2] if life_s else [cache]
            self._caches = self._caches[-2:]
            for each in useless:
                destroy_cache(each)
        return credentials, life_s

    def _from_cache(self, store: dict[str, str] | None) -> "tuple[gssapi.Credentials, int]":
        import gssapi

        settings = self._settings
        name = None
        if settings.principal:
            name = gssapi.Name(settings.principal, gssapi.NameType.kerberos_principal)

        def read() -> tuple[gssapi.Credentials, int]:
            credentials = gssapi.Credentials(name=name, usage="initiate", store=store)
            return credentials, credentials.lifetime or 0

        cached = read()
        left_s = self._end_s - self._clock.monotonic()
        # Another process may have renewed it already; if not, kinit does.
        if self._credentials is None or cached[1] > left_s + 1 or not settings.kinit_cmd:
            return cached
        # A cache is not ours to fill: only kinit renews its ticket, as in Java's KerberosLogin.
        command = [settings.kinit_cmd, "-R"]
        if settings.ticket_cache:
            command += ["-c", settings.ticket_cache]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_KINIT_TIMEOUT_S)  # noqa: S603 - of the worker's own file
        except (OSError, subprocess.SubprocessError) as error:
            output = getattr(error, "stderr", None) or b""
            cause = output.decode(errors="replace").strip() or str(error)
            log.warning("kinit does not renew the ticket command=%s cause=%s", command[0], cause)
            return cached
        return read()

    def _begin(self, host: str) -> KerberosExchange:
        import gssapi

        service = f"{self._settings.service_name}@{host}"
        try:
            context = gssapi.SecurityContext(
                name=gssapi.Name(service, gssapi.NameType.hostbased_service),
                creds=self._credentials,
                flags=(
                    gssapi.RequirementFlag.mutual_authentication,
                    gssapi.RequirementFlag.integrity,
                ),
                usage="initiate",
            )
            return KerberosExchange(context, context.step() or b"", host)
        except gssapi.exceptions.GSSError as error:
            raise _service_error(self._settings, host, error) from None


def _load_library() -> None:
    use_java_krb5_conf()
    try:
        import_module("gssapi")
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"Kerberos needs the package gssapi, which does not load: {error}",
            remedy="pip install 'mm2py[kerberos]' (it is compiled: Debian, Ubuntu: apt install "
            "gcc python3-dev libkrb5-dev)",
        ) from None


def destroy_cache(name: str) -> None:
    """Free a ticket cache in memory: the library keeps it with its tickets, 4 kB, though nothing
    refers to it any more."""
    try:
        library = ctypes.CDLL("libkrb5.so.3")
    except OSError:
        return  # of another system, which frees it or not
    context, cache = ctypes.c_void_p(), ctypes.c_void_p()
    if library.krb5_init_context(ctypes.byref(context)):
        return
    if not library.krb5_cc_resolve(context, name.encode(), ctypes.byref(cache)):
        library.krb5_cc_destroy(context, cache)
    library.krb5_free_context(context)


def _check_keytab(path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            magic = file.read(1)
    except OSError as error:
        raise ConfigError(
            f"keytab {path} cannot be read: {error.strerror}",
            remedy="correct keyTab in the JAAS login, or the file's owner and mode",
        ) from None
    # Keytab format version: 5, then 1 or 2.
    if magic != b"\x05":
        raise ConfigError(f"{path} is no keytab", remedy="make it with ktadd of kadmin")


_Failure = AuthenticationError | ConnectionFailedError


def _ticket_error(settings: KerberosSettings, error: "gssapi.exceptions.GSSError") -> _Failure:
    """Explain why there is no ticket for the principal."""
    code, principal, reason = error.min_code, settings.principal, _reason(error)
    known = _known_error(settings, error)
    if known is not None:
        return known
    if code in _WRONG_KEY:
        return AuthenticationError(
            f"the KDC refuses the key of {principal} in keytab {settings.keytab}: {reason}",
            remedy="recreate the keytab (ktadd), or correct principal and keyTab in the JAAS login",
        )
    if code in (_CLIENT_UNKNOWN, _CLIENT_EXPIRED):
        return AuthenticationError(
            f"the KDC refuses principal {principal}: {reason}",
            remedy="correct principal in the JAAS login, or the principal in the KDC",
        )
    if not settings.keytab:
        return AuthenticationError(
            f"no ticket of {principal or 'any principal'} in {_cache(settings)}: {reason}",
            remedy="get one with kinit, or name a keytab in the JAAS login",
        )
    return AuthenticationError(
        f"no ticket of {principal} by keytab {settings.keytab}: {reason}",
        remedy=f"check that the keytab has a key of {principal} (klist -k), and the principal's "
        "realm",
    )


def _service_error(
    settings: KerberosSettings, host: str, error: "gssapi.exceptions.GSSError"
) -> _Failure:
    """Explain why there is no ticket for the broker's service."""
    service = f"{settings.service_name}/{host}"
    if error.min_code == _SERVICE_UNKNOWN:
        return AuthenticationError(
            f"the KDC knows no service {service}: {_reason(error)}",
            remedy="set sasl.kerberos.service.name to the first part of the broker's principal, "
            "and check that the broker "
            "advertises the host name in its second part",
        )
    return _known_error(settings, error) or AuthenticationError(
        f"no ticket for service {service}: {_reason(error)}",
        remedy="check sasl.kerberos.service.name and krb5.conf",
    )


def _known_error(
    settings: KerberosSettings, error: "gssapi.exceptions.GSSError"
) -> _Failure | None:
    """Explain errors that any request for a ticket can have; None for all others."""
    import gssapi

    if error.min_code in _NO_KDC:
        return ConnectionFailedError(
            f"no Kerberos server answers: {_reason(error)}",
            remedy="check the kdc lines of krb5.conf (KRB5_CONFIG, or -Djava.security.krb5.conf "
            "in KAFKA_OPTS) and that it runs",
        )
    if error.min_code == _SKEW:
        return AuthenticationError(
            f"the clocks of this machine and the Kerberos server differ: {_reason(error)}",
            remedy="set the clock of this machine",
        )
    if error.min_code == _TICKET_EXPIRED or isinstance(
        error, gssapi.exceptions.ExpiredCredentialsError
    ):
        return _expired(settings)
    return None


def _expired(settings: KerberosSettings) -> AuthenticationError:
    return AuthenticationError(
        f"the ticket of {settings.principal or 'the principal'} in {_cache(settings)} has expired",
        remedy="renew it with kinit, or name a keytab in the JAAS login",
    )


def _cache(settings: KerberosSettings) -> str:
    if settings.ticket_cache is None:
        return "memory"
    return (
        f"ticket cache {settings.ticket_cache}"
        if settings.ticket_cache
        else "the user's ticket cache"
    )


def _reason(error: "gssapi.exceptions.GSSError") -> str:
    """Return the library's message on one line: the mechanism's text, else the general one."""
    texts = error.get_all_statuses(error.min_code, False) or [str(error)]  # noqa: FBT003
    return " ".join(" ".join(texts).split())
