"""Failover and failback: clients move to the other cluster, and nothing is lost.

1 commands, routes            the request: CLI, or REST in a worker that asks its own application
2 job -> survey               the plan, asked of both clusters and a worker; ``plan``: what refuses it, and the model of all faces
3 driver                      the claim of mm2py-failover.<source>.internal, where each step is recorded before it begins
4 steps                       fence, groups, quarantine, positions on both ``clusters``; the flows over REST (``flows``)
"""
