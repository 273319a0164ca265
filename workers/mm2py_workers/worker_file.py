"""``worker.properties`` of an ordinary Connect worker, distributed or standalone.

Flow: file -> texts, placeholders resolved, Java's defaults where ours are the dedicated mode's ->
``WorkerConfig`` and ``RestSettings``. Every problem of a file is reported at once, with its line.
Opens no connection.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from mm2py.config.class_names import SIMPLE_HEADER_CONVERTER
from mm2py.config.clients import connection_settings
from mm2py.config.definitions import ConfigModel, check_config, parse_config
from mm2py.config.derivation import PROVIDER_PREFIX
from mm2py.config.framework import converter_problem
from mm2py.config.override_policy import OverridePolicy, override_policy
from mm2py.config.properties import PropertiesFile, load
from mm2py.config.providers import Providers
from mm2py.config.rest_settings import RestSettings
from mm2py.config.secret_names import secrets_in
from mm2py.config.worker import (
    DEDICATED_DEFAULTS,
    ConnectWorkerConfig,
    ProcessConfig,
    RestOptions,
    StandaloneConfig,
    WorkerConfig,
)
from mm2py.errors import ConfigError
from mm2py.observability.logging import SecretMask
from mm2py.storage.config_state import ConnectorConfig, texts_of
from mm2py_workers.connect_arguments import ProblemsError
from mm2py_workers.task_host import PROCESSES

T = TypeVar("T")

_ROLES: Final = ("key", "value", "header")
_TOPICS: Final = ("config.storage.topic", "offset.storage.topic", "status.storage.topic")
_GROUP_DEFAULTS: Final = {
    name: java
    for name, (_, java) in DEDICATED_DEFAULTS.items()
    # Duplicates after a kill are as unwelcome here as in the dedicated mode.
    if name != "offset.flush.interval.ms"
}
_DEFAULTS: Final = {
    "bootstrap.servers": "localhost:9092",
    "header.converter": SIMPLE_HEADER_CONVERTER,
    **_GROUP_DEFAULTS,
}
# A standalone worker has neither a group nor topics; what asks for them is not built.
_STANDALONE: Final = {"group.id": "standalone", **dict.fromkeys(_TOPICS, "standalone")}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFile:
    """A checked worker file; ``props`` are its resolved texts, with this mode's defaults."""

    file: PropertiesFile
    props: Mapping[str, str]
    worker: WorkerConfig
    rest: RestSettings
    policy: OverridePolicy
    providers: Providers
    notices: tuple[str, ...]
    standalone: bool

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def offsets(self) -> Path:
        return Path(parse_config(StandaloneConfig, self.props).offset_storage_file_filename)

    def resolve(self, config: ConnectorConfig) -> dict[str, str]:
        """Replace the placeholders of a connector's or task's config; ``ConfigError``: a declared
        provider does not have what one names; it is no password to try."""
        resolved: dict[str, str] = {}
        for key, text in texts_of(config).items():
            resolved[key], problem = self.providers.resolve_or_explain(text, undeclared=False)
            if problem:
                raise ConfigError(
                    f"{key}: {problem}",
                    remedy="correct it, or put the value where the config provider looks",
                )
        return resolved

    def secrets(self) -> frozenset[str]:
        """Return what must not be shown, as far as the file knows it."""
        return self.providers.secrets | secrets_in(self.props)


def load_worker_file(
    path: Path | str,
    *,
    standalone: bool,
    insecure: bool = False,
    environ: Mapping[str, str] | None = None,
) -> WorkerFile:
    """Read and check a worker file; ``ConfigError``: it cannot be read; ``ProblemsError`` with
    everything that is wrong in it."""
    file = load(path)
    findings = _FileProblems(file)
    try:
        providers = Providers.of(file.values, os.environ if environ is None else environ)
    except ConfigError as error:
        raise ConfigError(f"{file.path}: {error.message}", remedy=error.remedy) from None
    resolved = findings.resolved(providers)
    findings.refuse_now()
    props = _DEFAULTS | resolved
    models: list[type[ConfigModel]] = [
        ProcessConfig,
        WorkerConfig,
        RestOptions,
        ConnectWorkerConfig,
    ]
    if standalone:
        props = _STANDALONE | props
        models = [ProcessConfig, WorkerConfig, RestOptions, StandaloneConfig]
    for model in models:
        findings.check(model, props)
    findings.converters(props)
    if not standalone:
        findings.topics(props)
    findings.refuse_now()
    worker = findings.tried(lambda: parse_config(WorkerConfig, props))
    rest = findings.tried(
        lambda: RestSettings.of_worker(resolved, insecure=insecure, origin=findings.place)
    )
    policy = (
        None
        if worker is None
        else findings.tried(
            partial(
                override_policy,
                worker.connector_client_config_override_policy,
                worker.connector_client_config_override_allowlist,
            )
        )
    )
    findings.tried(lambda: connection_settings(props, scope=file.path))
    findings.refuse_now()
    assert worker is not None, "or it was refused"
    assert rest is not None, "or it was refused"
    assert policy is not None, "or it was refused"
    at_least_once = {"exactly_once_source_support": "disabled"} if standalone else {}
    return WorkerFile(
        file=file,
        props=props,
        worker=worker.model_copy(update=at_least_once),
        rest=rest,
        policy=policy,
        providers=providers,
        notices=tuple(_notices(resolved, worker, standalone=standalone)),
        standalone=standalone,
    )


