"""The C kernel is optional: built where a compiler is, switched off on request, never half trusted."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from mm2py.protocol.kernel import SWITCH, load_kernel

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "mm2py/protocol/kernel.c"


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def require_compiler() -> None:
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler on PATH")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        pytest.skip("no Python headers")


def in_python(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.parametrize(
    ("environ", "module"),
    [
        ({SWITCH: "0"}, "mm2py.protocol._kernel"),
        ({}, "mm2py.protocol._no_such_kernel"),
        ({}, "struct"),
    ],
    ids=["switched off", "not built", "of another interface"],
)
def test_without_a_kernel_of_ours_python_does_it(environ: dict[str, str], module: str) -> None:
    assert load_kernel(environ, module) is None


USERS = """
from mm2py.protocol import batch_stage as stage, record_bytes as record
from mm2py.protocol.kernel import native
names = [(stage, "sign"), (stage, "scan")]
names += [(record, name) for name in ("borders", "renumber", "join", "same")]
print(native is None, {getattr(it, name) is getattr(it, "plain_" + name) for it, name in names})
"""


@pytest.mark.parametrize("switch", ["0", ""])
def test_every_user_takes_the_kernel_where_it_is_and_may_be_used(switch: str) -> None:
    """That both give the same answers is among the properties."""
    plain = load_kernel({SWITCH: switch}) is None
    done = in_python(USERS, **{SWITCH: switch})
    assert done.stdout.split() == [str(plain), f"{{{plain}}}"], done.stderr


@pytest.mark.timeout(120)  # a compiler, on a machine that may be busy
@pytest.mark.parametrize("flag", ["-DHARDWARE_CRC_WHERE_IT_IS", "-DPORTABLE_CRC"])
def test_it_compiles_without_warnings_and_gives_the_known_answer(tmp_path: Path, flag: str) -> None:
    require_compiler()
    builder = load("hatch_build", ROOT / "hatch_build.py")
    library = builder.build_kernel(SOURCE, tmp_path, ("-Werror", flag))
    assert [found.name for found in tmp_path.iterdir()] == [library.name]
    # In a process of its own: a C module that was loaded from elsewhere keeps its state.
    done = in_python(
        "import _kernel;"
        "from mm2py.protocol.kernel import load_kernel;"
        "assert load_kernel({}, '_kernel') is _kernel;"
        f"print(_kernel.__file__ == {str(library)!r}, hex(_kernel.crc32c(b'123456789')))",
        PYTHONPATH=str(tmp_path),
    )
    assert done.stdout.split() == ["True", "0xe3069283"], done.stderr


def test_without_a_compiler_the_builder_says_so(tmp_path: Path) -> None:
    code = (
        "import hatch_build; from pathlib import Path\n"
        "try: hatch_build.build_kernel(Path('mm2py/protocol/kernel.c'), Path('/nowhere'))\n"
        "except OSError as error: print(error)"
    )
    done = in_python(code, PATH=str(tmp_path), CC="")
    assert done.stdout.startswith(("there is no C compiler", "Python's headers")), done.stderr
