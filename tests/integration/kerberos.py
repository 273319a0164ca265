"""A real Kerberos server on the loopback interface, and a broker that takes its tickets.

Flow: ``Kdc`` -> principals and keytabs -> ``KerberosRegion`` -> ``properties`` for ``connection_settings`` or a mirror's file. Debian's
programs, run without privileges on files of their own. Tests that need it are skipped with one line where the programs or the
package gssapi are not installed.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self, final

import pytest

from tests.certificates import PASSWORD, Authority
from tests.integration.mirror_process import until
from tests.integration.secured import jaas
from tests.kit.kafka.ports import HOST, free_ports
from tests.kit.kafka.reaper import REAPER
from tests.kit.kafka.region import Region
from tests.kit.kafka.server_properties import Listener

REALM: Final = "EXAMPLE.COM"
KRB5: Final = "com.sun.security.auth.module.Krb5LoginModule"
SESSION_MS: Final = 4_000
_SBIN: Final = "/usr/sbin"
_PROGRAMS: Final = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_LISTENERS: Final = {"KRB": "SASL_PLAINTEXT", "KRBSHORT": "SASL_PLAINTEXT", "KRBTLS": "SASL_SSL"}


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=_SBIN)


NEEDS_KERBEROS: Final = pytest.mark.skipif(
    find_spec("gssapi") is None or not all(map(_program, _PROGRAMS)),
    reason="no Kerberos: apt install krb5-kdc krb5-admin-server krb5-user libkrb5-dev, then make setup",
)


def login(keytab: Path, principal: str, service: str = "kafka") -> str:
    """Return the JAAS text of a login by keytab."""
    return jaas(
        KRB5,
        useKeyTab="true",
        storeKey="true",
        keyTab=str(keytab),
        principal=f"{principal}@{REALM}",
        serviceName=service,
    )


@final
class Kdc:
    """A Kerberos server with a realm of its own; as a context manager it runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (self._port,) = free_ports(1)
        self.conf = folder / "krb5.conf"
        self._kdc_conf = folder / "kdc.conf"
        self._process: subprocess.Popen[bytes] | None = None
        self.conf.write_text(
            f"""[libdefaults]
 default_realm = {REALM}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
 clockskew = 2
[realms]
 {REALM} = {{
  kdc = {HOST}:{self._port}
 }}
""",
            encoding="ascii",
        )
        self._kdc_conf.write_text(
            f"""[kdcdefaults]
 kdc_listen = ""
 kdc_tcp_listen = {HOST}:{self._port}
[realms]
 {REALM} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  acl_file = {folder}/kadm5.acl
  max_life = 10h
  max_renewable_life = 1d
  supported_enctypes = aes256-cts-hmac-sha1-96:normal
 }}
[logging]
 kdc = FILE:{folder}/kdc.log
""",
            encoding="ascii",
        )

    @property
    def environ(self) -> dict[str, str]:
        """What programs and libraries need to be clients of this server; a ticket cache of its own too."""
        return {
            "KRB5_CONFIG": str(self.conf),
            "KRB5_KDC_PROFILE": str(self._kdc_conf),
            "KRB5CCNAME": str(self.folder / "cache"),
        }

    def principal(self, name: str, *, life: str = "10h") -> None:
        """Create a principal with a random key; its tickets live at most ``life``."""
        self._admin("addprinc", "-randkey", "+requires_preauth", "-maxlife", life, name)

    def keytab(self, *names: str, file: str = "", new_key: bool = True) -> Path:
        """Return a new keytab with keys of principals; with a new key older keytabs are no good any more."""
        path = self.folder / (file or f"{names[0].replace('/', '-')}.keytab")
        path.unlink(missing_ok=True)
        self._admin("ktadd", "-k", str(path), *(() if new_key else ("-norandkey",)), *names)
        return path

    def kinit(
        self, keytab: Path, principal: str, *, life: str, cache: Path, renewable: str = ""
    ) -> None:
        """Fill a ticket cache as a user does."""
        more = ("-r", renewable) if renewable else ()
        self._run("kinit", "-l", life, *more, "-c", str(cache), "-k", "-t", str(keytab), principal)

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._process = subprocess.Popen(
            [self._found("krb5kdc"), "-n"],
            env={**os.environ, **self.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        REAPER.watch_process(self._process.pid)
        until(self._answers, 90, "the Kerberos server answers")

    def stop(self) -> None:
        """End it; safe twice."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            REAPER.forget_process(process.pid)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "kdc.log").read_text()
        try:
            socket.create_connection((HOST, self._port), 1).close()
        except OSError:
            return False
        return True

    def _admin(self, *words: str) -> None:
        self._run("kadmin.local", "-r", REALM, *words)

    def _run(self, program: str, *words: str) -> None:
        ended = subprocess.run(
            [self._found(program), *words],
            env={**os.environ, **self.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 0, f"{program} {words}: {ended.stdout}{ended.stderr}"

    def _found(self, program: str) -> str:
        path = _program(program)
        assert path is not None, program
        return path

    def __enter__(self) -> Self:
        self._run("kdb5_util", "create", "-r", REALM, "-s", "-P", "master-word")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@final
class KerberosRegion:
    """A region whose added listeners take tickets for ``kafka/localhost``; as a context manager it runs."""

    def __init__(self, kdc: Kdc, folder: Path) -> None:
        kdc.principal("kafka/localhost")
        keytab = kdc.keytab("kafka/localhost")
        self.authority = Authority()
        issued = self.authority.issue("broker")
        own = {
            "sasl.enabled.mechanisms": "GSSAPI",
            "gssapi.sasl.jaas.config": login(keytab, "kafka/localhost"),
            "sasl.kerberos.service.name": "kafka",
        }
        short = {"gssapi.connections.max.reauth.ms": str(SESSION_MS)}
        store = {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(issued.pkcs12(folder / "broker.p12")),
            "ssl.keystore.password": PASSWORD,
        }
        more: Mapping[str, Mapping[str, str]] = {"KRBSHORT": short, "KRBTLS": store}
        self.region = Region(
            "kerberos",
            listeners=[
                Listener(name, kind, {**own, **more.get(name, {})}, host="localhost")
                for name, kind in _LISTENERS.items()
            ],
        )

    def properties(self, listener: str, jaas_text: str) -> dict[str, str]:
        """Return the Java client properties of a login; the mechanism is left to its default."""
        return {
            "bootstrap.servers": self.region.listener_servers(listener),
            "security.protocol": _LISTENERS[listener],
            "sasl.jaas.config": jaas_text,
        }

    def __enter__(self) -> Self:
        self.region.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.region.close()
