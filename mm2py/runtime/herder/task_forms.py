"""The two forms of a task config: what Java's connector makes, and the same with our additions.

Flow: connector -> our form -> ``TaskPublication`` -> config topic -> ``AssignedWork`` ->
``in_force`` -> the task. Workers of earlier builds read our form, so it is what a group publishes
while it runs. Its last worker leaves Java's form in Java's order, because a Java worker that
computes another map of a task starts that task anew, amid its backlog.

Invariants (tests of the same names):

1. Two forms of one task are one task: none restarts for it. Where a commit restarts every task
   (exactly-once support), neither is published over the other.
2. What a task runs with does not depend on the form in which its config is published.
3. Only the last worker of a group, after its tasks have stopped and while its permit is valid,
   publishes Java's form.
4. If that is interrupted, the deal in force is the former one or the new one, each whole.
5. The deal of that worker is kept beside Java's form: the next worker of ours continues with it, a
   Java worker with its own.
"""

from collections.abc import Callable, Mapping
from typing import cast, final

from mm2py.api.connector import BESIDE
from mm2py.errors import ConfigError
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.storage.config_state import ConnectorConfig, texts_of

ClusterIds = tuple[str, str]
"""Kafka's ids of source and target."""

_Plain = Callable[[ConnectorConfig, ConnectorConfig], Mapping[str, str]]
_InForce = Callable[[Mapping[str, str], Mapping[str, str], int, ClusterIds], Mapping[str, str]]


@final
class TaskForms:
    """The forms of the task configs of one flow; of connectors without a second form both are the
    same.

    Args:
        clusters: the ids of the flow's clusters; None where a connector may read any, as in a
            Connect worker.
    """

    def __init__(self, plugins: Plugins, clusters: Callable[[], ClusterIds] | None) -> None:
        self._plugins, self._clusters = plugins, clusters

    @property
    def are_two(self) -> bool:
        """Whether tasks of Java's form run with our additions."""
        return self._clusters is not None

    def plain(self, config: ConnectorConfig, connector: ConnectorConfig) -> ConnectorConfig:
        """Return Java's form, with what is kept beside it."""
        hook = cast("_Plain | None", self._hook(connector, "java_task_config"))
        return config if hook is None else hook(config, connector)

    def same(
        self, one: ConnectorConfig | None, other: ConnectorConfig, connector: ConnectorConfig
    ) -> bool:
        """Return whether both are one task, in whichever form: what both tell must agree, what one
        tells may be missing in the other."""
        # The cheap answer first: it is asked per task and turn.
        if one is None or one == other:
            return one is not None
        plain = self.plain(one, connector)
        if plain != self.plain(other, connector):
            return False
        # What one tells and the other leaves out is computed at the start of the task (2).
        return all(one[it] == other[it] for it in one.keys() & other.keys() - plain.keys())

    def in_force(
        self, config: Mapping[str, str], connector: Mapping[str, str], tasks: int
    ) -> Mapping[str, str]:
        """Return what one of ``tasks`` tasks runs with; both configs are resolved."""
        hook = cast("_InForce | None", self._hook(connector, "task_config_in_force"))
        if hook is None or self._clusters is None:
            return config
        return hook(config, connector, tasks, self._clusters())

    def _hook(self, connector: ConnectorConfig, name: str) -> object:
        if self._clusters is None:
            return None
        # The class may be unknown to this worker; then there is one form.
        try:
            factory = self._plugins.find(connector.get("connector.class") or "")
        except ConfigError:
            return None
        return getattr(factory, name, None)


def parted(plain: ConnectorConfig) -> tuple[dict[str, str], dict[str, str]]:
    """Return what Java publishes of a plain config, and what is kept beside it: what no task can
    find by itself, and our deal."""
    texts = texts_of(plain)
    names = [name for name in texts if name.startswith(BESIDE)]
    beside = {name.removeprefix(BESIDE): texts.pop(name) for name in names}
    return texts, beside
