"""Names that no tool would give: each builder sends them or says why not in our own error, each display shows them."""

import io
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mm2py.errors import Mm2pyError, UnsendableError
from mm2py.mirror.checkpoints import Checkpoint, encode_checkpoint
from mm2py.mirror.offset_syncs import OffsetSync, encode_offset_sync
from mm2py.observability.logging import some_of
from mm2py.protocol import admin_messages as admin
from mm2py.protocol import group_messages as group
from mm2py.protocol import messages
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from mm2py.protocol.call import Call
from mm2py.protocol.configs import ConfigOperation, ConfigResource, ConfigResourceType
from mm2py.protocol.groups import CoordinatorType, GroupProtocol, OffsetToCommit
from mm2py.protocol.schema import required, unsendable
from mm2py.protocol.share_offsets import alter_share_offsets, describe_share_offsets
from mm2py.protocol.topics import EpochQuery, NewTopic, OffsetQuery
from mm2py.types import TopicPartition
from mm2py_cli.output import Column, Output, Printer, say, shown_name
from mm2py_workers.entry import print_any_text
from tests.property.effort import examples

LIMIT: Final = 0x7FFF

surrogates = st.characters(categories=["Cs"])
names = st.one_of(
    st.text(st.characters() | surrogates, max_size=20),
    st.binary(max_size=20).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
    st.sampled_from(
        ["", ".", "..", "a/b", "%2e", "a\nb", "\0", "\x1b[2J", "[bold]x[/]", "é" * 20_000]
    ),
    st.integers(LIMIT - 2, LIMIT + 2).map("n".__mul__),
    st.just("x" * 65_536),
)


def acl(name: str, principal: str = "User:a", host: str = "*") -> Acl:
    return Acl(
        AclResourceType.TOPIC,
        name,
        PatternType.LITERAL,
        principal,
        host,
        AclOperation.READ,
        AclPermission.ALLOW,
    )


def joining(name: str) -> Call[object]:
    return group.join_group(
        name,
        name,
        protocol_type="consumer",
        protocols=[GroupProtocol(name, b"")],
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
    )


TOPIC: Final = ConfigResource(ConfigResourceType.TOPIC, "t")
BUILDERS: Final[Mapping[str, Callable[[str], Call[object]]]] = {
    "metadata": lambda it: messages.metadata([it]),
    "list_offsets": lambda it: messages.list_offsets([OffsetQuery(it, 0, -1)]),
    "offset_for_leader_epoch": lambda it: messages.offset_for_leader_epoch([EpochQuery(it, 0, 1)]),
    "create_topics": lambda it: messages.create_topics([NewTopic(it, 1, 1)]),
    "create_topics config": lambda it: messages.create_topics([NewTopic("t", 1, 1, {"c": it})]),
    "create_partitions": lambda it: messages.create_partitions({it: 2}),
    "delete_records": lambda it: messages.delete_records({TopicPartition(it, 0): 1}),
    "init_producer_id": lambda it: messages.init_producer_id(it, transaction_timeout_ms=1),
    "describe_configs": lambda it: admin.describe_configs(
        [ConfigResource(ConfigResourceType.TOPIC, it)]
    ),
    "alter config of": lambda it: admin.incremental_alter_configs(
        {ConfigResource(ConfigResourceType.TOPIC, it): [("c", ConfigOperation.SET, "v")]}
    ),
    "alter config": lambda it: admin.incremental_alter_configs(
        {TOPIC: [(it, ConfigOperation.SET, "v")]}
    ),
    "alter config to": lambda it: admin.incremental_alter_configs(
        {TOPIC: [("c", ConfigOperation.SET, it)]}
    ),
    "create_acls": lambda it: admin.create_acls([acl(it)]),
    "create_acls principal": lambda it: admin.create_acls([acl("t", it)]),
    "create_acls host": lambda it: admin.create_acls([acl("t", host=it)]),
    "delete_acls": lambda it: admin.delete_acls([acl(it)]),
    "describe_producers": lambda it: admin.describe_producers([TopicPartition(it, 0)]),
    "describe_log_dirs": lambda it: admin.describe_log_dirs({it: [0]}),
    "find_coordinator": group.find_coordinator,
    "find transactions": lambda it: group.find_coordinator(it, CoordinatorType.TRANSACTION),
    "find_coordinators": lambda it: group.find_coordinators([it]),
    "join_group": joining,
    "sync_group": lambda it: group.sync_group(
        it, 1, it, protocol_type="consumer", protocol_name=it, assignments={it: b""}
    ),
    "heartbeat": lambda it: group.heartbeat(it, 1, it),
    "leave_group": lambda it: group.leave_group(it, it),
    "describe_groups": lambda it: group.describe_groups([it]),
    "delete_groups": lambda it: group.delete_groups([it]),
    "delete_offsets": lambda it: group.delete_offsets(it, [TopicPartition("t", 0)]),
    "delete_offsets of": lambda it: group.delete_offsets("g", [TopicPartition(it, 0)]),
    "offset_fetch": group.offset_fetch,
    "group_offsets": lambda it: group.group_offsets([it]),
    "offset_commit": lambda it: group.offset_commit(it, [OffsetToCommit("t", 0, 1)]),
    "offset_commit of": lambda it: group.offset_commit("g", [OffsetToCommit(it, 0, 1)]),
    "offset_commit metadata": lambda it: group.offset_commit(
        "g", [OffsetToCommit("t", 0, 1, metadata=it)]
    ),
    "describe_share_offsets": lambda it: describe_share_offsets([it]),
    "alter_share_offsets": lambda it: alter_share_offsets(it, [OffsetToCommit("t", 0, 1)]),
    "alter_share_offsets of": lambda it: alter_share_offsets("g", [OffsetToCommit(it, 0, 1)]),
}
MAY_BE_EMPTY: Final = {"create_topics config", "alter config to", "offset_commit metadata"}


