"""Topic ACLs of the source, as read rights on the copies (Java's rules).

Flow: all topic ACLs of the source -> ``remote_acls`` -> created on the target. Nothing is ever
deleted; group, cluster and prefixed ACLs are not copied, and no principal gets WRITE on a copy.
Unlike Java's, a DENY for the mirror's own principal stays on the source: it would end the copy.
Rules that a failover has made to keep writers from the source are its own: on the target they would
keep clients from where they are to write.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

from mm2py.api.policies import ReplicationPolicy
from mm2py.config.client_properties import ClientKind, effective_client_properties
from mm2py.config.jaas import ANONYMOUS, principal_of
from mm2py.errors import UnsupportedVersionError
from mm2py.mirror.failovers import Fence, decode_failover
from mm2py.mirror.filters import TopicSelection
from mm2py.observability.logging import some_of
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from mm2py.protocol.error_codes import SECURITY_DISABLED
from mm2py.protocol.records import Record
from mm2py_connectors.change_log import ChangeLog
from mm2py_connectors.clients import LogSession, MirrorAdmin

log = logging.getLogger(__name__)

SHOWN: Final = 10
"""Rules in a line of the log."""


def own_principals(props: Mapping[str, str]) -> frozenset[str]:
    """Return the principals by which a connector with these properties reaches the target, as far
    as their logins tell them; one that clients share is none."""
    kinds: tuple[ClientKind, ...] = "admin", "producer"
    clients = (effective_client_properties(props, "target", it) for it in kinds)
    return frozenset(map(principal_of, clients)) - {"", ANONYMOUS}


def remote_acls(
    acls: Iterable[Acl],
    *,
    selection: TopicSelection,
    policy: ReplicationPolicy,
    source_alias: str,
    own: Collection[str] = (),
) -> list[Acl]:
    """Return what to create on the target for the source's ``acls``, without doubles; no DENY for
    principals of the mirror's ``own``."""
    wanted: dict[Acl, None] = {}
    for acl in acls:
        # As ``shouldReplicateAcl``, an allowed WRITE is not copied.
        if (
            _allows(acl, AclOperation.WRITE)
            or _is_own_denial(acl, own)
            or not _is_of_copied(acl, selection)
        ):
            continue
        remote = replace(acl, resource_name=policy.remote_topic(source_alias, acl.resource_name))
        # ``downgradeAllowAllACL``: on a read-only copy ALL means READ.
        if _allows(acl, AclOperation.ALL):
            remote = replace(remote, operation=AclOperation.READ)
        wanted[remote] = None
    return list(wanted)


def own_denials(
    acls: Iterable[Acl], *, selection: TopicSelection, own: Collection[str]
) -> list[str]:
    """Return the rules that stay on the source because they are for principals of the mirror's
    ``own``."""
    ours = (it for it in acls if _is_own_denial(it, own) and _is_of_copied(it, selection))
    return sorted({f"DENY {it.operation.name} {it.resource_name} {it.principal}" for it in ours})


def _is_own_denial(acl: Acl, own: Collection[str]) -> bool:
    return acl.permission is AclPermission.DENY and acl.principal in own


def _is_of_copied(acl: Acl, selection: TopicSelection) -> bool:
    # As ``MirrorSourceConnector``: literal topic rules only.
    is_literal = (acl.resource_type, acl.pattern_type) == (
        AclResourceType.TOPIC,
        PatternType.LITERAL,
    )
    return is_literal and selection.replicate(acl.resource_name)


def _allows(acl: Acl, operation: AclOperation) -> bool:
    return acl.permission is AclPermission.ALLOW and acl.operation is operation


async def read_fence(opened: LogSession) -> Collection[Acl]:
    """Return the rules that a failover has made on a cluster, from its failover topic; closes the
    session.

    Raises:
        ProtocolError: the newest record is of a version that this program cannot read, or damaged.
        Mm2pyError: the topic cannot be read now.
    """
    newest: dict[bytes | None, bytes | None] = {}

    def take(_partition: int, record: Record) -> None:
        newest[record.key] = record.value

    try:
        await opened.session.connect()
        await opened.log.read_to_end(take)
    finally:
        await opened.session.close()
    # One that cannot be read is not none: its rules would keep clients from the target.
    value = newest.get(b"fence")
    fence = None if value is None else decode_failover(b"fence", value)
    return fence.acls if isinstance(fence, Fence) else ()


