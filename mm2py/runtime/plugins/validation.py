"""Checks connector configs as Connect does, in its order and words
(``AbstractHerder.validateConnectorConfig``).

Flow: config -> placeholders resolved -> keys of Connect and of the connector, one by one -> what
the connector checks of the whole -> client overrides -> ``ConfigInfos``. Reaches no cluster and
writes nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, cast, final

from mm2py.api.connector import ConnectorFactory
from mm2py.config.client_properties import with_prefix
from mm2py.config.connect_definitions import (
    ConfigInfos,
    ConfigKey,
    ConfigValue,
    check_value,
    described,
    override_option,
)
from mm2py.config.definitions import Option, Problem, options_of, parse_config
from mm2py.config.exactly_once import contradictions
from mm2py.config.framework import CONVERTER_CONFIGS, converter_class
from mm2py.config.java_regex import PatternList
from mm2py.config.java_values import invalid, parse_list, rendered
from mm2py.config.limits import limit_problem
from mm2py.config.override_policy import OverridePolicy
from mm2py.config.providers import placeholders
from mm2py.config.secret_names import names_a_secret, secrets_in
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ConfigError
from mm2py.observability.logging import HIDDEN, SecretMask
from mm2py.runtime.errors import BadRequestError
from mm2py.runtime.plugins.catalog import checked_keys, plugin_type, version_problem
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.plugins.transforms.chain import KINDS, model_of
from mm2py.runtime.plugins.transforms.keys import plugin_entries
from mm2py.storage.config_state import texts_of

_ENDING: Final = "Connector"
_BOUNDARY: Final = "transaction.boundary"
_SUPPORT: Final = "exactly.once.support"
_NULL: Final = "Null value can not be supplied as the configuration value."
_VERSIONS: Final = {
    f"{which}.converter.plugin.version": f"{which}.converter"
    for which in ("key", "value", "header")
}

_Props = Mapping[str, str | None]
_Texts = Mapping[str, str]
_Configs = list[tuple[ConfigKey | None, ConfigValue | None]]


@dataclass(slots=True)
class _Findings:
    """Values by name in the order of the definitions, and those without a definition."""

    values: dict[str, ConfigValue]
    undefined: list[ConfigValue]

    def add(self, name: str, error: str) -> None:
        value = self.values.get(name)
        if value is None:
            self.undefined.append(ConfigValue(name=name, value=None, errors=(error,)))
        else:
            self.values[name] = replace(value, errors=(*value.errors, error))

    def refuse(self, problem: Problem) -> None:
        reason = f"{problem.message}; {problem.remedy}" if problem.remedy else problem.message
        self.add(problem.name, invalid(problem.name, problem.value, reason))

    def count(self) -> int:
        return sum(len(it.errors) for it in (*self.values.values(), *self.undefined))


@final
class ConfigValidator:
    """``Validator`` over the connectors that are installed.

    Args:
        plugins: where connectors come from.
        resolve: resolves placeholders, and adds what the connector is given besides (in the
            dedicated mode the clusters of the file); the answer shows its values masked.
        policy: which client properties a config may override.
        mask: hides secrets in the answer.
        worker: the config of the worker that would run a connector with this config; None checks
            nothing of it.
    """

    def __init__(
        self,
        plugins: Plugins,
        *,
        resolve: Callable[[Mapping[str, str | None]], Mapping[str, str]],
        policy: OverridePolicy,
        mask: SecretMask,
        worker: Callable[[Mapping[str, str]], Mapping[str, str] | None] = lambda _: None,
    ) -> None:
        self._worker = worker
        self._plugins = plugins
        self._resolve = resolve
        self._policy = policy
        self._mask = mask

    async def validate(self, config: _Props, *, plugin: str | None = None) -> ConfigInfos:
        """Return what is wrong with a config; ``plugin`` is the name in the path, if there is one.

        Raises:
            BadRequestError: the config names no connector, an unknown one, or another than
                ``plugin``; or it does not fit a record of the config topic.
        """
        too_long = limit_problem(config.get("name") or "", config)
        if too_long:
            raise BadRequestError(too_long)
        factory = self._connector(config, plugin)
        props = self._resolved(config)
        definitions = {key.name: key for key in checked_keys(factory)}
        values = _each(definitions.values(), props)
        _check_version(factory, props, values)
        _check_boundary(factory, props, values)
        values.undefined += [
            ConfigValue(name=name, value=None, errors=(_NULL,))
            for name, value in props.items()
            if value is None and name not in definitions
        ]
        texts = texts_of(props)
        worker = self._worker(texts)
        _check_sink(factory, texts, worker, values)
        aliased = [entry for kind in KINDS for entry in plugin_entries(kind, texts)]
        values.values.update({key.name: value for key, value in aliased})
        enabled = worker is None or parse_config(WorkerConfig, worker).exactly_once
        _check_support(factory, texts, values, enabled=enabled)
        provided = {
            name: texts[name]
            for name, raw in config.items()
            if raw and texts[name] != raw and placeholders(raw)
        }
        secrets = secrets_in(texts).union(provided.values())
        self._ask_connector(factory, texts, values, worker)
        behind = [*_converters(texts), *self._overrides(factory, texts)]
        configs: _Configs = [(None, value) for value in values.undefined]
        keys = {name: described(option) for name, option in definitions.items()}
        keys |= {key.name: key for key, _ in aliased}
        configs += [(key, values.values[name]) for name, key in keys.items()]
        configs += behind
        return ConfigInfos(
            name=config["connector.class"] or "",
            error_count=values.count() + sum(1 for _, it in behind if it is not None and it.errors),
            groups=_groups(keys.values()) + _converter_groups(texts),
            configs=_masked(configs, self._mask.extended(secrets), provided),
        )

    def _connector(self, config: _Props, plugin: str | None) -> ConnectorFactory:
        given = config.get("connector.class")
        class_name = (given or "").strip()
        if class_name and plugin is not None and not _ends_alike(class_name, plugin):
            raise BadRequestError(
                f"Included connector type {class_name} does not match request type {plugin}"
            )
        if given is None:
            shown = ", ".join(sorted(f"{name}={HIDDEN}" for name in config if name != "name"))
            if "name" in config:
                shown = f"name={config['name']}{shown and ', ' + shown}"
            raise BadRequestError(f"Connector config {{{shown}}} contains no connector type")
        try:
            return self._plugins.find(class_name)
        except ConfigError as error:
            there = ", ".join(it.java_class for it in self._plugins.factories()) or "(none)"
            raise BadRequestError(
                "Failed to find any class that implements Connector and which name matches"
                f" {class_name}, available connectors are: {there}"
            ) from error

    def _resolved(self, config: _Props) -> _Props:
        try:
            resolved = self._resolve(config)
        except ConfigError as error:
            raise BadRequestError(self._mask.apply(error.message)) from error
        nulls = {name: None for name, value in config.items() if value is None}
        return {**resolved, **nulls}

    def _ask_connector(
        self, factory: ConnectorFactory, texts: _Texts, found: _Findings, worker: _Texts | None
    ) -> None:
        if found.count():
            return
        model = model_of(factory)
        problems = [] if model is None else model.cross_check(texts)
        if worker is not None and not problems:
            problems = contradictions(texts, worker)
        for problem in problems:
            found.refuse(problem)
        if found.count():
            return
        try:
            factory(texts)
        except ConfigError as error:
            # Our errors begin with `name=value:` where they are about one property.
            name = error.message.partition(":")[0].partition("=")[0].strip()
            found.add(name if name in found.values else "connector.class", str(error))

    def _overrides(self, factory: ConnectorFactory, texts: _Texts) -> _Configs:
        """Return an entry for each override of a client that the connector uses."""
        uses = ["consumer"]
        if texts.get("errors.deadletterqueue.topic.name"):
            uses = ["producer", "consumer", "admin"]
        if plugin_type(factory) == "source":
            creates = any(name.startswith("topic.creation.") for name in texts)
            uses = ["producer", "admin"] if creates else ["producer"]
        entries: _Configs = []
        for prefix in (f"{client}.override." for client in uses):
            for name, text in texts.items():
                if not name.startswith(prefix):
                    continue
                bare = name[len(prefix) :]
                option = override_option(bare)
                refusal = self._policy.refusal(bare)
                shown = HIDDEN if names_a_secret(name) else text
                value = ConfigValue(name=name, value=shown)
                if option is not None:
                    value = check_value(option, texts, prefix=prefix)
                if refusal:
                    value = replace(value, errors=(*value.errors, refusal))
                entries.append((None if option is None else described(option, prefix), value))
        return entries


def _masked(
    configs: _Configs, mask: SecretMask, provided: Mapping[str, str]
) -> tuple[tuple[ConfigKey | None, ConfigValue | None], ...]:
    """Return the entries without secrets, and without what config providers put in."""

    def hidden(entry: ConfigValue | None) -> ConfigValue | None:
        if entry is None:
            return None
        value, errors, text = entry.value, entry.errors, provided.get(entry.name)
        if text:
            value = None if value is None else HIDDEN
            errors = tuple(error.replace(text, HIDDEN) for error in errors)
        return replace(
            entry,
            value=None if value is None else mask.apply(value),
            errors=tuple(map(mask.apply, errors)),
        )

    return tuple((key, hidden(entry)) for key, entry in configs)


def _each(options: Iterable[Option], props: _Props) -> _Findings:
    values = {option.name: check_value(option, props) for option in options}
    for name, converter in _VERSIONS.items():
        if name in values and not props.get(converter):
            values[name] = replace(values[name], visible=False)
    return _Findings(values, [])


def _check_version(factory: ConnectorFactory, props: _Props, findings: _Findings) -> None:
    """Refuse a wanted version that is not installed, at both keys as Java does."""
    requested = props.get("connector.plugin.version") or ""
    installed = cast("str | None", getattr(factory, "plugin_version", None))
    problem = version_problem(factory.java_class, requested, installed or "")
    if problem:
        for name in ("connector.class", "connector.plugin.version"):
            findings.add(name, problem)


def _check_boundary(factory: ConnectorFactory, props: _Props, findings: _Findings) -> None:
    boundary = (props.get(_BOUNDARY) or "").strip().lower()
    defines: object = getattr(factory, "defines_transaction_boundaries", False)
    if boundary == "connector" and _BOUNDARY in findings.values and not defines:
        findings.add(
            _BOUNDARY,
            "The connector does not support connector-defined transaction boundaries with the given"
            " configuration. Please reconfigure it to use a different transaction boundary "
            "definition.",
        )


def _check_sink(
    factory: ConnectorFactory, texts: _Texts, worker: _Texts | None, findings: _Findings
) -> None:
    """Check the keys of sinks: topics and the consumer group."""
    if plugin_type(factory) != "sink":
        return
    model = model_of(factory)
    if model is None or "topics" not in options_of(model):
        for name, text in topic_problems(texts):
            findings.add(name, invalid(name, texts.get(name), text))
    clash = None if worker is None else group_problem(texts, worker)
    if clash is not None:
        findings.add(*clash)


def _check_support(
    factory: ConnectorFactory, texts: _Texts, findings: _Findings, *, enabled: bool
) -> None:
    """Check ``exactly.once.support=required`` as Java; the connector's own finding replaces it."""
    if texts.get(_SUPPORT, "").strip().lower() != "required" or _SUPPORT not in findings.values:
        return
    model = model_of(factory)
    own = [] if model is None else model.cross_check(texts)
    for problem in (it for it in own if it.name == _SUPPORT):
        findings.refuse(problem)
        return
    if not enabled:
        findings.add(_SUPPORT, "This worker does not have exactly-once source support enabled.")
    if not getattr(factory, "exactly_once_support", False):
        findings.add(
            _SUPPORT,
            "The connector does not implement the API required for preflight validation of "
            "exactly-once source support. Please consult the documentation for the connector to "
            "determine whether it supports exactly-once semantics, and then consider reconfiguring "
            'the connector to use the value "requested" for this property (which will disable this '
            "preflight check and allow the connector to be created).",
        )


