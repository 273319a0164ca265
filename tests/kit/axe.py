"""axe-core, which measures WCAG in a browser: a pinned package of npm -> the cache of this user, its hash checked.

Flow: ``axe_script`` -> the text of ``axe.min.js`` (MPL-2.0, not distributed with this project) -> a test evaluates it in the page.
"""

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from tests.kit.kafka.jars import cache_dir

VERSION: Final = "4.14.1"
SHA256: Final = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
"""Of ``axe.min.js``."""
_MEMBER: Final = "package/axe.min.js"
_NPM_S: Final = 120.0


class AxeMissingError(Exception):
    """There is no axe-core, and it cannot be had; the message says why."""


def axe_script() -> str:
    """Return ``axe.min.js``, from the cache if it is there.

    Raises:
        AxeMissingError: npm is missing, or does not reach its registry.
    """
    kept = cache_dir() / f"axe-{VERSION}.min.js"
    if not _is_intact(kept):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            _unpacked(Path(folder)).replace(kept)
    assert _is_intact(kept), f"axe-core {VERSION} of the registry is not the pinned one"
    return kept.read_text(encoding="utf-8")


def _is_intact(file: Path) -> bool:
    return file.exists() and hashlib.sha256(file.read_bytes()).hexdigest() == SHA256


def _unpacked(folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise AxeMissingError("no npm: apt-get install npm")
    try:
        subprocess.run(
            [npm, "pack", "--silent", f"axe-core@{VERSION}"],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=_NPM_S,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise AxeMissingError(f"npm has no axe-core {VERSION}: {error.stderr!s}") from error
    with tarfile.open(folder / f"axe-core-{VERSION}.tgz") as archive:
        archive.extract(_MEMBER, folder, filter="data")
    return folder / _MEMBER
