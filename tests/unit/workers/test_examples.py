"""``examples``: monitoring, systemd, kubernetes and the demo refer to what is there, and each alert fires."""

import json
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.demo.demo import properties_text
from examples.demo.table import FlowTable
from examples.demo.verify import Comparison, Counts, Side
from examples.demo.verify_records import Difference
from mm2py.config.findings import Severity
from mm2py.config.lint import lint, load_checked
from mm2py.observability.metrics import Metrics
from mm2py.rest.metric_families import (
    FLOW_STATES,
    OWN_METRICS,
    PARTITION_STATES,
    WORKER_STATES,
    MetricSpec,
)
from mm2py.rest.routes.probes import LIVE, READY
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_cli.flow_commands import WELL
from mm2py_connectors.config import CONNECTORS
from mm2py_workers.checked_connectors import CHECKED_CONNECTORS
from mm2py_workers.connect_arguments import CommandParser, WorkerOptions
from mm2py_workers.signals import DRAIN_TIMEOUT_S

EXAMPLES = Path(__file__).parents[3] / "examples"
UNIT = EXAMPLES / "systemd" / "mm2py.service"
KUBERNETES = EXAMPLES / "kubernetes"
SECRETS = "/etc/mm2py/secrets"

pytestmark = pytest.mark.timeout(120)


def document(name: str) -> Any:
    return yaml.safe_load((KUBERNETES / name).read_text("utf-8"))


