"""Which properties the product reads: by an attribute of a config model, or by the text of a name.

Flow: sources -> ``Reads.of`` -> names of properties. A receiver is known by its annotation, by the model that
``parse_config`` makes, or because it was assigned from such a one; a key by its literal, its constant or its f-string.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("mm2py", "connectors/mm2py_connectors", "workers/mm2py_workers")
_ANY: Final = "\0"
_NOT_PRODUCT: Final = ("mm2py/testing", "tests/kit/kafka")


@dataclass(frozen=True)
class KeyRead:
    """One read of a mapping by a text; ``pattern`` is there where a part of the text is not known."""

    place: str
    text: str
    pattern: re.Pattern[str] | None = None

    def reads(self, name: str) -> bool:
        """Whether it may be the property ``name``."""
        if self.pattern is None:
            return name == self.text
        return self.pattern.fullmatch(name) is not None


@dataclass
class _Module:
    path: str
    nodes: list[ast.AST]
    constants: dict[str, str]


@dataclass
class Reads:
    """What the product reads.

    ``attributes``: name of a model to the fields that are read of it; ``keys``: reads of a mapping by a text.
    """

    attributes: dict[str, set[str]]
    keys: list[KeyRead]

    @classmethod
    def of(cls, models: Iterable[str]) -> "Reads":
        """Find all reads in the product; ``models`` are the names of the config models."""
        known, modules = frozenset(models), list(_modules())
        holders = _holders([node for module in modules for node in module.nodes], known)
        shared = {name: text for module in modules for name, text in module.constants.items()}
        attributes: dict[str, set[str]] = {}
        keys: list[KeyRead] = []
        for module in modules:
            for node in module.nodes:
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    for model in _held(node.value, holders, known):
                        attributes.setdefault(model, set()).add(node.attr)
            keys += _key_reads(module, {**shared, **module.constants})
        return cls(attributes, keys)


def modules_with(pattern: str) -> Iterator[str]:
    """Yield the names of the product's modules whose source has a line with ``pattern``."""
    for folder, path in _files():
        if re.search(pattern, path.read_text(encoding="utf-8")):
            yield ".".join(path.relative_to((ROOT / folder).parent).with_suffix("").parts)


def _files() -> Iterator[tuple[str, Path]]:
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.relative_to(ROOT).as_posix().startswith(_NOT_PRODUCT):
                yield folder, path


def _modules() -> Iterator[_Module]:
    for _, path in _files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        name = path.relative_to(ROOT).as_posix()
        yield _Module(name, list(ast.walk(tree)), dict(_constants(tree.body)))


def _constants(body: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    for name, value in (pair for node in body for pair in _assignments(node)):
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield name, value.value


def _holders(nodes: list[ast.AST], models: frozenset[str]) -> Mapping[str, set[str]]:
    """Return which models a name may hold: arguments, attributes, functions and properties."""
    found: dict[str, set[str]] = {}
    assignments: list[tuple[str, ast.expr]] = []

    def note(name: str, kinds: Iterable[str]) -> bool:
        if not name:
            return False
        before = len(found.setdefault(name, set()))
        found[name].update(kinds)
        return len(found[name]) > before

    for node in nodes:
        for name, annotation in _annotations(node):
            note(name, _named(annotation) & models)
        assignments += _assignments(node)
    changed = True
    while changed:
        changed = False
        for name, value in assignments:
            changed |= note(name, _held(value, found, models))
    return {name: kinds for name, kinds in found.items() if kinds}


def _annotations(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.arg) and node.annotation is not None:
        yield node.arg, node.annotation
    elif isinstance(node, ast.AnnAssign):
        yield _last_name(node.target), node.annotation
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
        yield node.name, node.returns


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield _last_name(node.target), node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield _last_name(target), node.value
    elif isinstance(node, ast.keyword) and node.arg is not None:
        yield node.arg, node.value


def _held(value: ast.expr, found: Mapping[str, set[str]], models: frozenset[str]) -> set[str]:
    if isinstance(value, ast.IfExp):
        return _held(value.body, found, models) | _held(value.orelse, found, models)
    if isinstance(value, ast.Call):
        name = _last_name(value.func)
        made = {name} & models
        inside = [*value.args, *(it.value for it in value.keywords)]
        if name in ("parse_config", "tried"):
            for it in inside:
                made |= _named(it) & models
        return made | found.get(name, set())
    return set(found.get(_last_name(value), ()))


def _named(node: ast.expr) -> set[str]:
    names = {it.id for it in ast.walk(node) if isinstance(it, ast.Name)}
    for it in ast.walk(node):
        if isinstance(it, ast.Constant) and isinstance(it.value, str):
            names |= set(re.findall(r"\w+", it.value))
    return names


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return ""


def _key_reads(module: _Module, constants: Mapping[str, str]) -> Iterator[KeyRead]:
    """Yield the reads of a module; a name means any text that is assigned to it in the module."""
    patterns = {name: {text} for name, text in constants.items()}
    for node in module.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = _pattern(node.value)
            if text:
                patterns.setdefault(node.targets[0].id, set()).add(text)
    for node in module.nodes:
        key = _key(node)
        if key is None:
            continue
        texts = patterns.get(key.id, ()) if isinstance(key, ast.Name) else {_pattern(key)} - {""}
        for text in texts:
            parts = [re.escape(part) for part in text.split(_ANY)]
            pattern = re.compile(r"[\w.-]+".join(parts)) if _ANY in text else None
            yield KeyRead(f"{module.path}:{key.lineno}", text, pattern)


def _key(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute):
        return node.args[0] if node.func.attr in ("get", "pop") else None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return node.slice
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return node.left
    return None


def _pattern(node: ast.expr) -> str:
    """Return a text, its unknown parts as ``_ANY``; empty where it has no part of a property's name."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return ""
    texts = [
        it.value if isinstance(it, ast.Constant) and isinstance(it.value, str) else None
        for it in node.values
    ]
    if not any(text is not None and text.strip(".") for text in texts):
        return ""
    return "".join(_ANY if text is None else text for text in texts)
