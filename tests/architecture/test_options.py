"""One declaration per property: each is read where it says so, and nothing else is read."""

import functools
import importlib
import re
from collections.abc import Iterator

import pytest

from mm2py.config.client_options import CLIENT_OPTIONS
from mm2py.config.definitions import ConfigModel, Effect, Option, options_of
from tests.architecture.property_reads import KeyRead, Reads, modules_with

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