def is_text(name: str) -> bool:
    try:
        return len(name.encode()) <= LIMIT
    except UnicodeEncodeError:
        return False


@pytest.mark.parametrize("builder", BUILDERS)
@settings(max_examples=examples(8))
@given(names)
@example("")
@example("x" * (LIMIT + 1))
@example("\udcff")
def test_a_builder_sends_a_name_or_raises_our_own_error(builder: str, name: str) -> None:
    if is_text(name) and (name or builder in MAY_BE_EMPTY):
        assert all(int.from_bytes(raw[:4]) == len(raw) - 4 for raw in encoded(builder, name))
        return
    with pytest.raises(UnsendableError) as refused:
        encoded(builder, name)
    text = str(refused.value)
    assert text.isprintable()
    assert len(text) < 500


def encoded(builder: str, name: str) -> list[bytes]:
    """Return the request in each of its versions."""
    call = BUILDERS[builder](name)
    return [call.encode(it, 1, "c") for it in range(call.min_version, call.max_version + 1)]


@settings(max_examples=examples(50))
@given(names)
def test_the_names_that_no_request_carries_are_those_that_the_builders_refuse(name: str) -> None:
    assert bool(unsendable([name, "g"], "group")) == (not name or not is_text(name))
    if name in unsendable([name], "group"):
        with pytest.raises(Mm2pyError):
            required(name, "group")


@settings(max_examples=examples(50))
@given(names)
def test_a_record_of_ours_holds_a_name_or_raises_our_own_error(name: str) -> None:
    partition = TopicPartition(name, 0)
    with nullcontext() if is_text(name) else pytest.raises(Mm2pyError):
        encode_checkpoint(Checkpoint(name, partition, 1, 1, name))
    with nullcontext() if is_text(name) else pytest.raises(Mm2pyError):
        encode_offset_sync(OffsetSync(partition, 1, 1))


COLUMNS: Final = (Column.name("GROUP", "group"), Column.text("TOPIC", "group"))


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@settings(max_examples=examples(15))
@given(name=names)
@example(name="")
@example(name="\udcff é \x1b[31m")
def test_a_command_prints_any_name_in_any_encoding(encoding: str, name: str) -> None:
    raw, raw_error = io.BytesIO(), io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    err = io.TextIOWrapper(raw_error, encoding=encoding)
    with redirect_stdout(out), redirect_stderr(err):
        print_any_text()
        for output in Output:
            printer = Printer(output)
            printer.rows([{"group": name}], [{"group": name}], COLUMNS, "none")
            if printer.is_table:
                printer.fields([("GROUP", shown_name(name))])
        say(f"{some_of([name, name], 1)} not synced")
        out.flush()
        err.flush()
    shown = raw.getvalue().decode(encoding)
    assert all(it.isprintable() for it in shown.splitlines() if it)
    documents = json.dumps([{"group": name}], indent=2)
    assert documents in shown
    assert name or '""' in shown
    assert raw_error.getvalue()
