"""Counts what a newcomer has to carry: ``python -m scripts.house`` prints lines, files, words and how far a change reaches.

Flow: files that git tracks -> the syntax tree of each -> a row a figure. Lines are all lines of Python, code is without blank lines, comments
and docstrings. Runs nothing of the product.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
HEART: Final = {"mm2py": "", "mm2py_connectors": "connectors", "mm2py_workers": "workers"}
EXTRAS: Final = {"mm2py_jobs": "jobs", "mm2py_migrate": "migrate"}
SMALL: Final = 80
_SKIPPED: Final = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING}
_SKIPPED_MARKS: Final = {tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def tracked(*patterns: str) -> list[Path]:
    """Return the files of the checkout that match."""
    found = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / it for it in found.stdout.splitlines() if (ROOT / it).exists()]


def lines_of(paths: Iterable[Path]) -> int:
    """Return how many lines they have."""
    return sum(len(it.read_text("utf-8").splitlines()) for it in paths)


def code_lines(path: Path) -> int:
    """Return how many lines hold code."""
    text = path.read_text("utf-8")
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SKIPPED | _SKIPPED_MARKS:
            held.update(range(token.start[0], token.end[0] + 1))
    return len(held - prose)


def modules(packages: Mapping[str, str]) -> dict[str, Path]:
    """Return the modules of packages by their dotted names."""
    found: dict[str, Path] = {}
    for package, folder in packages.items():
        base = ROOT / folder
        for path in tracked(f"{folder}/{package}/*.py".lstrip("/")):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports_of(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of ours that a file imports."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def single_importers(known: Mapping[str, Path]) -> list[str]:
    """Return small modules that one other module imports: rooms with one door."""
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for name, path in known.items():
        for target in imports_of(path, known):
            importers[target].add(name)
    return [
        name
        for name, path in sorted(known.items())
        if len(importers[name]) == 1 and lines_of([path]) < SMALL and path.name != "__init__.py"
    ]


def spellings(name: str, paths: Iterable[Path]) -> dict[str, int]:
    """Return the files that spell a property's name in code, and how often."""
    found: Counter[str] = Counter()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and node.value == name:
                found[str(path.relative_to(ROOT))] += 1
    return dict(found)


def words(paths: Iterable[Path]) -> int:
    """Return how many words a reader has to read."""
    return sum(len(re.findall(r"\S+", it.read_text("utf-8"))) for it in paths)


def main() -> None:
    """Print the figures."""
    heart, extras = modules(HEART), modules(EXTRAS)
    wheel = {**heart, **extras}
    tests = tracked("tests/*.py")
    docs = tracked("docs/*.md")
    rows = [
        ("mm2py, connectors, workers", lines_of(heart.values()), f"{len(heart)} files"),
        ("jobs, migrate", lines_of(extras.values()), f"{len(extras)} files"),
        ("the wheel", lines_of(wheel.values()), f"{len(wheel)} files"),
        ("code in the wheel", sum(map(code_lines, wheel.values())), "lines"),
        ("tests", lines_of(tests), f"{len(tests)} files"),
        ("bench, examples, scripts", lines_of(tracked("bench/*.py", "examples/*.py", "scripts/*.py")), "lines"),
        ("docs", words(docs), f"words in {len(docs)} pages"),
        ("CHANGELOG", words([ROOT / "CHANGELOG.md"]), "words"),
        (f"one importer, below {SMALL} lines", len(single_importers(wheel)), "modules"),
        (
            "flow.max.bytes.per.second",
            sum(spellings("flow.max.bytes.per.second", wheel.values()).values()),
            "spellings",
        ),
    ]  # fmt: skip
    for name, count, unit in rows:
        print(f"{name:32} {count:>8,} {unit}")


if __name__ == "__main__":
    main()
