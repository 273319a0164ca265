"""The older names of the commands and paths of jobs, in one place; all of them stay.

Flow: ``COMMANDS`` -> ``mm2py_jobs.commands`` -> the same functions under both names; ``PATHS`` ->
``JobRouter``, the same endpoints. The older paths of failovers have the kind as a query parameter,
so that their endpoints are their own. Workers load this for their routes: it imports no command.
"""

from collections.abc import Mapping
from typing import Final

COMMANDS: Final[Mapping[str, str]] = {
    "backfill": "job backfill",
    "stream": "job stream run",
    "stream --cancel": "job stream cancel",
    "verify": "job verify run",
    "archive": "job archive run",
    "restore": "job restore run",
    "rerun": "job rerun run",
    "failover --plan": "job failover plan",
    "failover --execute": "job failover run",
    "failover --status": "job failover status",
    "failover --cancel": "job failover cancel",
    "failback --plan": "job failback plan",
    "failback --execute": "job failback run",
    "failback --status": "job failback status",
    "failback --cancel": "job failback cancel",
    "drill": "job failover plan --timed",
}
"""The words after ``mm2py``."""

PATHS: Final[Mapping[str, str]] = {
    "/backfills": "/jobs/backfill",
    "/backfills/{backfill}": "/jobs/backfill/{backfill}",
    "/backfills/{backfill}:start": "/jobs/backfill/{backfill}:start",
    "/backfills/{backfill}:pause": "/jobs/backfill/{backfill}:pause",
    "/backfills/{backfill}:resume": "/jobs/backfill/{backfill}:resume",
    "/backfills/{backfill}:cancel": "/jobs/backfill/{backfill}:cancel",
    "/flows/{flow}/failover": "/jobs/failover/{flow}",
    "/flows/{flow}/failover/cancel": "/jobs/failover/{flow}:cancel",
}