async def _no_fence() -> Collection[Acl]:
    return ()


@final
class AclSync:
    """The periodic job of one flow; ``fence`` returns a failover's rules on the source."""

    def __init__(
        self,
        source: MirrorAdmin,
        target: MirrorAdmin,
        *,
        fence: Callable[[], Awaitable[Collection[Acl]]] = _no_fence,
        selection: TopicSelection,
        policy: ReplicationPolicy,
        source_alias: str,
        target_alias: str,
        own: Collection[str] = (),
    ) -> None:
        self._own = own
        self._source = source
        self._target = target
        self._fence = fence
        self._selection = selection
        self._policy = policy
        self._source_alias = source_alias
        self._target_alias = target_alias
        self._suggested = False
        self._left: Sequence[str] = ()
        """Rules for the mirror's own principal, as they were logged."""
        self._refusals = ChangeLog(log, "ACL cannot be created")

    @property
    def refusals(self) -> Mapping[str, str]:
        """ACLs that the target refuses, with the cause."""
        return self._refusals.entries

    async def run(self) -> None:
        """Copy what the source has now."""
        try:
            acls = await self._source.describe_topic_acls()
        except UnsupportedVersionError as too_old:
            self._cannot(self._source_alias, too_old)
            return
        if acls is None:
            self._refusals.keep_only(())
            self._no_authorizer()
            return
        # Asked after the rules: a fence is recorded before it is made.
        fence = await self._fence()
        acls = [it for it in acls if it not in fence]
        self._tell_left(own_denials(acls, selection=self._selection, own=self._own))
        wanted = remote_acls(
            acls,
            selection=self._selection,
            policy=self._policy,
            source_alias=self._source_alias,
            own=self._own,
        )
        if not wanted:
            self._refusals.keep_only(())
            return
        try:
            results = await self._target.create_acls(wanted)
        except UnsupportedVersionError as too_old:
            self._cannot(self._target_alias, too_old)
            return
        if results and all(e is not None and e.code == SECURITY_DISABLED for e in results):
            name = f"all of {self._target_alias}"
            self._refusals.keep_only((name,))
            self._refusals.note(
                name, "the target has no authorizer; set sync.topic.acls.enabled=false"
            )
            return
        named = {_name(acl): error for acl, error in zip(wanted, results, strict=True)}
        self._refusals.keep_only(named)
        for name, error in named.items():
            if error is None:
                self._refusals.clear(name)
            else:
                self._refusals.note(name, f"{error}; cluster={self._target_alias}")

    def _cannot(self, alias: str, error: UnsupportedVersionError) -> None:
        """Brokers of other makers may know no ACLs: as in Java records are copied all the same."""
        name = f"all of {alias}"
        self._refusals.keep_only((name,))
        self._refusals.note(name, f"{error}; set sync.topic.acls.enabled=false")

    def _tell_left(self, rules: Sequence[str]) -> None:
        if rules and rules != self._left:
            log.warning(
                "rules are not copied, they are for the mirror's own principal and would end the "
                "copy source=%s rules=%s",
                self._source_alias,
                some_of(rules, SHOWN, "; "),
            )
        self._left = rules

    def _no_authorizer(self) -> None:
        if self._suggested:
            log.debug("skipping ACL sync: no authorizer cluster=%s", self._source_alias)
            return
        self._suggested = True
        log.info(
            "ACLs are not synced: no authorizer cluster=%s; consider sync.topic.acls.enabled=false",
            self._source_alias,
        )


def _name(acl: Acl) -> str:
    return (
        f"{acl.permission.name} {acl.operation.name} {acl.resource_name} {acl.principal} {acl.host}"
    )
