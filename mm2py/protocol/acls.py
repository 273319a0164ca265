"""ACLs of a cluster.

Flow: response -> ``admin_messages`` -> one of these -> the client, and back to create them.
"""

from dataclasses import dataclass

from mm2py.protocol.configs import LenientEnum


class AclResourceType(LenientEnum):
    """``org.apache.kafka.common.resource.ResourceType``."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    # KIP-373: creation of delegation tokens for others.
    USER = 7


class PatternType(LenientEnum):
    """``org.apache.kafka.common.resource.PatternType``."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(LenientEnum):
    """``org.apache.kafka.common.acl.AclOperation``."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    # KIP-939.
    TWO_PHASE_COMMIT = 15


class AclPermission(LenientEnum):
    """``org.apache.kafka.common.acl.AclPermissionType``."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True)
class Acl:
    """One ACL (Java's ``AclBinding``)."""

    resource_type: AclResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission


@dataclass(frozen=True, slots=True)
class AclsResult:
    """ACLs that match a filter; error 54 (SECURITY_DISABLED) means the cluster has no
    authorizer."""

    error_code: int
    error_message: str
    acls: tuple[Acl, ...]