def _converter_groups(texts: _Texts) -> tuple[str, ...]:
    """Return the groups of converters' keys, in the order of Java's hash set."""
    groups = _groups(key for key, _ in _converters(texts) if key is not None)
    return tuple(sorted(groups, reverse=True))


def _converters(texts: _Texts) -> _Configs:
    """Return the keys of the converters that a connector has of its own, under their prefix."""
    entries: _Configs = []
    for which in ("header", "key", "value"):
        prefix = f"{which}.converter."
        name = texts.get(prefix.rstrip("."))
        config = CONVERTER_CONFIGS.get(converter_class(name or ""))
        for option in () if config is None else options_of(config).values():
            key = described(option, prefix)
            own = {option.name: texts[key.name]} if key.name in texts else {}
            if option.name == "converter.type":
                own.setdefault(option.name, which)
            entries.append((key, replace(check_value(option, own), name=key.name)))
    return entries


def _groups(keys: Iterable[ConfigKey]) -> tuple[str, ...]:
    names = (key.group for key in keys)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def _ends_alike(connector_class: str, plugin: str) -> bool:
    ours = connector_class.removesuffix(_ENDING)
    return ours.endswith(plugin.removesuffix(_ENDING))


# ---- what only sinks are checked for


_TOPICS: Final = "topics"
_REGEX: Final = "topics.regex"
_DEAD: Final = "errors.deadletterqueue.topic.name"
_OVERRIDE: Final = "consumer.override."


