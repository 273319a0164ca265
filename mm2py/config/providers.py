"""Config providers: ``${file:path:key}``, ``${env:NAME}``, ``${dir:path:file}`` in values.

Flow: ``config.providers*`` of the file -> ``Providers`` -> ``resolve`` texts. As in Kafka none is
registered by default, and a placeholder is replaced once, not again. What was put in is remembered
as secret, so that logs can mask it. Java's class names of the three built-ins are known; no other
code is loaded.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from mm2py.config.class_names import PROVIDER_PACKAGE
from mm2py.config.client_properties import with_prefix
from mm2py.config.definitions import ConfigModel, Option, parse_config
from mm2py.config.java_regex import JavaPattern
from mm2py.config.java_values import JavaType, parse_list
from mm2py.config.properties import load
from mm2py.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Placeholder:
    """``${provider:key}`` or ``${provider:path:key}``, as Java's ``ConfigTransformer`` finds it."""

    text: str
    provider: str
    path: str
    key: str


_Provider = Callable[[str, str], str | None]
"""Returns the text for a path and a key, None where there is none."""


class Providers:
    """The providers that a file declares."""

    def __init__(self, declared: Mapping[str, _Provider]) -> None:
        self._declared = declared
        self._secrets: set[str] = set()

    @classmethod
    def of(cls, props: Mapping[str, str], environ: Mapping[str, str]) -> "Providers":
        """Build the providers that ``config.providers*`` of ``props`` declare; ``ConfigError``: a
        class is not one of the three, or a parameter is wrong."""
        declared: dict[str, _Provider] = {}
        for name in parse_list(props.get("config.providers", "")):
            prefix = f"config.providers.{name}."
            declared[name] = _build(
                f"{prefix}class",
                props.get(f"{prefix}class", "").strip(),
                with_prefix(props, f"{prefix}param."),
                environ,
            )
        return cls(declared)

    @property
    def secrets(self) -> frozenset[str]:
        """Every text that was put in for a placeholder so far."""
        return frozenset(self._secrets)

    def resolve_text(self, text: str) -> str:
        """Replace the placeholders of one value; what cannot be resolved stays as it is.
        ``ConfigError``: a provider refuses its path or cannot read it."""
        return self.resolve_or_explain(text)[0]

    def plain(self, text: str) -> str:
        """Return ``resolve_text`` of what is no secret, such as a switch: logs do not hide it."""
        return Providers(self._declared).resolve_text(text)

    def resolve(self, props: Mapping[str, str]) -> dict[str, str]:
        return {key: self.resolve_text(value) for key, value in props.items()}

    def resolve_or_explain(self, text: str, *, undeclared: bool = True) -> tuple[str, str]:
        """Return ``resolve_text``, and why its first placeholder that stays has no value, empty
        where all have one.

        What a value contains is no placeholder. Without ``undeclared`` those of providers that are
        not declared are text. ``ConfigError``: as ``resolve_text``.
        """
        parts, end, problem = list[str](), 0, ""
        # One pass over the text as written: what a value contains is no placeholder (as in Java).
        for start, variable in _variables(text):
            placeholder = _placeholder(variable)
            if placeholder is None:
                continue
            value = self._value(placeholder)
            if value is None and (undeclared or placeholder.provider in self._declared):
                problem = problem or self._why_none(placeholder)
            parts += (text[end:start], variable if value is None else value)
            end = start + len(variable)
        return "".join((*parts, text[end:])), problem

    def remedy(self, text: str) -> str:
        """Return what to do where a placeholder of a text has no value."""
        if all(it.provider in self._declared for it in placeholders(text)):
            return "set the variable, or the file and its key, where the worker runs"
        return (
            "declare it with config.providers and config.providers.<name>.class, or write the value"
        )

    def _value(self, placeholder: Placeholder) -> str | None:
        provider = self._declared.get(placeholder.provider)
        value = None if provider is None else provider(placeholder.path, placeholder.key)
        if value:
            # An empty text is no secret: masking it would hide everything.
            self._secrets.add(value)
        return value

    def _why_none(self, placeholder: Placeholder) -> str:
        if placeholder.provider in self._declared:
            return f"{placeholder.text} is not found"
        return f"{placeholder.text}: config provider {placeholder.provider!r} is not declared"


