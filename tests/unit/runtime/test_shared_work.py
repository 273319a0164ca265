"""Several nodes in one group: sharing, moving and losing work, and who may write."""

from mm2py.runtime.group.membership import Lost, MembershipLostError
from mm2py.testing.waiting import until
from mm2py.types import TaskId
from tests.unit.runtime.herder_fakes import CONFIG, Cluster, Node, TestConnector

FOUR = "0 1 2 3"


async def _settled(cluster: Cluster, *tasks: str) -> None:
    """Wait until these tasks run, each once, and all states say so."""

    def done() -> bool:
        hosts = [node.host.running for node in cluster.nodes.values()]
        everywhere = sorted(str(task) for running in hosts for task in running)
        owned = sorted(str(t) for work in cluster.group.owners.values() for t in work.tasks)
        return everywhere == sorted(tasks) == owned

    await until(done)
    await cluster.clock.settle()


async def _stop(*nodes: Node) -> None:
    for node in nodes:
        await node.stop()


async def test_two_nodes_share_the_tasks_and_one_copy_of_each_runs() -> None:
    cluster = Cluster()
    first, second = cluster.node("n1").start(), cluster.node("n2").start()
    await until(lambda: first.membership.is_leader and len(cluster.group.members) == 2)
    await first.put(work=FOUR)
    await _settled(cluster, "c-0", "c-1", "c-2", "c-3")
    assert len(first.host.running) == len(second.host.running) == 2
    await until(lambda: all(first.state(TaskId("c", n)) == "RUNNING" for n in range(4)))
    stored = {first.status.tasks("c")[n].worker_id for n in range(4)}
    assert stored == {"n1:8083", "n2:8083"}
    await _stop(second, first)


async def test_a_worker_that_joins_takes_a_share_and_gives_nothing_up_while_it_runs_elsewhere() -> (
    None
):
    """Revoked work is stopped before the round that hands it on."""

    cluster = Cluster()
    first = cluster.node("n1").start()
    await first.put(work=FOUR)
    await _settled(cluster, "c-0", "c-1", "c-2", "c-3")
    second = cluster.node("n2").start()
    start_task = second.host.start_task

    async def alone(spec: object) -> None:
        running = set(first.host.running)
        assert getattr(spec, "id", None) not in running
        await start_task(spec)  # type: ignore[arg-type]  # passed on

    second.host.start_task = alone  # type: ignore[method-assign]  # looks on
    await until(lambda: len(second.host.running) == 2)
    await _settled(cluster, "c-0", "c-1", "c-2", "c-3")
    assert not [e for e in first.host.events if e.startswith("stop")][2:], "two moved, two stayed"
    await _stop(first, second)


async def test_a_worker_that_stops_hands_its_work_to_the_others() -> None:
    cluster = Cluster()
    first, second = cluster.node("n1").start(), cluster.node("n2").start()
    await first.put(work=FOUR)
    await _settled(cluster, "c-0", "c-1", "c-2", "c-3")
    await first.stop()
    del cluster.nodes["n1"]
    await _settled(cluster, "c-0", "c-1", "c-2", "c-3")
    assert second.membership.is_leader
    await until(lambda: second.state("c") == "RUNNING")
    await second.stop()


async def test_a_node_that_lost_its_membership_in_a_round_comes_back_with_nothing() -> None:
    cluster = Cluster()
    node = cluster.node().start()
    await node.put()
    await node.runs("c-0", "c-1")
    node.membership.rejoin_errors = [MembershipLostError(Lost("expired"))]
    node.host.events.clear()
    node.note_permit()
    cluster.group.drop("n1")
    node.membership.request_rejoin()
    await until(lambda: len(node.host.events) == 6)
    assert node.host.events[0] == "suspend"
    assert sorted(node.host.events[1:3]) == ["stop c-0", "stop c-1"]
    assert node.host.events[3] == "resume"
    await node.stop()


async def test_connectors_run_on_the_leader_and_move_with_it_while_tasks_stay() -> None:
    """The leader alone writes task configs, so no worker has to reach another one to copy a new topic."""
    cluster = Cluster(max_delay_ms=3_000)
    first, second = cluster.node("n1").start(), cluster.node("n2").start()
    await until(lambda: first.membership.is_leader and len(cluster.group.members) == 2)
    await first.put("a", work="0")
    await first.put("b", work="0 1 2")
    await _settled(cluster, "a-0", "b-0", "b-1", "b-2")
    assert cluster.group.owners["n1"].connectors == {"a", "b"}
    there = frozenset(second.host.running)
    await first.stop()
    del cluster.nodes["n1"]
    await until(lambda: second.herder.leads and len(cluster.group.owners["n2"].connectors) == 2)
    assert frozenset(second.host.running) == there, (
        "tasks of the leaver wait for it, connectors do not"
    )
    assert not any(event.startswith("stop") for event in second.host.events[len(there) :])
    await second.put("b", work="0 1 2 3")
    await until(lambda: len(second.config.snapshot().tasks("b")) == 4)
    await second.stop()


