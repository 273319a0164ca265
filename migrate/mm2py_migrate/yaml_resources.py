"""The one Kubernetes resource that a YAML file is about.

Flow: file or standard input -> ``yaml.safe_load_all`` -> the document of a kind.
"""

import sys
from pathlib import Path
from typing import cast

import yaml

from mm2py.errors import ConfigError
from mm2py_migrate.from_strimzi import KIND


def resource_of(file: str) -> object:
    """Return the ``KafkaMirrorMaker2`` of a file with one or more documents; ``-`` is standard input.

    Raises:
        ConfigError: it cannot be read, is no YAML, or has none or several.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        documents = cast("list[object]", list(yaml.safe_load_all(text)))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", remedy="check the path") from None
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{file} is no YAML: {' '.join(str(error).split())}", remedy="correct the file"
        ) from None
    maps = (cast("dict[str, object]", it) for it in documents if isinstance(it, dict))
    found = [it for it in maps if it.get("kind") == KIND]
    if len(found) != 1:
        raise ConfigError(
            f"{file} has {len(found)} resources of kind {KIND}",
            remedy="give a file with one of them",
        )
    return found[0]
