"""One declaration per property: each is read where it says so, and nothing else is read.

Flow: sources -> ``Reads.of`` -> names of properties, by an attribute of a config model or by the text of a
name. A receiver is known by its annotation, by the model that ``parse_config`` makes, or because it was assigned
from such a one; a key by its literal, its constant or its f-string.
"""

import ast
import functools
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from mm2py.config.client_options import CLIENT_OPTIONS
from mm2py.config.definitions import ConfigModel, Effect, Option, options_of

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


# -- one declaration per property


pytestmark = pytest.mark.timeout(180)  # the whole product is read, also on a loaded machine
PROPERTY = re.compile(r"[a-z][a-z0-9-]*(\.[a-z0-9-]+)+")
NO_PROPERTIES = frozenset(
    {
        "mirror.topics.blacklist",
        "mirror.topics.whitelist",
        "mm2py.caller",
        "mm2py.certificate",
        "mm2py-producers.internal",
        "producer.type",
        "state.v2",
        "transaction.version",
    }
)
"""A topic, members of an ASGI scope and of a stored JSON object, and a broker feature, that look like properties; and three
properties of the Scala clients, which only files of MirrorMaker 1 have (docs/moving/from-mirror-maker-1-and-strimzi.md)."""


def _models(base: type[ConfigModel] = ConfigModel) -> Iterator[type[ConfigModel]]:
    for model in base.__subclasses__():
        if not model.__module__.startswith(("tests", "test_")):
            yield model
            yield from _models(model)


for _module in modules_with(r"class \w+\([^)]*(ConfigModel|Config|Options|Policies)\)"):
    importlib.import_module(_module)  # so that its models are known

MODELS = {model.__name__: model for model in _models() if model.__module__.startswith("mm2py")}
OPTIONS = {
    (name, option.name): option
    for name, model in MODELS.items()
    for option in options_of(model).values()
}
NAMES = frozenset({name for _, name in OPTIONS}) | frozenset(CLIENT_OPTIONS)


@functools.cache
def reads() -> Reads:
    return Reads.of(MODELS)


@functools.cache
def read_fields() -> frozenset[tuple[str, str]]:
    """Return (class that declares it, field) of every field that is read as an attribute."""
    return frozenset(
        (_declarer(MODELS[name], field), field)
        for name, fields in reads().attributes.items()
        for field in fields
        if field in MODELS[name].model_fields
    )


def _declarer(model: type[ConfigModel], field: str) -> str:
    """Return the class of which a model has a field."""
    bases = [it for it in model.__mro__ if field in getattr(it, "__annotations__", {})]
    return bases[-1].__name__


@functools.cache
def read_options() -> frozenset[Option]:
    """Return the declarations that a model is read by; a connector lists what its filters read, too."""
    return frozenset(
        option
        for (name, _), option in OPTIONS.items()
        if (_declarer(MODELS[name], option.field), option.field) in read_fields()
    )


def is_read(option: Option) -> bool:
    return option in read_options() or any(read.reads(option.name) for read in reads().keys)


def test_the_models_of_all_parts_are_known() -> None:
    assert {"WorkerConfig", "MirrorSourceTaskConfig", "SecurityOptions", "RestOptions"} <= set(
        MODELS
    )
    assert len(NAMES) > 250


@pytest.mark.timeout(120)
def test_every_declared_property_that_has_an_effect_is_read() -> None:
    honoured = {key: it for key, it in OPTIONS.items() if it.effect is Effect.HONOURED}
    unread = {name for (_, name), it in honoured.items() if not is_read(it)}
    assert not unread, "read them, or declare their effect"


@pytest.mark.timeout(120)
def test_every_property_that_is_read_by_its_name_is_declared() -> None:
    undeclared = [f"{read.place}: {text}" for read in reads().keys for text in _undeclared(read)]
    assert not undeclared, "declare them as an Option"


def _undeclared(read: KeyRead) -> Iterator[str]:
    if PROPERTY.fullmatch(read.text) and read.text not in NAMES | NO_PROPERTIES:
        yield read.text


def test_a_read_is_found_by_literal_constant_and_pattern_and_no_other_name_is() -> None:
    assert KeyRead("x:1", "a.b").reads("a.b")
    assert not KeyRead("x:1", "a.b").reads("axb")
    assert any(read.reads("key.converter") for read in reads().keys)
    assert any(read.reads("config.providers") for read in reads().keys)
    assert not any(read.reads("no.such.property") for read in reads().keys)
