"""The legacy MirrorMaker 1 as a program:
``mirror-maker-py --consumer.config C --producer.config P --whitelist R``.

Flow: arguments -> both files -> remarks logged, a line each -> ``Mirror`` -> SIGTERM -> flushed,
committed, exit 0. Exit codes: 0 orderly end, 1 failure, 2 wrong usage.
"""

import gc
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Final, NoReturn, cast

from mm2py.api.mirror_maker_1 import MessageHandler, RebalanceListener
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.librdkafka import consumer_settings, producer_settings
from mm2py.config.secret_names import secrets_in
from mm2py.errors import ConfigError
from mm2py.observability.logging import SecretMask
from mm2py_connectors.record_sender import check_kerberos
from mm2py_migrate.mirror_maker_1.arguments import PROGRAM, Arguments, read_arguments
from mm2py_migrate.mirror_maker_1.mirror import Mirror, MirrorPlan
from mm2py_migrate.mirror_maker_1.options import (
    ClientFile,
    consumer_file,
    producer_file,
    topic_choice,
    topic_lists,
)
from mm2py_migrate.mirror_maker_1.stream import handled
from mm2py_workers.connect_arguments import run_program
from mm2py_workers.signals import StopSignal

log = logging.getLogger(__name__)

HANDLERS: Final = "mm2py.message_handlers"
LISTENERS: Final = "mm2py.rebalance_listeners"
_BATCH: Final = 500
"""Java's ``max.poll.records``."""
_YOUNG_OBJECTS: Final = 100_000


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run the command and end the process with its exit code."""
    run_program(PROGRAM, words, read_arguments, _begin)


def _begin(arguments: Arguments, mask: SecretMask) -> Coroutine[object, object, int]:
    source = consumer_file(arguments.consumer_config)
    target = producer_file(arguments.producer_config)
    for file in (source, target):
        mask.add(file.secrets | secrets_in(file.values))
        _announce(file)
    if arguments.include and arguments.whitelist:
        log.warning("--whitelist is ignored, as in Java: --include=%s counts", arguments.include)
    include = arguments.include or arguments.whitelist
    topics = topic_choice(*topic_lists(include, arguments.blacklist, source))
    consumer = consumer_settings(source.values, scope=arguments.consumer_config)
    producer = producer_settings(target.values, scope=arguments.producer_config)
    for settings in (consumer, producer):
        check_kerberos(settings.values)
    for remark in (*consumer.remarks, *producer.remarks):
        log.warning("%s", remark)
    if arguments.queue_size is not None:
        values = {**producer.values, "queue.buffering.max.messages": arguments.queue_size}
        producer = replace(producer, values=values)
    handler = _plugin(
        HANDLERS, "message handler", arguments.message_handler, arguments.message_handler_args
    )
    listener = _plugin(
        LISTENERS,
        "rebalance listener",
        arguments.rebalance_listener,
        arguments.rebalance_listener_args,
    )
    plan = MirrorPlan(
        consumer=consumer,
        producer=producer,
        topics=topics,
        streams=arguments.num_streams,
        producers=arguments.num_producers,
        batch=_batch(source),
        commit_s=arguments.offset_commit_interval_ms / 1_000,
        abort=arguments.abort_on_send_failure,
        is_sync=target.is_sync,
        handle=None if handler is None else handled(cast("MessageHandler", handler)),
        listener=cast("RebalanceListener | None", listener),
    )
    log.info(
        "group=%s streams=%d producers=%d mirrors %s",
        source.values["group.id"], plan.streams, min(plan.producers, plan.streams), topics.text,
    )  # fmt: skip
    return _run(plan)


async def _run(plan: MirrorPlan) -> int:
    # Thousands of records are under way: each look through all costs a microsecond per one.
    gc.set_threshold(_YOUNG_OBJECTS)
    with StopSignal() as stop:
        return await Mirror(plan, SYSTEM_CLOCK).run(stop)


def _announce(file: ClientFile) -> None:
    for remark in file.remarks:
        log.info("%s", remark)
    for warning in file.warnings:
        log.warning("%s", warning)


def _batch(file: ClientFile) -> int:
    text = file.values.get("max.poll.records", str(_BATCH)).strip()
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"max.poll.records={text} is not a whole number of at least 1",
            remedy="correct max.poll.records",
        )
    return int(text)


def _plugin(group: str, what: str, name: str, text: str | None) -> object | None:
    """Return the object that an entry point names, made with its argument; ``ConfigError``: none is
    installed under that name, or it cannot be made."""
    if not name:
        return None
    installed = {point.name: point for point in entry_points(group=group)}
    entry = installed.get(name)
    if entry is None:
        known = ", ".join(sorted(installed)) or "none"
        raise ConfigError(
            f"there is no {what} {name}; Java classes cannot be loaded here",
            remedy=f"install a package with an entry point of that name in {group} (installed: "
            f"{known})",
        )
    try:
        made: object = entry.load()() if text is None else entry.load()(text)
    except Exception as error:
        raise ConfigError(
            f"the {what} {name} cannot be made: {type(error).__name__}: {error}",
            remedy="correct its package or argument",
        ) from error
    return made
