"""``examples``: monitoring, systemd, kubernetes and the demo refer to what is there, and each alert fires."""

import json
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping
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
from mm2py.rest.metric_families import FLOW_STATES, OWN_METRICS, PARTITION_STATES, MetricSpec
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


def test_the_worker_reads_the_file_that_is_mounted_and_secrets_are_files() -> None:
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


def test_a_pod_may_end_in_order() -> None:
    pod, _ = worker()
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
def test_every_metric_and_label_is_one_that_a_worker_exports(where: str, expr: str) -> None:
    plain = STRING.sub('""', expr)
    names = set(NAME.findall(plain)) - {
        name for _, labels in SELECTOR.findall(plain) for name in LABEL.findall(labels)
    }
    assert names, where
    assert names - OF_PROMETHEUS.keys() - SPECS.keys() == set()
    for name, labels in SELECTOR.findall(expr):
        assert set(LABEL.findall(labels)) <= labels_of(name), (where, name)
    for grouping in AGGREGATION.findall(plain):
        for name in names:
            assert {label.strip() for label in grouping.split(",")} <= labels_of(name), where


def test_counters_are_read_as_counters() -> None:
    for where, expr in expressions():
        for name in NAME.findall(STRING.sub('""', expr)):
            if name.endswith("_total") and where != "Records lost":
                assert re.search(rf"(?:rate|increase)\({name}", expr), where


def test_states_in_selectors_exist_and_the_alert_is_quiet_in_all_that_the_command_line_calls_well() -> (
    None
):
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

HOURS_2 = 120
LABELS = 'flow="A->B",instance="w1",job="mm2py"'
BACK = 'flow="B->A",instance="w1",job="mm2py"'
FLAT = f"+0x{HOURS_2}"


def well() -> dict[str, str]:
    """Series of two workers and a flow in which nothing is wrong; values in promtool's notation."""
    states = {state: int(state == "RUNNING") for state in FLOW_STATES}
    return {
        **{f'up{{job="mm2py",instance="{w}"}}': f"1{FLAT}" for w in ("w1", "w2")},
        **{
            f'mm2py_build_info{{version="1",job="mm2py",instance="{w}"}}': f"1{FLAT}"
            for w in ("w1", "w2")
        },
        **{f'mm2py_flow_state{{{LABELS},state="{s}"}}': f"{v}{FLAT}" for s, v in states.items()},
        **{f'mm2py_partitions{{{LABELS},state="{s}"}}': f"0{FLAT}" for s in PARTITION_STATES},
        f'mm2py_partition_state{{{LABELS},topic="heartbeats",partition="0",state="RUNNING"}}': f"1{FLAT}",
        f'mm2py_partition_state{{{LABELS},topic="t",partition="0",state="RUNNING"}}': f"1{FLAT}",
        f"mm2py_failed_partitions{{{LABELS}}}": f"0{FLAT}",
        f'mm2py_rpo_seconds{{{LABELS},topic="t",partition="0"}}': f"3{FLAT}",
        f"mm2py_records_lost_total{{{LABELS}}}": f"7{FLAT}",
        f'mm2py_newest_record_timestamp_seconds{{{LABELS},topic="heartbeats",partition="0"}}': (
            f"0+60x{HOURS_2}"
        ),
        f'mm2py_newest_record_timestamp_seconds{{{LABELS},topic="t",partition="0"}}': f"5{FLAT}",
        f'mm2py_groups{{{LABELS},kind="group",state="NOT_SYNCED"}}': f"0{FLAT}",
        f'mm2py_groups{{{LABELS},kind="group",state="IN_USE"}}': f"0{FLAT}",
        f'mm2py_groups{{{LABELS},kind="group",state="SYNCED"}}': f"3{FLAT}",
        f'mm2py_flow_findings{{{LABELS},finding="gone on the source"}}': f"1{FLAT}",
        f'mm2py_flow_state{{{BACK},state="DISABLED"}}': f"1{FLAT}",
        f'mm2py_flow_state{{{BACK},state="RUNNING"}}': f"0{FLAT}",
        f'mm2py_backfill_state{{{LABELS},state="FAILED"}}': f"0{FLAT}",
        f"mm2py_memberships_lost_total{{{LABELS}}}": f"1{FLAT}",
        f'mm2py_restarts_total{{{LABELS},what="task"}}': f"4{FLAT}",
        'mm2py_certificate_expiry_timestamp_seconds{owner="broker",cluster="B",address="b:1",instance="w1",job="mm2py"}': (
            f"{90 * 86_400}{FLAT}"
        ),
        'process_open_fds{job="mm2py",instance="w1"}': f"100{FLAT}",
        'process_max_fds{job="mm2py",instance="w1"}': f"1024{FLAT}",
    }