def worker() -> tuple[Any, Any]:
    pod = document("deployment.yaml")["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


def options_of(words: list[str]) -> WorkerOptions:
    parser = CommandParser("connect-mirror-maker-py", "", "")
    return parser.parse_args(words, namespace=WorkerOptions())


def ran(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end."""
    return subprocess.run(words, capture_output=True, text=True, timeout=90, check=False, cwd=cwd)


# ---- Kubernetes


def test_the_base_has_each_of_its_files() -> None:
    base = document("kustomization.yaml")
    named = base["resources"] + base["configMapGenerator"][0]["files"]
    assert {*named, "kustomization.yaml"} == {it.name for it in KUBERNETES.iterdir()}


def test_service_and_disruption_budget_select_the_pods_of_the_deployment() -> None:
    deployment = document("deployment.yaml")["spec"]
    labels = deployment["template"]["metadata"]["labels"].items()
    for selector in (
        deployment["selector"]["matchLabels"],
        document("service.yaml")["spec"]["selector"],
        document("pod-disruption-budget.yaml")["spec"]["selector"]["matchLabels"],
        deployment["template"]["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ):  # fmt: skip
        assert selector
        assert selector.items() <= labels


def test_probes_ask_paths_of_the_worker_and_only_readiness_depends_on_clusters() -> None:
    _, container = worker()
    ports = {it["name"]: it["containerPort"] for it in container["ports"]}
    asked = {}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = container[probe]["httpGet"]
        assert get["port"] in ports
        asked[probe] = get["path"]
    assert asked == {"startupProbe": LIVE, "livenessProbe": LIVE, "readinessProbe": READY}
    service = document("service.yaml")["spec"]["ports"][0]
    assert service["targetPort"] in ports
    text = (KUBERNETES / "mm2.properties").read_text("utf-8")
    assert f"listeners = http://0.0.0.0:{ports['http']}\n" in text
    assert f"internal.listener = http://:{ports['internal']}\n" in text


def test_the_worker_reads_mounted_files_as_secrets_too_and_may_end_in_order() -> None:
    pod, container = worker()
    mounts = {it["name"]: it["mountPath"] for it in container["volumeMounts"]}
    volumes = {it["name"]: it for it in pod["volumes"]}
    assert mounts.keys() == volumes.keys()
    options = options_of(container["args"])
    assert options.file == f"{mounts['config']}/mm2.properties"
    assert options.log_format == "json"
    generated = document("kustomization.yaml")["configMapGenerator"][0]["name"]
    assert volumes["config"]["configMap"]["name"] == generated
    assert mounts["secrets"] == SECRETS
    assert "env" not in container
    assert pod["terminationGracePeriodSeconds"] > DRAIN_TIMEOUT_S + 5


def test_the_properties_file_is_without_findings(tmp_path: Path) -> None:
    for name in ("source-password", "target-password"):
        (tmp_path / name).write_text("canary")
    (tmp_path / "rest-users").write_text("admin=canary\nprometheus=canary\n")
    file = tmp_path / "mm2.properties"
    text = (KUBERNETES / "mm2.properties").read_text("utf-8")
    assert SECRETS in text
    file.write_text(text.replace(SECRETS, str(tmp_path)))
    findings = lint(file, CHECKED_CONNECTORS)
    assert [it for it in findings if it.severity is not Severity.INFO] == []


@pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl, which has kustomize, is missing"
)
def test_kustomize_builds_the_base() -> None:
    done = ran("kubectl", "kustomize", KUBERNETES)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    kinds = sorted(it["kind"] for it in built)
    assert kinds == ["ConfigMap", "Deployment", "PodDisruptionBudget", "Service"]
    (config,) = (it for it in built if it["kind"] == "ConfigMap")
    (deployment,) = (it for it in built if it["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    name = config["metadata"]["name"]
    assert name.startswith("mm2py-config-")
    assert pod["volumes"][0]["configMap"]["name"] == name
    assert pod["containers"][0]["image"] == "registry.example/mm2py:0.1.0"


def test_the_manifests_are_of_the_schemas_of_kubernetes(tmp_path: Path) -> None:
    def validated(manifest: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "manifest.yaml"
        file.write_text(manifest)
        return ran(Path(sys.executable).with_name("kubernetes-validate"), "--strict", file)

    for name in ("deployment.yaml", "service.yaml", "pod-disruption-budget.yaml"):
        text = (KUBERNETES / name).read_text("utf-8")
        done = validated(text)
        assert done.returncode == 0, done.stderr
        assert validated(text.replace("spec:", "spec:\n  other: 1", 1)).returncode, name


# ---- systemd


def unit() -> dict[str, str]:
    lines = (
        line.split("=", 1) for line in UNIT.read_text("utf-8").splitlines() if line[:1] not in "#["
    )
    return {key: value for key, value in lines if key}


def test_the_unit_starts_a_worker_and_gives_it_time_to_stop() -> None:
    settings = unit()
    program, *words = settings["ExecStart"].split()
    assert Path(program).name == "connect-mirror-maker-py"
    assert options_of(words).file == "/etc/mm2py/mm2.properties"
    assert int(settings["TimeoutStopSec"]) > DRAIN_TIMEOUT_S + 5
    assert settings["Environment"] == f"MM2PY_STATE_DIR=/run/{settings['RuntimeDirectory']}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    def verify(text: str) -> str:
        file = tmp_path / UNIT.name
        file.write_text(text)
        done = ran("systemd-analyze", "verify", "--man=no", file)
        return "\n".join(line for line in done.stderr.splitlines() if UNIT.name in line)

    text = UNIT.read_text("utf-8").replace(unit()["ExecStart"].split()[0], "/bin/true")
    assert verify(text) == ""
    assert "KillMod" in verify(text.replace("KillMode=", "KillMod="))


# -- the demo's table, properties and topics


FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))


def test_a_row_says_what_is_wrong_and_how_much_was_lost() -> None:
    clock = FakeClock()
    metrics = Metrics(clock)
    meter = metrics.flow(FLOW)
    table = FlowTable(metrics, clock, lambda flow: [f"{flow.source}: away"] * 7)
    assert table.update()[0].wrongs() == ["A: away"] * 5 + ["and 2 more"]
    meter.count_event("gap", lost=1_200, may_be_doubled=3)
    (row,) = table.update()
    assert row.wrongs() == [
        "1,200 records lost (mm2py ledger FILE 'A->B' names them)",
        "3 records may be doubled",
        *["A: away"] * 3,
        "and 4 more",
    ]
    assert row.plain().endswith("STARTING; " + "; ".join(row.wrongs()))


def test_the_demos_file_has_two_flows_and_no_findings(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    path.write_text(properties_text("127.0.0.1:1", "127.0.0.1:2"))
    config, findings = load_checked(path, CONNECTORS)
    assert findings == []
    assert [str(flow) for flow in config.flows()] == ["A->B", "B->A"]
    assert all(config.flow_enabled(flow) for flow in config.flows())


@pytest.mark.parametrize(
    ("copy", "kills", "said"),
    [
        ("abcdef", 0, 0),
        ("abcdef", 1, 0),
        ("abcbcdef", 1, 2),
        ("abcdefdef", 1, 3),
        ("abbcdeef", 2, 2),
        ("abcbcdef", 0, "offset 3: key differs"),
        ("abbcdeef", 1, "offset 5: key differs"),
        ("abcbcef", 1, "offset 3: key differs"),
        ("abdef", 1, "offset 2: key differs"),
        ("abcdefx", 0, "goes on behind the end of A"),
    ],
)
def test_a_copy_may_repeat_a_tail_once_per_killed_worker_and_anything_else_is_a_difference(
    copy: str, kills: int, said: int | str
) -> None:
    if isinstance(said, str):
        with pytest.raises(Difference, match=said):
            _compared("abcdef", copy, kills)
    else:
        counts = _compared("abcdef", copy, kills)
        assert (counts.records, counts.doubled) == (6, said)


def _compared(source: str, copy: str, kills: int) -> Counts:
    counts = Counts()
    sides = (_side("A", "t", source), _side("B", "A.t", copy))
    Comparison(*sides, counts, kills).compare()
    return counts


def _side(region: str, topic: str, keys: str) -> Side:
    records = ((n, (key.encode(), b"v", (), (1, 0))) for n, key in enumerate(keys))
    return Side(region, TopicPartition(topic, 0), deque(records), len(keys))


# -- ``examples/monitoring``


FOLDER = Path(__file__).parents[3] / "examples" / "monitoring"
ALERTS, DASHBOARD, CONFIG = (
    FOLDER / name for name in ("alerts.yaml", "dashboard.json", "prometheus.yml")
)
SPECS: Mapping[str, MetricSpec] = {spec.name: spec for spec in OWN_METRICS}
OF_PROMETHEUS = {"up": {"job", "instance"}}
ADDED_BY_SCRAPE = {"job", "instance"}
STRING = re.compile(r'"[^"]*"')
NAME = re.compile(r"\b((?:mm2py|process|kafka)_\w+|up)\b(?!\s*\()")
SELECTOR = re.compile(r"\b((?:mm2py|process|kafka)_\w+|up)\{([^}]*)\}")
LABEL = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
JOINED = re.compile(r"\bon\s*\(([^)]*)\)\s*((?:mm2py|process|kafka)_\w+)")
AGGREGATION = re.compile(r"\bby\s*\(([^)]*)\)\s*\(")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is missing (Debian: apt-get install prometheus)",
)


def rules() -> list[dict[str, str]]:
    groups = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> Iterator[tuple[str, str]]:
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def expressions() -> list[tuple[str, str]]:
    return [*((rule["alert"], rule["expr"]) for rule in rules()), *panels()]


def labels_of(name: str) -> set[str]:
    return OF_PROMETHEUS.get(name) or {*SPECS[name].labels, *ADDED_BY_SCRAPE}


@pytest.mark.parametrize(("where", "expr"), expressions(), ids=[it for it, _ in expressions()])
def test_every_metric_and_label_is_one_that_a_worker_exports_and_counters_are_read_as_such(
    where: str, expr: str
) -> None:
    plain = STRING.sub('""', expr)
    names = set(NAME.findall(plain)) - {
        name for _, labels in SELECTOR.findall(plain) for name in LABEL.findall(labels)
    }
    assert names, where
    assert names - OF_PROMETHEUS.keys() - SPECS.keys() == set()
    for name, labels in SELECTOR.findall(expr):
        assert set(LABEL.findall(labels)) <= labels_of(name), (where, name)
    for on, name in JOINED.findall(plain):
        assert {label.strip() for label in on.split(",")} <= labels_of(name), where
    grouped = set(NAME.findall(JOINED.sub("", plain))) & names
    for grouping in AGGREGATION.findall(plain):
        for name in grouped:
            assert {label.strip() for label in grouping.split(",")} <= labels_of(name), where
    for name in NAME.findall(plain):
        if name.endswith("_total") and where != "Records lost":
            assert re.search(rf"(?:rate|increase)\({name}", expr), where


def test_states_in_selectors_exist_and_the_alert_is_quiet_in_all_that_commands_call_well() -> None:
    known = {"mm2py_flow_state": FLOW_STATES, "mm2py_partitions": PARTITION_STATES}
    for where, expr in expressions():
        for name, labels in SELECTOR.findall(expr):
            for states in re.findall(r'state[=!~]+"([^"]*)"', labels) if name in known else ():
                assert set(states.split("|")) <= set(known[name]), where
    (not_well,) = (rule["expr"] for rule in rules() if rule["alert"] == "FlowNotWell")
    quiet = re.search(r'state!~"(.*?)"', not_well)
    assert quiet is not None
    assert {state for state in FLOW_STATES if re.fullmatch(quiet[1], state)} == WELL


def test_each_alert_has_a_severity_a_summary_and_a_remedy() -> None:
    for rule in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]:
        for each in rule["rules"]:
            assert each["labels"]["severity"] in {"critical", "warning"}, each["alert"]
            assert set(each["annotations"]) == {"summary", "remedy"}, each["alert"]


def test_panels_do_not_overlap_and_each_has_a_query() -> None:
    taken: set[tuple[int, int]] = set()
    ids: set[int] = set()
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert panel["targets"], panel["title"]
        assert panel["id"] not in ids
        taken |= cells
        ids.add(panel["id"])


# ---- promtool: two hours of a scrape each minute

MINUTES = 120
FOR_ALL_TIME = f"+0x{MINUTES}"
CERTIFICATE = "mm2py_certificate_expiry_timestamp_seconds"
OF_A_BROKER = {"owner": "broker", "cluster": "B", "address": "b:1"}
Series = Mapping[str, str]


def series(name: str, values: str | int, **labels: str) -> Series:
    """One series in promtool's notation; a plain number is its value for all two hours."""
    shown = {"job": "mm2py", "instance": "w1", **labels}
    text = ",".join(f'{label}="{value}"' for label, value in shown.items())
    return {f"{name}{{{text}}}": f"{values}{FOR_ALL_TIME}" if isinstance(values, int) else values}


def of_flow(name: str, values: str | int, flow: str = "A->B", **labels: str) -> Series:
    return series(name, values, flow=flow, **labels)


def joined(found: Iterable[Series]) -> Series:
    return {name: values for each in found for name, values in each.items()}


def well() -> Series:
    """Series of two workers and a flow in which nothing is wrong."""
    newest, copied = "mm2py_newest_record_timestamp_seconds", "mm2py_partition_state"
    found = (
        *(series("up", 1, instance=worker) for worker in ("w1", "w2")),
        *(series("mm2py_build_info", 1, version="1", instance=worker) for worker in ("w1", "w2")),
        *(of_flow("mm2py_flow_state", int(it == "RUNNING"), state=it) for it in FLOW_STATES),
        *(of_flow("mm2py_partitions", 0, state=it) for it in PARTITION_STATES),
        of_flow(copied, 1, topic="heartbeats", partition="0", state="RUNNING"),
        of_flow(copied, 1, topic="t", partition="0", state="RUNNING"),
        of_flow("mm2py_failed_partitions", 0),
        of_flow("mm2py_rpo_seconds", 3, topic="t", partition="0"),
        of_flow("mm2py_records_lost_total", 7),
        of_flow(newest, f"0+60x{MINUTES}", topic="heartbeats", partition="0"),
        of_flow(newest, 5, topic="t", partition="0"),
        of_flow("mm2py_groups", 0, kind="group", state="NOT_SYNCED"),
        of_flow("mm2py_groups", 0, kind="group", state="IN_USE"),
        of_flow("mm2py_groups", 3, kind="group", state="SYNCED"),
        of_flow("mm2py_flow_findings", 1, finding="gone on the source"),
        of_flow("mm2py_flow_state", 1, flow="B->A", state="DISABLED"),
        of_flow("mm2py_flow_state", 0, flow="B->A", state="RUNNING"),
        of_flow("mm2py_backfill_state", 0, state="FAILED"),
        of_flow("mm2py_memberships_lost_total", 1),
        of_flow("mm2py_restarts_total", 4, what="task"),
        series(CERTIFICATE, 90 * 86_400, **OF_A_BROKER),
        series("process_open_fds", 100),
        series("process_max_fds", 1024),
    )
    return joined(found)


def bad_state(state: str) -> tuple[Series, ...]:
    return (
        of_flow("mm2py_flow_state", 0, state="RUNNING"),
        of_flow("mm2py_flow_state", 1, state=state),
    )


def turns(*values: int) -> str:
    """Each for the five minutes between two evaluations."""
    return " ".join(f"{value}+0x4" for value in values * (MINUTES // (5 * len(values)) + 1))


def build_of(worker: str, values: str) -> Series:
    return series("mm2py_build_info", values, version="1", instance=worker)


SCENES: list[tuple[str, tuple[Series, ...], Collection[str]]] = [
    ("all is well", (), ()),
    *((f"the flow is {it}", bad_state(it), ["FlowNotWell"]) for it in FLOW_STATES if it not in WELL),
    ("a task that fails again and again",
     (of_flow("mm2py_flow_state", 0, state="RUNNING"),
      of_flow("mm2py_flow_state", turns(1, 0), state="FAILED"),
      of_flow("mm2py_flow_state", turns(0, 1), state="DEGRADED")),
     ["FlowNotWell"]),
    ("a flow that is not to run", bad_state("PAUSED"), ()),
    ("a state of a minute",
     (of_flow("mm2py_flow_state", f"1+0x{MINUTES - 2} 0 0", state="RUNNING"),
      of_flow("mm2py_flow_state", f"0+0x{MINUTES - 2} 1 1", state="DEGRADED")),
     ()),
    ("a flow whose workers are gone while others run",
     (of_flow("mm2py_flow_state", f"0+0x{MINUTES - 20} stale", "C->D", state="DISABLED", instance="w9"),),
     ["FlowGone"]),
    ("a flow that was deleted",
     (of_flow("mm2py_flow_state", f"0+0x{MINUTES - 20} stale", "C->D", state="DISABLED"),), ()),
    ("a flow whose workers were replaced",
     (of_flow("mm2py_flow_state", f"0+0x{MINUTES - 3} stale", "C->D", state="DISABLED", instance="w8"),
      of_flow("mm2py_flow_state", f"_x{MINUTES - 2} 0+0x1", "C->D", state="DISABLED", instance="w9")),
     ()),
    *((f"a Connect worker is {it}", (series("mm2py_worker_state", 1, state=it),), ["WorkerNotWell"])
      for it in WORKER_STATES if it != "RUNNING"),
    ("a Connect worker", (series("mm2py_worker_state", 1, state="RUNNING"),), ()),
    ("a typing error in topics",
     (of_flow("mm2py_partition_state", f"_x{MINUTES}", topic="t", partition="0", state="RUNNING"),),
     ["FlowWithoutTopics"]),
    ("a name of topics that the source does not have any more",
     (of_flow("mm2py_flow_findings", f"_x20 1+0x{MINUTES - 20}", finding="topics"),),
     ["TopicsMissing"]),
    ("no flow is enabled", bad_state("DISABLED"), ["NothingEnabled"]),
    ("a group that is active on the target for two hours",
     (of_flow("mm2py_groups", 1, kind="group", state="IN_USE"),), ["GroupsInUse"]),
    ("a group whose clients move",
     (of_flow("mm2py_groups", f"0+0x{MINUTES - 50} 1+0x49", kind="group", state="IN_USE"),), ()),
    ("behind", (of_flow("mm2py_rpo_seconds", 61, topic="u", partition="1"),), ["FlowBehind"]),
    ("records lost just now",
     (of_flow("mm2py_records_lost_total", f"7+0x{MINUTES - 8} 12+0x7"),), ["RecordsLost"]),
    ("records that a new worker found lost before its first scrape",
     (of_flow("mm2py_records_lost_total", f"_x{MINUTES - 5} 12+0x4", instance="w3"),),
     ["RecordsLost"]),
    ("a failed partition", (of_flow("mm2py_failed_partitions", 1),), ["PartitionsFailed"]),
    ("a held partition", (of_flow("mm2py_partitions", 2, state="HELD"),), ["PartitionsHeld"]),
    ("partitions that a job copies",
     (of_flow("mm2py_partitions", 2, state="HELD"),
      of_flow("mm2py_backfill_partitions", 1, state="RESERVED"),
      of_flow("mm2py_backfill_partitions", 1, state="COPYING"),
      of_flow("mm2py_backfill_state", 1, state="RUNNING")),
     ()),
    ("partitions that a job has which failed",
     (of_flow("mm2py_partitions", 2, state="HELD"),
      of_flow("mm2py_backfill_partitions", 2, state="COPYING"),
      of_flow("mm2py_backfill_state", 0, state="RUNNING"),
      of_flow("mm2py_backfill_state", 1, state="FAILED")),
     ["BackfillFailed", "PartitionsHeld"]),
    ("no new heartbeat",
     (of_flow("mm2py_newest_record_timestamp_seconds",
              f"0+60x{MINUTES - 10} {60 * (MINUTES - 10)}+0x9", topic="heartbeats", partition="0"),),
     ["HeartbeatOld"]),
    ("no heartbeat since the worker started",
     (of_flow("mm2py_newest_record_timestamp_seconds", f"_x{MINUTES}", topic="heartbeats", partition="0"),),
     ["HeartbeatOld"]),
    ("heartbeats that a job copies",
     (of_flow("mm2py_newest_record_timestamp_seconds", f"_x{MINUTES}", topic="heartbeats", partition="0"),
      of_flow("mm2py_partition_state", f"_x{MINUTES}", topic="heartbeats", partition="0", state="RUNNING"),
      of_flow("mm2py_partition_state", 1, topic="heartbeats", partition="0", state="HELD")),
     ()),
    ("retention that overtakes the copy tomorrow and the day after",
     (of_flow("mm2py_retention_overtakes_seconds", 80_000),), ["RetentionOvertakes"]),
    ("a group that is refused",
     (of_flow("mm2py_groups", 1, kind="group", state="NOT_SYNCED"),), ["GroupsNotSynced"]),
    ("a failed backfill", (of_flow("mm2py_backfill_state", 1, state="FAILED"),), ["BackfillFailed"]),
    ("a worker that does not answer",
     (series("up", 0, instance="w2"), build_of("w2", f"1+0x{MINUTES - 20} stale")),
     ["WorkerDown", "WorkersMissing"]),
    ("a worker that Prometheus does not know any more",
     (series("up", "1 stale", instance="w2"), build_of("w2", f"1+0x{MINUTES - 20} stale")),
     ["WorkersMissing"]),
    ("workers that were replaced, one more for four minutes",
     (build_of("w3", f"_x{MINUTES - 40} 1+0x3 stale"),), ()),
    ("memberships lost again and again",
     (of_flow("mm2py_memberships_lost_total", f"1+0x{MINUTES - 10} 2+1x9"),), ["MembershipsLost"]),
    ("a task that fails each two minutes",
     (of_flow("mm2py_restarts_total", f"0+0.5x{MINUTES}", what="task"),), ["RestartsRepeat"]),
    ("a certificate of ten days",
     (series(CERTIFICATE, 10 * 86_400, **OF_A_BROKER),), ["CertificateExpires"]),
    ("a certificate that has expired",
     (series(CERTIFICATE, 60, **OF_A_BROKER),), ["CertificateExpires"]),
    ("a certificate that was renewed, as the other worker saw",
     (series(CERTIFICATE, 60, **OF_A_BROKER),
      series(CERTIFICATE, 90 * 86_400, **OF_A_BROKER, instance="w2")),
     ()),
    ("files run out", (series("process_open_fds", 900),), ["FilesRunOut"]),
]  # fmt: skip


def test_every_alert_has_a_scene() -> None:
    fired = {alert for *_, alerts in SCENES for alert in alerts}
    assert fired | {"NoWorker"} == {rule["alert"] for rule in rules()}


def promtool(*words: str) -> str:
    done = ran("promtool", *words, cwd=FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def scene(name: str, found: Series, alerts: Collection[str]) -> dict[str, object]:
    firing = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(alerts)]
    expr = 'count by (alertname) (count by (alertname, flow) (ALERTS{alertstate="firing"}))'
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": key, "values": value} for key, value in found.items()],
        "promql_expr_test": [{"expr": expr, "eval_time": "2h", "exp_samples": firing}],
    }


@needs_promtool
def test_each_alert_fires_in_its_scene_and_no_other_does(tmp_path: Path) -> None:
    scenes = [scene(name, joined([well(), *more]), alerts) for name, more, alerts in SCENES]
    scenes.append(scene("nothing is scraped", series("other", 1), ["NoWorker"]))
    file = tmp_path / "scenes.yaml"
    content = {"rule_files": [str(ALERTS)], "evaluation_interval": "5m", "tests": scenes}
    file.write_text(yaml.safe_dump(content))
    assert "SUCCESS" in promtool("test", "rules", str(file))


@needs_promtool
def test_the_scrape_config_and_the_rules_are_accepted_by_prometheus() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "config", CONFIG.name)