def topic_problems(texts: _Texts) -> Iterator[tuple[str, str]]:
    """Return what is wrong with the topics of a sink (``SinkConnectorConfig.validate``), by key."""
    named, regex = parse_list(texts.get(_TOPICS, "")), texts.get(_REGEX, "").strip()
    problem = ""
    if named and regex:
        problem = f"{_TOPICS} and {_REGEX} are mutually exclusive options, but both are set."
    elif not named and not regex:
        problem = f"Must configure one of {_TOPICS} or {_REGEX}"
    if problem:
        yield from ((_TOPICS, problem), (_REGEX, problem))
        return
    dead = texts.get(_DEAD, "").strip()
    if dead and dead in named:
        yield (
            _TOPICS,
            f"The DLQ topic '{dead}' may not be included in the list of topics "
            f"('{_TOPICS}={rendered(named)}') consumed by the connector",
        )
    elif dead and regex and _matches(regex, dead):
        yield (
            _REGEX,
            f"The DLQ topic '{dead}' may not be matched by the regex for the topics "
            f"('{_REGEX}={regex}') consumed by the connector",
        )


def _matches(regex: str, topic: str) -> bool:
    try:
        return PatternList((regex,)).matches(topic)
    except ConfigError:
        return False  # a finding of its own


def group_problem(texts: _Texts, worker: _Texts) -> tuple[str, str] | None:
    """Return key and text of a sink's consumer group that is the workers' own, else None."""
    workers = worker.get("group.id", "")
    given = with_prefix(texts, _OVERRIDE).get("group.id")
    if given is not None and given == workers:
        return (
            f"{_OVERRIDE}group.id",
            f"Consumer group {given} conflicts with Connect worker group {workers}",
        )
    name = texts.get("name", "")
    if given is None and f"connect-{name}" == workers:
        return (
            "name",
            f"Consumer group for sink connector named {name} conflicts with Connect worker group "
            f"{workers}",
        )
    return None
