"""Copies of history on Spark, and continuous ones: a driver with a claim, lanes with leases, over
the flow's own source task.

A backfill::

    1 backfill_runs                   plan: survey asks both clusters; checks, ranges, lanes (plan)
    2 backfill                        one driver; former lanes fenced; partitions reserved in mm2py-backfill.<source>.internal
    3 herder/backfill_watch           each worker: its tasks copy none of them -> notice
    4 spark/session -> backfill_lane  a lane per Spark task: lease (the permit) + lanes over the flow's own source task
    5 lanes                           stored position at the end -> HANDED_OVER
    6 herder/backfill_watch           -> tasks/worker_task: TakesOver.take_over reads on from the stored position

A stream::

    1 stream_runs                     flow.engine must be spark; stream_topics: the flow's connector without tasks; a Spark session
    2 spark/stream_copy               spark/stream_query: a Structured Streaming query; its first batch has lanes without partitions, to warm up
    3 stream                          one driver (storage/job_claim): partitions reserved as for a backfill, without an end; a batch is a term, a task is a lane
    4 stream_terms                    plans a term: leases and log ends -> lanes -> lanes over the flow's own source task
    5 herder/stream_watch             each worker: is it alive? pause, recall, take back -> backfill_watch -> tasks continue

Over REST: ``backfill_routes`` -> ``backfill_jobs`` (orders and views over the backfill topic) ->
``backfill_children``: the same command as a child process of the leader. Every job takes its flow
from ``mm2py_jobs.open_flow``: file and overrides.
"""
