"""Detects changes of quotas while one of them throttles a connection."""

import logging
from typing import final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.errors import Mm2pyError, RetriableError

log = logging.getLogger(__name__)


@final
class QuotaWatch:
    """Detects changes of a cluster's quotas while one throttles the connection to a node."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self._cluster, self._node_id = cluster, node_id
        self._seen: frozenset[object] | None = None

    def forget(self) -> None:
        """Forget the last reading, because the wait is over."""
        self._seen = None

    async def is_changed(self, left_s: float) -> bool:
        """Return whether quotas differ from the last reading; False while they are unknown.

        ``left_s`` is what is left of the wait.
        """
        try:
            quotas = await Admin(self._cluster).client_quotas()
        except RetriableError:
            return False
        except Mm2pyError as error:
            log.debug("quotas may not be read, the announced time is waited for cause=%s", error)
            self._seen = None
            return False
        now = frozenset(
            (tuple(sorted(it.entity.items())), tuple(sorted(it.values.items()))) for it in quotas
        )
        before, self._seen = self._seen, now
        # The first reading of a wait has nothing to be compared with.
        if before in (None, now):
            return False
        log.info(
            "a quota was changed, the connection is opened anew node=%d remaining_s=%.0f",
            self._node_id,
            left_s,
        )
        return True
