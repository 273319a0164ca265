"""Builds the optional C kernel of mm2py.protocol where a C compiler and Python's headers are.

Flow: mm2py/protocol/kernel.c -> the shared library beside it (editable) or in the wheel. Without a
compiler the install goes on with one warning line, and the Python twins of the loops are used.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER: Final = "mm2py/protocol"
COMPILERS: Final = ("cc", "gcc", "clang")
FLAGS: Final = ("-O2", "-shared", "-fPIC", "-Wall", "-Wextra")
COMPILE_SECONDS: Final = 120


def build_kernel(source: Path, folder: Path, flags: tuple[str, ...] = ()) -> Path:
    """Compile ``source`` into ``folder``; a library that is there is replaced in one step.

    Raises:
        OSError: there is no compiler or no Python headers, or the compiler failed.
    """
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").exists():
        raise OSError("Python's headers are not installed")
    wanted = os.environ.get("CC", "").split()
    compiler = wanted or [found for found in map(shutil.which, COMPILERS) if found][:1]
    if not compiler:
        raise OSError("there is no C compiler on PATH")
    if sys.platform == "darwin":
        flags += ("-undefined", "dynamic_lookup")
    target = folder / f"_kernel{sysconfig.get_config_var('EXT_SUFFIX')}"
    made = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    command = [*compiler, *FLAGS, *flags, f"-I{include}", str(source), "-o", str(made)]
    try:
        done = subprocess.run(  # noqa: S603 - the compiler that the user has
            command, check=False, capture_output=True, text=True, timeout=COMPILE_SECONDS
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise OSError(f"{compiler[0]}: {next((x for x in lines if 'error' in x), lines[-1])}")
        made.replace(target)  # a running process keeps the library that it has mapped
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{compiler[0]} took longer than {COMPILE_SECONDS} s") from error
    finally:
        made.unlink(missing_ok=True)
    return target


class KernelBuildHook(BuildHookInterface[BuilderConfig]):
    """Hatchling finds it by its base class."""

    PLUGIN_NAME = "custom"
    _built: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        """Compile before the files of a wheel are collected; not for an sdist, nor with ``MM2PY_NATIVE=0``."""
        if self.target_name != "wheel" or os.environ.get("MM2PY_NATIVE") == "0":
            return
        folder = Path(self.root, FOLDER)
        try:
            if version == "editable":
                build_kernel(folder / "kernel.c", folder)
                return
            self._built = tempfile.TemporaryDirectory(prefix="mm2py-kernel-")
            library = build_kernel(folder / "kernel.c", Path(self._built.name))
        except OSError as error:
            self.app.display_warning(f"mm2py is installed without its C kernel: {error}")
            return
        build_data["force_include"] = {str(library): f"{FOLDER}/{library.name}"}
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, object], artifact_path: str) -> None:
        """Drop what was compiled for a wheel, once it is packed."""
        if self._built is not None:
            self._built.cleanup()
