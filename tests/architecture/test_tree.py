"""Rules about files that no other tool checks: size, ``__all__``, entry points, names in documents."""

import ast
import importlib
import pkgutil
import re
import subprocess
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest

pytestmark = pytest.mark.timeout(120)
"""It reads each file of the tree, beside whatever else the machine does."""

ROOT = Path(__file__).parents[2]
PRODUCT = (
    "mm2py",
    "connectors/mm2py_connectors",
    "workers/mm2py_workers",
    "cli/mm2py_cli",
    "jobs/mm2py_jobs",
    "migrate/mm2py_migrate",
)
WARN_LINES, MAX_LINES = 700, 900
# What users import; the names of kafka-python that we use.
FACES = (
    "mm2py/api/__init__.py",
    "mm2py/testing/__init__.py",
    "jobs/mm2py_jobs/spark/__init__.py",
    "mm2py/protocol/schema.py",
)
# In two halves, so that this file does not name what it forbids.
REGISTRY_HOSTS = [
    a + b
    for a, b in (
        ("pypi", ".org"),
        ("pythonhosted", ".org"),
        ("maven.apache", ".org"),
        ("repo1", ".maven"),
        ("registry.npm", "js"),
        ("crates", ".io"),
        ("proxy.go", "lang.org"),
    )
]
MACHINE_PATHS = ["/" + path for path in ("work/main", "work/shared", "work/notes", "root/")]
MODULE_NAME = re.compile(
    r"`(mm2py(?:_connectors|_workers|_cli|_jobs|_migrate)?(?:\.\w+)+)(?:\(.*?\))?`"
)
FILE_NAME = re.compile(
    r"`((?:mm2py|connectors|workers|cli|jobs|migrate|tests|bench|examples|docs|scripts)/[\w./-]+)`"
)


def python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.filterwarnings("default")
def test_no_file_is_longer_than_its_budget() -> None:
    lines = {
        shown(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files(*PRODUCT, "tests", "bench", "scripts")
    }
    for name, count in lines.items():
        if count > WARN_LINES:
            warnings.warn(f"{name} has {count} lines, the target is {WARN_LINES}", stacklevel=1)
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_only_faces_list_what_they_offer() -> None:
    wrong: list[str] = []
    for path in python_files(*PRODUCT, "bench", "scripts", "tests"):
        text = path.read_text(encoding="utf-8")
        if "__all__" not in text and path.name != "__init__.py" and shown(path) not in FACES:
            continue
        tree = ast.parse(text)
        lists = any(
            isinstance(target, ast.Name) and target.id == "__all__"
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        )
        if lists != (shown(path) in FACES):
            wrong.append(f"{shown(path)} has {'an' if lists else 'no'} __all__")
        is_package = path.name == "__init__.py" and shown(path) not in FACES
        if is_package and any(not isinstance(node, ast.Expr) for node in tree.body):
            wrong.append(f"{shown(path)} holds more than a docstring")
    assert wrong == []


def test_every_module_is_imported_and_has_what_it_offers() -> None:
    missing: list[str] = []
    for package_name in (Path(it).name for it in PRODUCT):
        package = importlib.import_module(package_name)
        for found in pkgutil.walk_packages(package.__path__, f"{package_name}."):
            module = importlib.import_module(found.name)
            offered = cast("list[str]", getattr(module, "__all__", []))
            missing += [f"{found.name}.{name}" for name in offered if not hasattr(module, name)]
    assert missing == []


def test_commands_and_connectors_of_the_wheel_exist() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = cast("dict[str, dict[str, dict[str, str]]]", document)["project"]
    points = [*project["scripts"].values()]
    for group in cast("dict[str, dict[str, str]]", project["entry-points"]).values():
        points += group.values()
    assert points
    for point in points:
        module, _, name = point.partition(":")
        assert hasattr(importlib.import_module(module), name), point


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"])
def test_names_of_code_in_the_documents_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    wrong = [name for name in MODULE_NAME.findall(text) if not _exists(name)]
    wrong += [name for name in FILE_NAME.findall(text) if not (ROOT / name).exists()]
    assert wrong == []


def test_names_in_the_drawings_of_architecture_exist() -> None:
    """A name with a slash, a dot or an underscore is a module, or a class with its method."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    modules = {shown(it).removesuffix(".py"): it for it in python_files(*PRODUCT)}
    drawn = {
        name
        for drawing in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for name in re.findall(r"\w+(?:[/.]\w+)*", drawing)
        if re.search(r"\w[/._]\w", name)
    }
    assert len(drawn) > 20
    assert [it for it in sorted(drawn) if not _is_drawn_right(it, modules)] == []


def _is_drawn_right(name: str, modules: Mapping[str, Path]) -> bool:
    if "." not in name:
        return any(f"/{module}".endswith(f"/{name}") for module in modules)
    if name.startswith("mm2py"):
        return _exists(name)
    owner, _, member = name.partition(".")
    needed = re.compile(rf"^class {owner}\b.*^    (?:async )?def {member}\b", re.M | re.S)
    return any(needed.search(it.read_text(encoding="utf-8")) for it in modules.values())


def test_a_batch_is_followed_through_at_most_eleven_files_and_three_stored_functions() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    drawing = text.split("## The way of a batch", 1)[1].split("```")[1]
    steps = re.findall(r"^ ?(?:\d+|  ) (\S+)", drawing, re.MULTILINE)
    files = {f"mm2py/{step}.py" for step in steps if "/" in step}
    files |= {f"connectors/mm2py_connectors/{step}.py" for step in steps if "/" not in step}
    assert [name for name in sorted(files) if not (ROOT / name).exists()] == []
    assert 8 < len(files) <= 11
    assert len(re.findall(r"\[\w+\]", drawing)) <= 3


def test_no_committed_file_names_a_registry_or_a_path_of_one_machine() -> None:
    forbidden = [*REGISTRY_HOSTS, *MACHINE_PATHS]
    pattern = [part for text in forbidden for part in ("-e", text)]
    found = subprocess.run(
        ["git", "grep", "--fixed-strings", "--line-number", "-I", *pattern],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if found.returncode not in (0, 1):
        pytest.skip("not a git checkout")
    assert found.stdout == ""


def _exists(name: str) -> bool:
    """Whether ``name`` is a module, or something within one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            if not hasattr(value, attribute):
                return False
            value = getattr(value, attribute)
        return True
    return False


def test_no_docstring_or_comment_of_the_product_is_wider_than_100_columns() -> None:
    """Drawings may stand out; of code the formatter decides."""
    assert [f"{shown(it)}:{line}" for it in python_files(*PRODUCT) for line in _wide(it)] == []


def _wide(path: Path) -> Iterator[int]:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    prose = {number for number, line in enumerate(lines, 1) if line.lstrip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose.update(range(node.lineno, (node.end_lineno or 0) + 1))
    for number in sorted(prose):
        line = lines[number - 1]
        if len(line) > 100 and not re.search(r"\S {2,}\S|\| ", line):
            yield number


def test_a_page_that_is_read_whole_stays_one() -> None:
    """The history of repairs is in git; the tables of faults and variables are beside their tests."""
    changes, rules = ((ROOT / it).read_text("utf-8") for it in ("CHANGELOG.md", "CONTRIBUTING.md"))
    assert len(changes.split()) <= 1_000
    assert len(rules.splitlines()) <= 80
