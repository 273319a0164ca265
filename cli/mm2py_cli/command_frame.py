"""The frame of a command: options from the types of its parameters, one exit code, an error in one
line on stderr.

Flow: ``framed(command)`` -> a function for typer, where a dataclass stands for the options of its
fields and a ``Printer`` for ``--output`` -> their values as objects again -> ``command`` ->
``end_with``.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, NoReturn, cast, get_origin

import typer

from mm2py_cli.output import DebugOption, Output, OutputOption, Printer, end_with


def framed(
    command: Callable[..., int], adjusted: Callable[[typer.Context, object], object] | None = None
) -> Callable[..., NoReturn]:
    """Return a command for typer, ended by the exit code of ``command``.

    Args:
        command: what it does; keyword arguments.
        adjusted: takes each object of a dataclass and how the command was called, and returns what
            ``command`` gets in its place.
    """
    own = inspect.signature(command).parameters
    shown = [
        option for it in own.values() for option in _options(it.name, it.annotation, it.default)
    ]
    if "debug" not in own:
        shown += _options("debug", DebugOption, default=False)
    if "context" not in own:
        shown += _options("context", typer.Context)

    def run(**values: object) -> NoReturn:
        context = cast("typer.Context", values["context"])

        def given(name: str, kind: object) -> object:
            if kind is Printer:
                return Printer(cast("Output", values["output"]))
            if not is_dataclass(kind):
                return values[name]
            made = cast("Callable[..., object]", kind)(
                **{it.name: given(it.name, it.type) for it in fields(kind) if _is_option(it.type)}
            )
            return made if adjusted is None else adjusted(context, made)

        arguments = {name: given(name, it.annotation) for name, it in own.items()}
        end_with(lambda: command(**arguments), debug=bool(values["debug"]))

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    # typer reads both.
    vars(run)["__signature__"] = inspect.Signature(shown)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


def options_of(kind: type) -> list[inspect.Parameter]:
    """Return a parameter for each field of a dataclass that is annotated as an option, also for
    those of the dataclasses in it."""
    return [
        option
        for it in fields(kind)
        if _is_option(it.type)
        for option in _options(
            it.name, it.type, inspect.Parameter.empty if it.default is MISSING else it.default
        )
    ]


def _is_option(kind: object) -> bool:
    return get_origin(kind) is Annotated or kind is Printer or is_dataclass(kind)


def _options(
    name: str, kind: object, default: object = inspect.Parameter.empty
) -> list[inspect.Parameter]:
    if is_dataclass(kind):
        return options_of(cast("type", kind))
    if kind is Printer:
        name, kind, default = "output", OutputOption, Output.TABLE
    only_by_name = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, only_by_name, default=default, annotation=kind)]
