"""Failover and failback: clients change sides, nothing is lost.

   1 failover_runs   failover_plan: both clusters and a worker are asked; what refuses
   2 failover        one driver: each step is recorded in mm2py-failover.<source>.internal (failover_store) before it begins
   3 failover_sides  the steps: ACLs (fence), failover_groups, failover_tail, positions; flows over REST (failover_control)

Over REST: ``failover_routes`` -> ``failovers`` -> ``failover_inside``: the same work in the worker, which asks its own API.
"""
