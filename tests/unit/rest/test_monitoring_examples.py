"""``examples/monitoring``: rules and dashboard name metrics and labels that a worker exports, and each alert fires."""

import json
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from mm2py.rest.metric_families import FLOW_STATES, OWN_METRICS, PARTITION_STATES, MetricSpec
from mm2py_cli.flow_commands import WELL

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
pytestmark = pytest.mark.timeout(60)


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
FLOW = 'flow="A->B",instance="w1",job="mm2py"'
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
        **{f'mm2py_flow_state{{{FLOW},state="{s}"}}': f"{v}{FLAT}" for s, v in states.items()},
        **{f'mm2py_partitions{{{FLOW},state="{s}"}}': f"0{FLAT}" for s in PARTITION_STATES},
        f'mm2py_partition_state{{{FLOW},topic="heartbeats",partition="0",state="RUNNING"}}': f"1{FLAT}",
        f'mm2py_partition_state{{{FLOW},topic="t",partition="0",state="RUNNING"}}': f"1{FLAT}",
        f"mm2py_failed_partitions{{{FLOW}}}": f"0{FLAT}",
        f'mm2py_rpo_seconds{{{FLOW},topic="t",partition="0"}}': f"3{FLAT}",
        f"mm2py_records_lost_total{{{FLOW}}}": f"7{FLAT}",
        f'mm2py_newest_record_timestamp_seconds{{{FLOW},topic="heartbeats",partition="0"}}': (
            f"0+60x{HOURS_2}"
        ),
        f'mm2py_newest_record_timestamp_seconds{{{FLOW},topic="t",partition="0"}}': f"5{FLAT}",
        f'mm2py_groups{{{FLOW},kind="group",state="NOT_SYNCED"}}': f"0{FLAT}",
        f'mm2py_groups{{{FLOW},kind="group",state="IN_USE"}}': f"0{FLAT}",
        f'mm2py_groups{{{FLOW},kind="group",state="SYNCED"}}': f"3{FLAT}",
        f'mm2py_flow_findings{{{FLOW},finding="gone on the source"}}': f"1{FLAT}",
        f'mm2py_flow_state{{{BACK},state="DISABLED"}}': f"1{FLAT}",
        f'mm2py_flow_state{{{BACK},state="RUNNING"}}': f"0{FLAT}",
        f'mm2py_backfill_state{{{FLOW},state="FAILED"}}': f"0{FLAT}",
        f"mm2py_memberships_lost_total{{{FLOW}}}": f"1{FLAT}",
        f'mm2py_restarts_total{{{FLOW},what="task"}}': f"4{FLAT}",
        'mm2py_certificate_expiry_timestamp_seconds{owner="broker",cluster="B",address="b:1",instance="w1",job="mm2py"}': (
            f"{90 * 86_400}{FLAT}"
        ),
        'process_open_fds{job="mm2py",instance="w1"}': f"100{FLAT}",
        'process_max_fds{job="mm2py",instance="w1"}': f"1024{FLAT}",
    }


def bad_state(state: str) -> Mapping[str, str]:
    return {
        f'mm2py_flow_state{{{FLOW},state="RUNNING"}}': f"0{FLAT}",
        f'mm2py_flow_state{{{FLOW},state="{state}"}}': f"1{FLAT}",
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
            f'mm2py_flow_state{{{FLOW},state="RUNNING"}}': f"1+0x{HOURS_2 - 2} 0 0",
            f'mm2py_flow_state{{{FLOW},state="DEGRADED"}}': f"0+0x{HOURS_2 - 2} 1 1",
        },
        (),
    ),
    "a typing error in topics": (
        {f'mm2py_partition_state{{{FLOW},topic="t",partition="0",state="RUNNING"}}': f"_x{HOURS_2}"},
        ["FlowWithoutTopics"],
    ),
    "a name of topics that the source does not have any more": (
        {f'mm2py_flow_findings{{{FLOW},finding="topics"}}': f"_x20 1+0x{HOURS_2 - 20}"},
        ["TopicsMissing"],
    ),
    "no flow is enabled": (bad_state("DISABLED"), ["NothingEnabled"]),
    "a group that is active on the target for two hours": (
        {f'mm2py_groups{{{FLOW},kind="group",state="IN_USE"}}': f"1{FLAT}"},
        ["GroupsInUse"],
    ),
    "a group whose clients move": (
        {f'mm2py_groups{{{FLOW},kind="group",state="IN_USE"}}': f"0+0x{HOURS_2 - 50} 1+0x49"},
        (),
    ),
    "behind": (
        {f'mm2py_rpo_seconds{{{FLOW},topic="u",partition="1"}}': f"61{FLAT}"},
        ["FlowBehind"],
    ),
    "records lost just now": (
        {f"mm2py_records_lost_total{{{FLOW}}}": f"7+0x{HOURS_2 - 8} 12+0x7"},
        ["RecordsLost"],
    ),
    "a failed partition": (
        {f"mm2py_failed_partitions{{{FLOW}}}": f"1{FLAT}"},
        ["PartitionsFailed"],
    ),
    "a held partition": (
        {f'mm2py_partitions{{{FLOW},state="HELD"}}': f"2{FLAT}"},
        ["PartitionsHeld"],
    ),
    "no new heartbeat": (
        {
            f'mm2py_newest_record_timestamp_seconds{{{FLOW},topic="heartbeats",partition="0"}}': (
                f"0+60x{HOURS_2 - 10} {60 * (HOURS_2 - 10)}+0x9"
            )
        },
        ["HeartbeatOld"],
    ),
    "retention that overtakes the copy tomorrow and the day after": (
        {f"mm2py_retention_overtakes_seconds{{{FLOW}}}": f"80000{FLAT}"},
        ["RetentionOvertakes"],
    ),
    "a group that is refused": (
        {f'mm2py_groups{{{FLOW},kind="group",state="NOT_SYNCED"}}': f"1{FLAT}"},
        ["GroupsNotSynced"],
    ),
    "a failed backfill": (
        {f'mm2py_backfill_state{{{FLOW},state="FAILED"}}': f"1{FLAT}"},
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
    "memberships lost again and again": (
        {f"mm2py_memberships_lost_total{{{FLOW}}}": f"1+0x{HOURS_2 - 10} 2+1x9"},
        ["MembershipsLost"],
    ),
    "a task that fails each two minutes": (
        {f'mm2py_restarts_total{{{FLOW},what="task"}}': f"0+0.5x{HOURS_2}"},
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
    done = subprocess.run(
        ["promtool", *words], capture_output=True, text=True, timeout=50, check=False, cwd=FOLDER
    )
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
    content = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": scenes}
    file.write_text(yaml.safe_dump(content))
    assert "SUCCESS" in promtool("test", "rules", str(file))


@needs_promtool
def test_the_scrape_config_and_the_rules_are_accepted_by_prometheus() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "config", CONFIG.name)
