"""A MirrorMaker 1 command as a MirrorMaker 2 file: one flow that keeps names, partitions and
positions.

Flow: both properties files and the options -> ``mirror_maker_2_file`` -> ``TranslatedFile``. What
MirrorMaker 1 never did (heartbeats, checkpoints, configs, ACLs, a topic on the source) is switched
off, each in a line that can be removed. Positions of its consumer group are not part of a file:
``mm2py_migrate.migrated_positions``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mm2py.config.class_names import IDENTITY_REPLICATION_POLICY, PROVIDER_PACKAGE
from mm2py.config.client_options import CLIENT_KEYS
from mm2py.config.derivation import PROVIDER_PREFIX
from mm2py.config.jaas import LoginModule
from mm2py.config.java_values import parse_list
from mm2py.config.providers import placeholders
from mm2py.config.secret_names import names_a_secret
from mm2py_migrate.mirror_maker_1.options import ClientFile, topic_choice, topic_expression
from mm2py_migrate.written_file import TranslatedFile, WrittenFile

_JAAS: Final = "sasl.jaas.config"
EXCLUDED: Final = r"mm2.*\.internal,.*\.replica,__.*"
"""The default of ``topics.exclude``, which a list of one's own replaces."""
_OFF: Final = {
    "emit.heartbeats.enabled": "false",
    "emit.checkpoints.enabled": "false",
    "sync.topic.configs.enabled": "false",
    "sync.topic.acls.enabled": "false",
    "offset-syncs.topic.location": "target",
}
_MADE: Final = ("", "offset-syncs.topic.", "config.storage.", "offset.storage.", "status.storage.")
"""What comes before ``replication.factor``, in the order of the file."""
_OF_A_GROUP: Final = frozenset((
    "auto.commit.interval.ms", "enable.auto.commit", "group.id", "group.instance.id",
    "group.protocol", "heartbeat.interval.ms", "max.poll.interval.ms",
    "partition.assignment.strategy", "session.timeout.ms",
))  # fmt: skip
_ON_BYTES: Final = frozenset((
    "client.id", "exclude.internal.topics", "key.deserializer", "key.serializer", "producer.type",
    "value.deserializer", "value.serializer", "mirror.topics.whitelist", "mirror.topics.blacklist",
))  # fmt: skip
"""Set by the flow itself, or written under another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorMaker1:
    """A command line, with both files as they were read and where they are."""

    consumer: ClientFile
    producer: ClientFile
    consumer_path: Path
    producer_path: Path
    include: str
    exclude: str
    streams: int = 1
    without_equivalent: Mapping[str, str]
    """Options that were given and have no property, with what takes their place."""
    login: LoginModule | None = None
    """Of the JAAS file of ``KAFKA_OPTS``, which counts for a side whose file has none."""


def mirror_maker_2_file(command: MirrorMaker1, source: str, target: str) -> TranslatedFile:
    """Return the file of the flow ``source->target``; secrets stay in the files of the command.

    Raises:
        ConfigError: not one list of topics, or an expression that cannot be translated; or both
            files declare a config provider of one name differently.
    """
    choice = topic_choice(command.include, command.exclude)
    flow = f"{source}->{target}"
    file = WrittenFile()
    file.comment(f"One flow in place of MirrorMaker 1: {choice.text}")
    file.put("clusters", f"{source}, {target}")
    _providers(file, command)
    file.comment("The source, as the consumer's file has it")
    _side(file, command.consumer, command.consumer_path, source, "consumer")
    _login(file, command.consumer, command.login, source)
    reset = command.consumer.written.get("auto.offset.reset", "latest")
    file.put(f"{source}.consumer.auto.offset.reset", reset)
    file.comment("The target, as the producer's file has it")
    _side(file, command.producer, command.producer_path, target, "producer")
    _login(file, command.producer, command.login, target)
    file.comment("Names stay as they are, and each record keeps its partition")
    file.put(f"{flow}.enabled", "true")
    expression = topic_expression(command.include or command.exclude)
    if command.include.strip():
        file.put(f"{flow}.topics", expression)
    else:
        file.put(f"{flow}.topics", ".*")
        file.put(f"{flow}.topics.exclude", f"{expression},{EXCLUDED}")
    file.put("replication.policy.class", IDENTITY_REPLICATION_POLICY)
    file.put("tasks.max", str(command.streams))
    file.comment("MirrorMaker 1 does none of this: remove a line to have it")
    for name, value in _OFF.items():
        file.put(name, value)
    file.comment("New topics have the target's default, as those that it creates by itself")
    for topics in _MADE:
        file.put(f"{topics}replication.factor", "-1")
    for option, instead in command.without_equivalent.items():
        file.remark(f"{option} has no property: {instead}")
    return file.done()


def _side(file: WrittenFile, client: ClientFile, path: Path, alias: str, kind: str) -> None:
    for name, text in client.written.items():
        if name.startswith(PROVIDER_PREFIX) or name in _ON_BYTES:
            continue
        if name in _OF_A_GROUP:
            if name != "group.id":
                file.remark(
                    f"{path}: {name} has no property: a flow reads without a consumer group"
                )
            continue
        prefix = alias if name in CLIENT_KEYS else f"{alias}.{kind}"
        shown = text
        if names_a_secret(name) and not placeholders(text):
            shown = f"${{{_provider(client)}:{path.absolute()}:{name}}}"
        file.put(f"{prefix}.{name}", shown)


def _login(file: WrittenFile, client: ClientFile, login: LoginModule | None, alias: str) -> None:
    """Write the JAAS file's login where this side uses it; one with a password stays there."""
    protocol = client.written.get("security.protocol", "").strip().upper()
    if login is None or _JAAS in client.written or not protocol.startswith("SASL_"):
        return
    if login.secrets:
        file.remark(
            f"{alias}.{_JAAS} is not written, as it has a password: start the workers with the "
            "same KAFKA_OPTS"
        )
    else:
        file.put(f"{alias}.{_JAAS}", login.text())


def _providers(file: WrittenFile, command: MirrorMaker1) -> None:
    """Declare the config providers of both files, and the one that reads secrets from them."""
    names: list[str] = []
    for client in (command.consumer, command.producer):
        given = list(parse_list(client.written.get(PROVIDER_PREFIX, "")))
        if _hides_secrets(client):
            given.append(_provider(client))
        names += [it for it in given if it not in names]
    if not names:
        return
    file.comment("Where secrets are read from")
    file.put(PROVIDER_PREFIX, ",".join(names))
    for client in (command.consumer, command.producer):
        for name, text in client.written.items():
            if name.startswith(f"{PROVIDER_PREFIX}."):
                file.put(name, text)
        if _hides_secrets(client):
            file.put(
                f"{PROVIDER_PREFIX}.{_provider(client)}.class",
                f"{PROVIDER_PACKAGE}FileConfigProvider",
            )


def _hides_secrets(client: ClientFile) -> bool:
    return any(
        names_a_secret(name) and not placeholders(text) and not name.startswith(PROVIDER_PREFIX)
        for name, text in client.written.items()
    )


def _provider(client: ClientFile) -> str:
    """Name this file's own secrets provider: a declared one may have limited paths."""
    declared = parse_list(client.written.get(PROVIDER_PREFIX, ""))
    return "file" if "file" not in declared else "mirrormaker1"