async def test_a_connector_on_a_worker_that_does_not_lead_names_that_until_it_leads() -> None:
    """As an assignment of workers of an earlier version, or a leadership that is being lost."""
    cluster = Cluster()
    node = cluster.node().start()
    await node.put(work="0")
    await node.runs("c-0")
    cluster.group.leader_elsewhere = True
    node.membership.request_rejoin()
    await until(lambda: not node.membership.is_leader)
    await node.put(work="0 1")
    await cluster.clock.advance(11)
    assert any("only the leader writes task configs" in it for it in node.herder.problems())
    cluster.group.leader_elsewhere = False
    node.membership.request_rejoin()
    await cluster.clock.advance(2)
    await node.runs("c-0", "c-1")
    await node.stop()


async def test_a_partition_never_runs_on_two_nodes_while_tasks_change() -> None:
    """The round is the barrier: whoever joins has read the commit and stopped what it changed."""

    cluster = Cluster()
    first, second = cluster.node("n1").start(), cluster.node("n2").start()
    await until(lambda: first.membership.is_leader and len(cluster.group.members) == 2)
    await first.put(work=FOUR)
    await _settled(cluster, "c-0", "c-1", "c-2", "c-3")
    doubled: list[str] = []

    def look(node: Node, other: Node) -> None:
        start_task = node.host.start_task

        async def alone(spec: object) -> None:
            words = {s.config["p"] for s in other.host.running.values()}
            mine = getattr(spec, "config", {})["p"]
            doubled.extend(words & {mine})
            await start_task(spec)  # type: ignore[arg-type]  # passed on

        node.host.start_task = alone  # type: ignore[method-assign]  # looks on

    look(first, second)
    look(second, first)
    connector = TestConnector.made[-1]
    assert connector.context is not None
    for words in ("3 2 1 0", "1 0", "0 1 2 3", "2 3 0 1"):
        connector.configs = [{"p": word} for word in words.split()]
        connector.context.request_reconfiguration()
        await until(
            lambda words=words: (
                sorted(  # type: ignore[misc]  # mypy: lambda defaults
                    s.config["p"] for n in (first, second) for s in n.host.running.values()
                )
                == sorted(words.split())
                and [
                    config["p"]
                    for _, config in sorted(first.config.snapshot().task_configs.items())
                ][: len(words.split())]
                == words.split()
            )
        )
        await cluster.clock.settle()
    assert doubled == []
    await _stop(first, second)


async def test_only_a_new_leader_derives_configs_and_writes_only_what_differs() -> None:
    cluster = Cluster()
    file = {"c": CONFIG | {"name": "c", "work": "0"}}
    first = cluster.node("n1", effective=file).start()
    await first.runs("c-0")
    second = cluster.node("n2", effective=file).start()
    await until(lambda: len(cluster.group.members) == 2)
    await first.stop()
    del cluster.nodes["n1"]
    await second.runs("c-0")
    await cluster.clock.settle()
    written = [r for r in cluster.configs.records if r.key == b"connector-c"]
    assert len(written) == 1
    await second.stop()


async def test_a_restart_request_reaches_every_node_and_each_does_its_part() -> None:
    cluster = Cluster()
    first, second = cluster.node("n1").start(), cluster.node("n2").start()
    await until(lambda: first.membership.is_leader and len(cluster.group.members) == 2)
    await first.put(work=FOUR)
    await _settled(cluster, "c-0", "c-1", "c-2", "c-3")
    await until(lambda: all(first.state(TaskId("c", n)) == "RUNNING" for n in range(4)))
    for node in (first, second):
        node.host.events.clear()
    made = len(TestConnector.made)
    answer = await first.herder.restart("c", only_failed=False, include_tasks=True)
    assert {task.state.value for task in answer.tasks.values()} == {"RESTARTING"}
    await until(lambda: len(first.host.events) == len(second.host.events) == 4)
    assert len(TestConnector.made) == made + 1
    await until(lambda: all(first.state(TaskId("c", n)) == "RUNNING" for n in range(4)))
    await _stop(first, second)