def _notices(props: Mapping[str, str], worker: WorkerConfig, *, standalone: bool) -> Iterator[str]:
    if props.get("plugin.path", "").strip():
        yield (
            "plugin.path has no effect: connectors are Python packages with an entry point of group"
            " mm2py.connectors, and the mirror connectors are built in"
        )
    if standalone and worker.leader_writes_in_transactions:
        yield (
            f"exactly.once.source.support={worker.exactly_once_source_support} has no effect: a "
            "standalone worker keeps its offsets in a file, so records are copied at least once"
        )
    if standalone and props.get(PROCESSES, "0").strip() != "0":
        yield f"{PROCESSES} has no effect: tasks of a standalone worker live in its own process"


class _FileProblems:
    """What is wrong with a file, each with its line."""

    def __init__(self, file: PropertiesFile) -> None:
        self._file = file
        self._found: list[ConfigError] = []
        self._provided: frozenset[str] = frozenset()

    def place(self, name: str) -> str:
        """Return ``file:line`` of a property, the file where it has no such line."""
        entry = self._file.get(name)
        return self._file.path if entry is None else self._file.where(entry.line)

    def refuse_now(self) -> None:
        """Raise what was found, without providers' values: a secret may be misplaced."""
        if self._found:
            hidden = SecretMask().extended(self._provided).apply
            raise ProblemsError(
                [ConfigError(hidden(it.message), remedy=hidden(it.remedy)) for it in self._found]
            )

    def resolved(self, providers: Providers) -> dict[str, str]:
        texts: dict[str, str] = {}
        for key, raw in self._file.values.items():
            # A provider's own properties are read before any provider is there.
            if key.startswith(PROVIDER_PREFIX):
                texts[key] = raw
                continue
            try:
                texts[key], problem = providers.resolve_or_explain(raw)
            except ConfigError as error:
                self._add(key, error.message, error.remedy)
                continue
            if problem:
                self._add(key, problem, providers.remedy(raw))
        self._provided = providers.secrets
        return texts

    def check(self, model: type[ConfigModel], props: Mapping[str, str]) -> None:
        for problem in check_config(model, props):
            shown = "" if problem.value is None else f"={problem.value}"
            self._found.append(
                ConfigError(
                    f"{self.place(problem.name)}: {problem.name}{shown}: {problem.message}",
                    remedy=problem.remedy,
                )
            )

    def converters(self, props: Mapping[str, str]) -> None:
        for role in _ROLES:
            name = f"{role}.converter"
            problem = converter_problem(props.get(name, "").strip(), role) if name in props else ""
            if problem:
                self._add(name, problem, "name a converter of Kafka Connect")

    def topics(self, props: Mapping[str, str]) -> None:
        seen: dict[str, str] = {}
        for name in _TOPICS:
            topic = props.get(name, "").strip()
            if topic and topic in seen:
                self._add(
                    name,
                    f"names {topic}, as {seen[topic]} does",
                    "give each internal topic a name of its own",
                )
            seen[topic] = name

    def tried(self, read: Callable[[], T]) -> T | None:
        """Return what is read, None where it is wrong."""
        try:
            return read()
        except ConfigError as error:
            self._found.append(error)
            return None

    def _add(self, name: str, problem: str, remedy: str) -> None:
        self._found.append(ConfigError(f"{self.place(name)}: {name}: {problem}", remedy=remedy))