def bad_state(state: str) -> Mapping[str, str]:
    return {
        f'mm2py_flow_state{{{LABELS},state="RUNNING"}}': f"0{FLAT}",
        f'mm2py_flow_state{{{LABELS},state="{state}"}}': f"1{FLAT}",
    }


CERTIFICATE = 'mm2py_certificate_expiry_timestamp_seconds{owner="broker",cluster="B",address="b:1",instance="w1",job="mm2py"}'
BUILD_2 = 'mm2py_build_info{version="1",job="mm2py",instance="w2"}'
SCENES: Mapping[str, tuple[Mapping[str, str], Collection[str]]] = {
    "all is well": ({}, ()),
    **{
        f"the flow is {state}": (bad_state(state), ["FlowNotWell"])
        for state in FLOW_STATES
        if state not in WELL
    },
    "a flow that is not to run": (bad_state("PAUSED"), ()),
    "a state of a minute": (
        {
            f'mm2py_flow_state{{{LABELS},state="RUNNING"}}': f"1+0x{HOURS_2 - 2} 0 0",
            f'mm2py_flow_state{{{LABELS},state="DEGRADED"}}': f"0+0x{HOURS_2 - 2} 1 1",
        },
        (),
    ),
    "a typing error in topics": (
        {f'mm2py_partition_state{{{LABELS},topic="t",partition="0",state="RUNNING"}}': f"_x{HOURS_2}"},
        ["FlowWithoutTopics"],
    ),
    "a name of topics that the source does not have any more": (
        {f'mm2py_flow_findings{{{LABELS},finding="topics"}}': f"_x20 1+0x{HOURS_2 - 20}"},
        ["TopicsMissing"],
    ),
    "no flow is enabled": (bad_state("DISABLED"), ["NothingEnabled"]),
    "a group that is active on the target for two hours": (
        {f'mm2py_groups{{{LABELS},kind="group",state="IN_USE"}}': f"1{FLAT}"},
        ["GroupsInUse"],
    ),
    "a group whose clients move": (
        {f'mm2py_groups{{{LABELS},kind="group",state="IN_USE"}}': f"0+0x{HOURS_2 - 50} 1+0x49"},
        (),
    ),
    "behind": (
        {f'mm2py_rpo_seconds{{{LABELS},topic="u",partition="1"}}': f"61{FLAT}"},
        ["FlowBehind"],
    ),
    "records lost just now": (
        {f"mm2py_records_lost_total{{{LABELS}}}": f"7+0x{HOURS_2 - 8} 12+0x7"},
        ["RecordsLost"],
    ),
    "records that a new worker found lost before its first scrape": (
        {f"mm2py_records_lost_total{{{LABELS.replace('w1', 'w3')}}}": f"_x{HOURS_2 - 5} 12+0x4"},
        ["RecordsLost"],
    ),
    "a failed partition": (
        {f"mm2py_failed_partitions{{{LABELS}}}": f"1{FLAT}"},
        ["PartitionsFailed"],
    ),
    "a held partition": (
        {f'mm2py_partitions{{{LABELS},state="HELD"}}': f"2{FLAT}"},
        ["PartitionsHeld"],
    ),
    "partitions that a job copies": (
        {
            f'mm2py_partitions{{{LABELS},state="HELD"}}': f"2{FLAT}",
            f'mm2py_backfill_partitions{{{LABELS},state="RESERVED"}}': f"1{FLAT}",
            f'mm2py_backfill_partitions{{{LABELS},state="COPYING"}}': f"1{FLAT}",
            f'mm2py_backfill_state{{{LABELS},state="RUNNING"}}': f"1{FLAT}",
        },
        [],
    ),
    "partitions that a job has which failed": (
        {
            f'mm2py_partitions{{{LABELS},state="HELD"}}': f"2{FLAT}",
            f'mm2py_backfill_partitions{{{LABELS},state="COPYING"}}': f"2{FLAT}",
            f'mm2py_backfill_state{{{LABELS},state="RUNNING"}}': f"0{FLAT}",
            f'mm2py_backfill_state{{{LABELS},state="FAILED"}}': f"1{FLAT}",
        },
        ["BackfillFailed", "PartitionsHeld"],
    ),
    "no new heartbeat": (
        {
            f'mm2py_newest_record_timestamp_seconds{{{LABELS},topic="heartbeats",partition="0"}}': (
                f"0+60x{HOURS_2 - 10} {60 * (HOURS_2 - 10)}+0x9"
            )
        },
        ["HeartbeatOld"],
    ),
    "retention that overtakes the copy tomorrow and the day after": (
        {f"mm2py_retention_overtakes_seconds{{{LABELS}}}": f"80000{FLAT}"},
        ["RetentionOvertakes"],
    ),
    "a group that is refused": (
        {f'mm2py_groups{{{LABELS},kind="group",state="NOT_SYNCED"}}': f"1{FLAT}"},
        ["GroupsNotSynced"],
    ),
    "a failed backfill": (
        {f'mm2py_backfill_state{{{LABELS},state="FAILED"}}': f"1{FLAT}"},
        ["BackfillFailed"],
    ),
    "a worker that does not answer": (
        {'up{job="mm2py",instance="w2"}': f"0{FLAT}", BUILD_2: f"1+0x{HOURS_2 - 20} stale"},
        ["WorkerDown", "WorkersMissing"],
    ),
    "a worker that Prometheus does not know any more": (
        {'up{job="mm2py",instance="w2"}': "1 stale", BUILD_2: f"1+0x{HOURS_2 - 20} stale"},
        ["WorkersMissing"],
    ),
    "workers that were replaced, one more for four minutes": (
        {BUILD_2.replace("w2", "w3"): f"_x{HOURS_2 - 40} 1+0x3 stale"},
        (),
    ),
    "memberships lost again and again": (
        {f"mm2py_memberships_lost_total{{{LABELS}}}": f"1+0x{HOURS_2 - 10} 2+1x9"},
        ["MembershipsLost"],
    ),
    "a task that fails each two minutes": (
        {f'mm2py_restarts_total{{{LABELS},what="task"}}': f"0+0.5x{HOURS_2}"},
        ["RestartsRepeat"],
    ),
    "a certificate of ten days": ({CERTIFICATE: f"{10 * 86_400}{FLAT}"}, ["CertificateExpires"]),
    "a certificate that has expired": ({CERTIFICATE: f"60{FLAT}"}, ["CertificateExpires"]),
    "a certificate that was renewed, as the other worker saw": (
        {
            CERTIFICATE: f"60{FLAT}",
            CERTIFICATE.replace("w1", "w2"): f"{90 * 86_400}{FLAT}",
        },
        (),
    ),
    "files run out": ({'process_open_fds{job="mm2py",instance="w1"}': f"900{FLAT}"}, ["FilesRunOut"]),
}  # fmt: skip


