"""A MirrorMaker 1 command line as a flow: its file, and the positions of its group.

Flow: words -> ``read_arguments``, as the command itself reads them -> both files ->
``mm2py_migrate.from_mirror_maker_1`` -> with ``carries`` the flow's plan, from the very text that
is printed -> ``migrated_positions``.
"""

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import dropwhile
from pathlib import Path
from typing import Final

from mm2py.config.clients import connection_settings
from mm2py.config.jaas import KRB5_CONF, login_of_file, system_property
from mm2py.errors import UsageError
from mm2py.types import ClusterAlias, FlowName
from mm2py_migrate.from_mirror_maker_1 import MirrorMaker1, mirror_maker_2_file
from mm2py_migrate.migrated_positions import Group, carry_positions, plan_of
from mm2py_migrate.mirror_maker_1.arguments import COMMIT_MS, Arguments, read_arguments
from mm2py_migrate.mirror_maker_1.options import (
    consumer_file,
    producer_file,
    topic_choice,
    topic_lists,
)
from mm2py_migrate.written_file import TranslatedFile

_NAME: Final = re.compile("[A-Za-z0-9._-]+")
_KRB5_CONF: Final = (
    f"{KRB5_CONF} has no property: start the workers with the same KAFKA_OPTS, or with KRB5_CONFIG"
)
_NOT_CARRIED: Final = (
    "positions of group {} are not carried over: stop the mirror and repeat this with "
    "--carry-positions, else the flow starts at auto.offset.reset={}"
)


def migrated(words: Sequence[str], source: str, target: str, *, carries: bool) -> TranslatedFile:
    """Return the file; store the positions first where ``carries``. Words before the first option
    are a script's name.

    Raises:
        UsageError: the command line is wrong, or the names of the clusters are.
        ConfigError: a file is wrong; or of ``carry_positions``.
    """
    if source == target:
        raise UsageError("source and target have one name", remedy="give --source and --target")
    for name in (source, target):
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is no name of a cluster",
                remedy="take letters, digits, '-', '_' and '.': topics are named after it",
            )
    arguments = read_arguments(list(dropwhile(lambda word: not word.startswith("-"), words)))
    consumer = consumer_file(arguments.consumer_config)
    producer = producer_file(arguments.producer_config)
    include, exclude = topic_lists(
        arguments.include or arguments.whitelist, arguments.blacklist, consumer
    )
    command = MirrorMaker1(
        consumer=consumer,
        producer=producer,
        consumer_path=Path(arguments.consumer_config),
        producer_path=Path(arguments.producer_config),
        include=include,
        exclude=exclude,
        streams=arguments.num_streams,
        without_equivalent=_without_equivalent(arguments),
        login=login_of_file(os.environ),
    )
    file = mirror_maker_2_file(command, source, target)
    if carries:
        group = Group(
            consumer.values["group.id"],
            connection_settings(consumer.values, scope=arguments.consumer_config),
            topic_choice(include, exclude).matches,
        )
        flow = FlowName(ClusterAlias(source), ClusterAlias(target))
        told = asyncio.run(carry_positions(plan_of(file.text, flow), group))
    else:
        reset = consumer.written.get("auto.offset.reset", "latest")
        told = [_NOT_CARRIED.format(consumer.values["group.id"], reset)]
    kerberos = [_KRB5_CONF] if system_property(KRB5_CONF, os.environ) else []
    read = [line for it in (consumer, producer) for line in (*it.remarks, *it.warnings)]
    return replace(file, remarks=(*read, *file.remarks, *kerberos, *told))


def _without_equivalent(arguments: Arguments) -> dict[str, str]:
    """Return the options that a flow has no property for, with what takes their place."""
    given = {
        "--num.producers": (
            arguments.num_producers > 1,
            "each task sends what it reads; tasks.max says how many there are",
        ),
        "--queue.size": (
            arguments.queue_size is not None,
            "buffer.memory of the target's producer limits what is under way",
        ),
        "--offset.commit.interval.ms": (
            arguments.offset_commit_interval_ms != COMMIT_MS,
            "positions are stored each second (offset.flush.interval.ms)",
        ),
        "--abort.on.send.failure false": (
            not arguments.abort_on_send_failure,
            "a record that the target refuses stops its partition alone and is named in the loss "
            "ledger",
        ),
        f"--message.handler {arguments.message_handler}": (
            bool(arguments.message_handler),
            "write it as a transform of the flow, or keep mirror-maker-py",
        ),
        f"--consumer.rebalance.listener {arguments.rebalance_listener}": (
            bool(arguments.rebalance_listener),
            "a flow reads without a consumer group",
        ),
    }
    return {name: instead for name, (is_given, instead) in given.items() if is_given}
