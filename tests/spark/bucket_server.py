"""An S3 server that is not ours, on the loopback interface, with one bucket.

Flow: ``Bucket`` -> ``versitygw`` on PATH -> ``url``: the bucket over pyarrow.fs, and over s3fs where
that can be imported. Credentials and the endpoint are in files of the user, as executors have them;
tests that need a server are skipped where there is none. moto serves too, from 5.2.5 on: 5.2.1
answers uploads of pyarrow with errors.
"""

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self, final
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from pyarrow import fs

from tests.integration.mirror_process import until
from tests.kit.kafka.ports import HOST, free_ports
from tests.kit.kafka.reaper import REAPER

_KEY: Final = "AKIDEXAMPLE"
_SECRET: Final = "EXAMPLE"  # noqa: S105 - of a server on the loopback interface
_BUCKET: Final = "lake"
_SERVER: Final = "versitygw"

NEEDS_SERVER: Final = pytest.mark.skipif(
    shutil.which(_SERVER) is None,
    reason="no S3 server: go install github.com/versity/versitygw/cmd/versitygw@latest",
)
ACCESS: Final = ("s3", *(("s3a",) if find_spec("s3fs") else ()))
"""pyarrow.fs takes the first kind of URL, fsspec the other one."""


@final
class Bucket:
    """The server and its bucket; as a context manager it runs."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.endpoint: Final = f"{HOST}:{port}"
        self._folder, self._user = folder / "bucket", Path(os.environ["HOME"], ".aws")
        self._folder.mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        access = ["--access", _KEY, "--secret", _SECRET, "--port", self.endpoint]
        self._command = [_SERVER, *access, "posix", str(self._folder)]

    def url(self, scheme: str, folder: str, port: int = 0) -> str:
        """Return where a folder of the bucket is, by pyarrow.fs (``s3``) or fsspec (``s3a``)."""
        endpoint = f"{HOST}:{port}" if port else self.endpoint
        options = f"?endpoint_override={endpoint}&scheme=http" if scheme == "s3" else ""
        return f"{scheme}://{_BUCKET}/{folder}{options}"

    @property
    def system(self) -> fs.S3FileSystem:
        """The server, as a program of others reads it."""
        return fs.S3FileSystem(
            access_key=_KEY,
            secret_key=_SECRET,
            endpoint_override=self.endpoint,
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    @property
    def iceberg(self) -> dict[str, str]:
        """The server, in the settings of a catalog of PyIceberg."""
        return {
            "s3.endpoint": f"http://{self.endpoint}",
            "s3.access-key-id": _KEY,
            "s3.secret-access-key": _SECRET,
            "s3.region": "us-east-1",
        }

    def names(self, folder: str) -> list[str]:
        """Return all files below a folder of the bucket."""
        below = fs.FileSelector(f"{_BUCKET}/{folder}", recursive=True, allow_not_found=True)
        found = self.system.get_file_info(below)
        return sorted(it.path for it in found if it.is_file)

    def __enter__(self) -> Self:
        self._user.mkdir()
        (self._user / "credentials").write_text(
            f"[default]\naws_access_key_id = {_KEY}\naws_secret_access_key = {_SECRET}\n"
        )
        (self._user / "config").write_text(
            f"[default]\nregion = us-east-1\nendpoint_url = http://{self.endpoint}\n"
        )
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        REAPER.watch_process(self._process.pid)
        until(self._answers, 60, "the S3 server")
        self.system.create_dir(_BUCKET)
        return self

    def _answers(self) -> bool:
        try:
            urlopen(f"http://{self.endpoint}/", timeout=5).close()
        except HTTPError:
            return True
        except (URLError, OSError):
            return False
        return True

    def __exit__(self, *_exception: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._user)