def test_every_alert_has_a_scene() -> None:
    fired = {alert for _, alerts in SCENES.values() for alert in alerts}
    assert fired | {"NoWorker"} == {rule["alert"] for rule in rules()}


def promtool(*words: str) -> str:
    done = ran("promtool", *words, cwd=FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def scene(name: str, series: Mapping[str, str], alerts: Collection[str]) -> dict[str, object]:
    firing = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(alerts)]
    expr = 'count by (alertname) (count by (alertname, flow) (ALERTS{alertstate="firing"}))'
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": key, "values": value} for key, value in series.items()],
        "promql_expr_test": [{"expr": expr, "eval_time": "2h", "exp_samples": firing}],
    }


@needs_promtool
def test_each_alert_fires_in_its_scene_and_no_other_does(tmp_path: Path) -> None:
    scenes = [scene(name, {**well(), **more}, alerts) for name, (more, alerts) in SCENES.items()]
    scenes.append(scene("nothing is scraped", {"other": f"1{FLAT}"}, ["NoWorker"]))
    file = tmp_path / "scenes.yaml"
    content = {"rule_files": [str(ALERTS)], "evaluation_interval": "5m", "tests": scenes}
    file.write_text(yaml.safe_dump(content))
    assert "SUCCESS" in promtool("test", "rules", str(file))


@needs_promtool
def test_the_scrape_config_and_the_rules_are_accepted_by_prometheus() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "config", CONFIG.name)
