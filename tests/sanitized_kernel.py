"""pytest plug-in of ``make fuzz-kernel``: the C kernel, compiled with sanitizers, takes the place of the installed one.

``-p tests.sanitized_kernel`` before mm2py is imported; ``python -m tests.sanitized_kernel`` prints the library to preload.
"""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "mm2py.protocol._kernel"
FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def runtime() -> str:
    """Return the sanitizer's library, which has to be loaded before Python's own."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise SystemExit("gcc is not installed")
    found = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


def _install() -> None:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    builder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(builder)
    folder = Path(tempfile.mkdtemp(prefix="mm2py-kernel-"))
    try:
        library = builder.build_kernel(ROOT / "mm2py/protocol/kernel.c", folder, FLAGS)
        spec = importlib.util.spec_from_file_location(NAME, library)
        assert spec is not None
        assert spec.loader is not None
        kernel = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(kernel)
    finally:
        shutil.rmtree(folder)  # it stays mapped
    sys.modules[NAME] = kernel


if __name__ == "__main__":
    sys.stdout.write(runtime() + "\n")
else:
    _install()
