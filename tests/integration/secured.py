"""One embedded broker with a listener for every kind of security, and the client's properties for each.

Flow: ``SecuredRegion`` -> ``properties(listener, ...)`` -> ``connection_settings`` or a mirror's file. One
JVM serves all cases: certificates differ by listener.
"""

import base64
import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Self, cast, final

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from mm2py.clock import SYSTEM_CLOCK
from tests.certificates import PASSWORD, Authority, Issued, write_jks
from tests.kit.kafka.region import Region
from tests.kit.kafka.server_properties import Listener

_PACKAGE: Final = "org.apache.kafka.common.security."
PLAIN: Final = f"{_PACKAGE}plain.PlainLoginModule"
SCRAM: Final = f"{_PACKAGE}scram.ScramLoginModule"
OAUTH: Final = f"{_PACKAGE}oauthbearer.OAuthBearerLoginModule"
MECHANISMS: Final = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
PLAIN_WORD: Final = 'p,=; "\\ w'
SCRAM_WORD: Final = "scram-secret"
ODD_WORD: Final = "s3cret=,"
DENIED_WORD: Final = "denied"
CLIENT_WORD: Final = "client-secret"
SESSION_MS: Final = 4_000
LONG_SESSION_MS: Final = 12_000
"""A client renews its login in the last twentieth at the latest, which is short where processes start beside it."""
SESSIONS_MS: Final = {"SHORT": SESSION_MS, "LONG": LONG_SESSION_MS}

LISTENERS: Final = {
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "EXPIRED": "SSL",
    "OTHERHOST": "SSL",
    "LOGIN": "SASL_PLAINTEXT",
    "TLSLOGIN": "SASL_SSL",
    "SHORT": "SASL_PLAINTEXT",
    "LONG": "SASL_PLAINTEXT",
    "SCRAMONLY": "SASL_PLAINTEXT",
}


def jaas(module: str, **options: str) -> str:
    """Return a JAAS text; values are quoted as Java wants it."""
    parts: list[str] = []
    for name, value in options.items():
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        parts.append(f'{name}="{escaped}"')
    return " ".join((module, "required", *parts)) + ";"


