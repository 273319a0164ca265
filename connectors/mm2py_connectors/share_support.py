"""Waits until both clusters of a flow have share groups (KIP-932); one that lacks them is no error.

Flow: ``are_supported`` of each cluster, now and then -> return. Starts nothing.
"""

import logging
from collections.abc import Mapping
from typing import Final

from mm2py.clock import Clock
from mm2py.errors import Mm2pyError
from mm2py_connectors.clients import MirrorGroups

log = logging.getLogger(__name__)

LOOK_S: Final = 600.0
"""Brokers are upgraded one by one, and features are enabled while they run."""
RETRY_S: Final = 10.0


async def until_share_groups(clusters: Mapping[str, MirrorGroups], clock: Clock) -> None:
    """Return when all clusters (share groups by alias) support share groups; those that do not are logged once."""
    is_logged = False
    while True:
        try:
            lacking = [alias for alias, it in clusters.items() if not await it.are_supported()]
        except Mm2pyError as error:
            log.debug("support of share groups is not known yet cause=%s", error)
            await clock.sleep(RETRY_S)
            continue
        if not lacking:
            return
        if not is_logged:
            log.info(
                "share groups are not synced: needs Kafka 4.2, or 4.1 with share.version=1 clusters=%s",
                ",".join(lacking),
            )
            is_logged = True
        await clock.sleep(LOOK_S)
