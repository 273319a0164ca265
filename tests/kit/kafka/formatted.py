"""What ``kafka-storage format`` writes, kept in the user cache: the next node of that release copies it and saves a JVM.

The feature levels in it depend on the release and the options alone; the identity is written anew.
"""

import hashlib
import re
import secrets
import shutil
import tempfile
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

from tests.kit.kafka.jars import cache_dir


@final
class FormattedFolder:
    """The formatted data folder of one release and the options of its format."""

    def __init__(self, release: str, options: Sequence[str]) -> None:
        key = hashlib.sha256("\0".join((release, *options)).encode()).hexdigest()[:16]
        self._kept = cache_dir() / "formatted" / key

    def copy_to(self, folder: Path, cluster_id: str, node_id: str) -> bool:
        """Write a data folder; False: none is kept yet."""
        if not self._kept.is_dir():
            return False
        shutil.copytree(self._kept, folder)
        file = folder / "meta.properties"
        text = file.read_text("ascii")
        for key, value in (
            ("cluster.id", cluster_id),
            ("node.id", node_id),
            ("directory.id", random_id()),
        ):
            text = re.sub(rf"(?m)^{re.escape(key)}=.*$", f"{key}={value}", text)
        file.write_text(text, "ascii")
        return True

    def keep(self, folder: Path) -> None:
        """Keep what was formatted just now; a cache that cannot be written does without."""
        with suppress(OSError):
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            own = Path(tempfile.mkdtemp(dir=self._kept.parent))
            shutil.copytree(folder, own, dirs_exist_ok=True)
            if self._kept.exists():
                shutil.rmtree(own)
            else:
                own.rename(self._kept)


def random_id() -> str:
    """Return a ``Uuid`` of Kafka for a cluster or a folder; none begins with a dash."""
    return "M" + urlsafe_b64encode(secrets.token_bytes(16)).decode()[1:22]