def placeholders(text: str) -> list[Placeholder]:
    """Return every ``${provider:[path:]key}`` of a text; ``${name}`` without a colon is text, as in
    Java."""
    variables = (_placeholder(variable) for _, variable in _variables(text))
    return [each for each in variables if each is not None]


def _variables(text: str) -> Iterator[tuple[int, str]]:
    """Yield position and text of every ``${...}``, in linear time for any text."""
    start = text.find("${")
    while start >= 0:
        end = text.find("}", start + 2) + 1
        if not end:
            return
        yield start, text[start:end]
        start = text.find("${", end)


def _placeholder(variable: str) -> Placeholder | None:
    """Split at the first two colons, as ``ConfigTransformer.DEFAULT_PATTERN`` does."""
    # At most three parts: a key may have colons.
    provider, *rest = variable[2:-1].split(":", 2)
    if not rest:
        return None
    return Placeholder(variable, provider, rest[0] if len(rest) > 1 else "", rest[-1])


def _build(
    prop: str, class_name: str, parameters: Mapping[str, str], environ: Mapping[str, str]
) -> _Provider:
    bare = class_name.removeprefix(PROVIDER_PACKAGE)
    config = parse_config(ProviderConfig, parameters)
    allowed = [Path(path) for path in config.allowed_paths]
    if bare == "FileConfigProvider":
        return partial(_from_file, allowed)
    if bare == "DirectoryConfigProvider":
        return partial(_from_directory, allowed)
    if bare == "EnvVarConfigProvider":
        pattern = config.allowlist_pattern
        try:
            usable = JavaPattern(pattern) if pattern else None
        except ConfigError as error:
            name = f"{prop.removesuffix('class')}param.allowlist.pattern"
            raise ConfigError(f"{name}={pattern}: {error.message}", remedy=error.remedy) from None
        return partial(_from_environment, environ, usable)
    raise ConfigError(
        f"{prop}={class_name}: not a config provider of this product"
        if class_name
        else f"{prop} is missing",
        remedy=f"use {PROVIDER_PACKAGE}FileConfigProvider, EnvVarConfigProvider or "
        "DirectoryConfigProvider",
    )


class ProviderConfig(ConfigModel):
    """Parameters of the config providers: ``config.providers.<name>.param.<key>``."""

    allowed_paths: Annotated[tuple[str, ...], Option(
        JavaType.LIST, "Folders that files may be in; empty: all. Of files and directories.",
    )] = ()  # fmt: skip
    allowlist_pattern: Annotated[
        str, Option(JavaType.STRING, "Pattern of the variables that may be used; empty: all.")
    ] = ""


def _permitted(path: Path, allowed: list[Path]) -> bool:
    if not allowed:
        return True
    # Resolved, so that neither `..` nor a link leads out of what is allowed.
    real = path.resolve()
    return any(real.is_relative_to(root.resolve()) for root in allowed)


def _from_file(allowed: list[Path], path: str, key: str) -> str | None:
    """``FileConfigProvider``: a key of a properties file, which Java gives a reader in UTF-8."""
    if not path:
        return None
    if not _permitted(Path(path), allowed):
        raise ConfigError(f"file {path} is outside allowed.paths", remedy="extend allowed.paths")
    return load(path, encoding="utf-8").values.get(key)


def _from_directory(allowed: list[Path], path: str, key: str) -> str | None:
    """``DirectoryConfigProvider``: the content of a file, as Kubernetes mounts secrets."""
    if not path:
        return None
    file = Path(path) / key
    # A key with a slash or ``..`` would leave the directory.
    if Path(key).name != key or not _permitted(file, allowed):
        raise ConfigError(
            f"file {file} is outside its directory or allowed.paths",
            remedy="name a file of the directory, extend allowed.paths",
        )
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"file {file} cannot be read ({error})", remedy="make it readable text"
        ) from None


def _from_environment(
    environ: Mapping[str, str], allowed: JavaPattern | None, path: str, key: str
) -> str | None:
    """``EnvVarConfigProvider``: an environment variable."""
    if path:
        raise ConfigError(
            f"${{env:{path}:{key}}}: the environment has no paths", remedy="write ${env:NAME}"
        )
    if allowed is not None and not allowed.matches(key):
        return None
    return environ.get(key)
