"""Brokers of other releases than the pinned one, from the lists that scripts/resolve_jars.py writes."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.kit.kafka.jars import Jar, cache_dir, fetch
from tests.kit.kafka.region import Region
from tests.kit.regions import ANY_SESSION

_LISTS: Final = Path(__file__).parent.parent / "data"


def region_of(release: str, properties: Mapping[str, str] | None = None) -> Region:
    """Return a cluster of that release (2.4.1, 2.8.2, 4.4.0), to be started."""
    listed: dict[str, str] = json.loads((_LISTS / f"jars-{release}.json").read_text("utf-8"))
    jars = [Jar(coordinate, digest) for coordinate, digest in listed.items()]
    region = Region(f"kafka-{release}", properties=ANY_SESSION | dict(properties or {}))
    region.jars = fetch(jars, cache_dir() / "jars", os.environ.get("MM2PY_MAVEN_URL", ""))
    return region