@final
class SecuredRegion:
    """A region with all listeners; as a context manager it runs."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.client = self.authority.issue("client")
        self.truststore = self.authority.truststore(folder / "trust.p12")
        self.region = Region(
            name,
            listeners=[
                Listener(each, kind, self._listener(each)) for each, kind in LISTENERS.items()
            ],
            format_options=[
                f"--add-scram={mechanism}=[name=alice,password={SCRAM_WORD}]"
                for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            ],
        )

    def properties(
        self, listener: str, mechanism: str = "", module: str = "", **options: str
    ) -> dict[str, str]:
        """Return the Java client properties for a listener and a login."""
        kind = LISTENERS[listener]
        found = {
            "bootstrap.servers": self.region.listener_servers(listener),
            "security.protocol": kind,
        }
        if kind.endswith("SSL"):
            found |= {
                "ssl.truststore.type": "PKCS12",
                "ssl.truststore.location": str(self.truststore),
                "ssl.truststore.password": PASSWORD,
            }
        if mechanism:
            found |= {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas(module, **options)}
        return found

    def with_client_key(self, listener: str) -> dict[str, str]:
        """Return the properties with our own certificate in a PKCS12 keystore."""
        return self.properties(listener) | {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(self.client.pkcs12(self.folder / "client.p12")),
            "ssl.keystore.password": PASSWORD,
        }

    def with_jks_stores(self, listener: str) -> dict[str, str]:
        """Return the properties with JKS stores, whose key has a password of its own."""
        trust = write_jks(self.folder / "trust.jks", trusted=[self.authority.certificate])
        keys = write_jks(self.folder / "keys.jks", own=self.client, key_password=ODD_WORD)
        return {
            **{k: v for k, v in self.properties(listener).items() if not k.startswith("ssl.")},
            "ssl.truststore.location": str(trust),
            "ssl.truststore.password": PASSWORD,
            "ssl.keystore.location": str(keys),
            "ssl.keystore.password": PASSWORD,
            "ssl.key.password": ODD_WORD,
        }

    def scram(self, listener: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        """Return the properties of the user that the broker was formatted with."""
        return self.properties(listener, mechanism, SCRAM, username="alice", password=SCRAM_WORD)

    def pem_truststore(self) -> Path:
        """Write the authority's certificate as PEM."""
        file = self.folder / "ca.pem"
        file.write_text(self.authority.pem(), encoding="ascii")
        return file

    def set_scram_user(self, name: str, password: str) -> None:
        """Create a user for SCRAM-SHA-512, or change the password; a new one is known to the broker then."""
        admin = AdminClient({"bootstrap.servers": self.region.bootstrap_servers})
        how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
        change = UserScramCredentialUpsertion(name, how, password.encode())
        # confluent-kafka's annotation leaves the future's result open.
        answers = admin.alter_user_scram_credentials([change])  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        for answer in cast("dict[str, Future[None]]", answers).values():
            answer.result(60)

        def is_known() -> bool:
            asked = admin.describe_user_scram_credentials([name])  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            answer = cast("dict[str, Future[object]]", asked)[name]
            return answer.exception(60) is None

        deadline = time.monotonic() + 90
        while not is_known():
            assert time.monotonic() < deadline, f"user {name} is not known"

    def _listener(self, name: str) -> Mapping[str, str]:
        found: dict[str, str] = {}
        if LISTENERS[name].endswith("SSL"):
            found |= self._store(name, self._issued(name))
        if LISTENERS[name].startswith("SASL_"):
            found |= _logins("SCRAM-SHA-256" if name == "SCRAMONLY" else MECHANISMS)
        if name in SESSIONS_MS:
            for mechanism in MECHANISMS.split(","):
                found[f"{mechanism.lower()}.connections.max.reauth.ms"] = str(SESSIONS_MS[name])
        return found

    def _issued(self, name: str) -> Issued:
        if name == "EXPIRED":
            return self.authority.issue("broker", days=-2)
        if name == "OTHERHOST":
            return self.authority.issue("broker", hosts=("kafka.example.com",))
        return self.authority.issue("broker")

    def _store(self, name: str, issued: Issued) -> Mapping[str, str]:
        if name == "MUTUAL":
            return {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": issued.chain_pem(),
                "ssl.keystore.key": issued.key_pem(),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": self.authority.pem(),
                "ssl.client.auth": "required",
            }
        return {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(issued.pkcs12(self.folder / f"{name}.p12")),
            "ssl.keystore.password": PASSWORD,
        }

    def __enter__(self) -> Self:
        self.region.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.region.close()


def _logins(mechanisms: str) -> dict[str, str]:
    modules = {
        "PLAIN": jaas(PLAIN, user_alice=PLAIN_WORD, user_denied=DENIED_WORD),
        "SCRAM-SHA-256": jaas(SCRAM),
        "SCRAM-SHA-512": jaas(SCRAM),
        # Takes tokens without signature.
        "OAUTHBEARER": jaas(OAUTH, unsecuredLoginStringClaim_sub="broker"),
    }
    wanted = mechanisms.split(",")
    return {"sasl.enabled.mechanisms": mechanisms} | {
        f"{name.lower()}.sasl.jaas.config": modules[name] for name in wanted
    }


@dataclass
class _Seen:
    word: str = CLIENT_WORD
    bodies: list[str] = field(default_factory=list[str])
    authorizations: list[str] = field(default_factory=list[str])


@final
class TokenEndpoint:
    """A token endpoint on the loopback interface for one client; its tokens bear no signature.

    ``word`` is the client's secret from now on.
    """

    def __init__(self, *, lifetime_s: int = 3_600) -> None:
        self.seen = seen = _Seen()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                seen.bodies.append(body.decode())
                seen.authorizations.append(self.headers["Authorization"])
                wanted = "Basic " + base64.b64encode(f"mirror:{seen.word}".encode()).decode()
                refused = self.headers["Authorization"] != wanted
                answer: dict[str, object] = {"access_token": _token(lifetime_s)}
                if refused:
                    answer = {"error": "invalid_client", "error_description": "unknown client"}
                text = json.dumps(answer).encode()
                self.send_response(401 if refused else 200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as declared there
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _token(lifetime_s: int) -> str:
    now = SYSTEM_CLOCK.now_ms() // 1000
    parts = ({"alg": "none"}, {"sub": "mirror", "iat": now, "exp": now + lifetime_s})
    texts = (base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=").decode() for p in parts)
    return ".".join((*texts, ""))
