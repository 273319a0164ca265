"""HTTP: Kafka Connect's REST dialect, our ``/flows``, and what workers ask each other.

Flow: request -> authentication, routing -> a ``Herder`` of ``mm2py.runtime.herder.herder`` ->
answer, or one hop to the worker that can. Nothing here decides about work: the herder does.
"""
