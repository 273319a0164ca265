"""``examples/systemd`` and ``examples/kubernetes``: what refers to something, refers to what is there."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, cast

import pytest
import yaml

from mm2py.config.findings import Severity
from mm2py.config.lint import lint
from mm2py.rest.routes.probes import LIVE, READY
from mm2py_workers.checked_connectors import CHECKED_CONNECTORS
from mm2py_workers.connect_arguments import CommandParser, WorkerOptions
from mm2py_workers.signals import DRAIN_TIMEOUT_S

EXAMPLES = Path(__file__).parents[3] / "examples"
UNIT = EXAMPLES / "systemd" / "mm2py.service"
KUBERNETES = EXAMPLES / "kubernetes"
SECRETS = "/etc/mm2py/secrets"

pytestmark = pytest.mark.timeout(60)


class At:
    """A node of a YAML document; ``a / "b" / 0`` goes down, and fails where nothing is."""

    def __init__(self, value: object) -> None:
        self.value: Final = value

    def __truediv__(self, key: str | int) -> "At":
        if isinstance(key, int):
            return At(cast("list[object]", self.value)[key])
        return At(cast("Mapping[str, object]", self.value)[key])

    def __iter__(self) -> Iterator["At"]:
        return map(At, cast("list[object]", self.value))

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, At) else other)

    __hash__ = None  # type: ignore[assignment]  # trees are mutable

    def __repr__(self) -> str:
        return repr(self.value)

    @property
    def text(self) -> str:
        return str(self.value)

    @property
    def labels(self) -> set[tuple[str, str]]:
        return set(cast("Mapping[str, str]", self.value).items())


def document(name: str) -> At:
    return At(yaml.safe_load((KUBERNETES / name).read_text("utf-8")))


def worker() -> tuple[At, At]:
    pod = document("deployment.yaml") / "spec" / "template" / "spec"
    return pod, pod / "containers" / 0


def options_of(words: list[str]) -> WorkerOptions:
    parser = CommandParser("connect-mirror-maker-py", "", "")
    return parser.parse_args(words, namespace=WorkerOptions())


# ---- Kubernetes


def test_the_base_has_each_of_its_files() -> None:
    base = document("kustomization.yaml")
    named = [it.text for it in base / "resources"]
    named += [it.text for it in base / "configMapGenerator" / 0 / "files"]
    assert {*named, "kustomization.yaml"} == {it.name for it in KUBERNETES.iterdir()}


def test_service_and_disruption_budget_select_the_pods_of_the_deployment() -> None:
    deployment = document("deployment.yaml") / "spec"
    labels = (deployment / "template" / "metadata" / "labels").labels
    for selector in (
        deployment / "selector" / "matchLabels",
        document("service.yaml") / "spec" / "selector",
        document("pod-disruption-budget.yaml") / "spec" / "selector" / "matchLabels",
        deployment / "template" / "spec" / "topologySpreadConstraints" / 0 / "labelSelector" / "matchLabels",
    ):  # fmt: skip
        assert selector.labels
        assert selector.labels <= labels


def test_probes_ask_paths_of_the_worker_and_only_readiness_depends_on_clusters() -> None:
    _, container = worker()
    ports = {(it / "name").text: (it / "containerPort").value for it in container / "ports"}
    asked = {}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = container / probe / "httpGet"
        assert (get / "port").text in ports
        asked[probe] = (get / "path").text
    assert asked == {"startupProbe": LIVE, "livenessProbe": LIVE, "readinessProbe": READY}
    service = document("service.yaml") / "spec" / "ports" / 0
    assert (service / "targetPort").text in ports
    text = (KUBERNETES / "mm2.properties").read_text("utf-8")
    assert f"listeners = http://0.0.0.0:{ports['http']}\n" in text
    assert f"internal.listener = http://:{ports['internal']}\n" in text


def test_the_worker_reads_the_file_that_is_mounted_and_secrets_are_files() -> None:
    pod, container = worker()
    mounts = {(it / "name").text: (it / "mountPath").text for it in container / "volumeMounts"}
    volumes = {(it / "name").text: it for it in pod / "volumes"}
    assert mounts.keys() == volumes.keys()
    options = options_of([it.text for it in container / "args"])
    assert options.file == f"{mounts['config']}/mm2.properties"
    assert options.log_format == "json"
    generated = document("kustomization.yaml") / "configMapGenerator" / 0 / "name"
    assert volumes["config"] / "configMap" / "name" == generated
    assert mounts["secrets"] == SECRETS
    assert "env" not in cast("Mapping[str, object]", container.value)


def test_a_pod_may_end_in_order() -> None:
    pod, _ = worker()
    assert cast("int", (pod / "terminationGracePeriodSeconds").value) > DRAIN_TIMEOUT_S + 5


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
    done = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES)],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    built = [At(it) for it in yaml.safe_load_all(done.stdout)]
    kinds = sorted((it / "kind").text for it in built)
    assert kinds == ["ConfigMap", "Deployment", "PodDisruptionBudget", "Service"]
    (config,) = (it for it in built if it / "kind" == "ConfigMap")
    (deployment,) = (it for it in built if it / "kind" == "Deployment")
    pod = deployment / "spec" / "template" / "spec"
    name = (config / "metadata" / "name").text
    assert name.startswith("mm2py-config-")
    assert pod / "volumes" / 0 / "configMap" / "name" == name
    assert pod / "containers" / 0 / "image" == "registry.example/mm2py:0.1.0"


@pytest.mark.skipif(
    shutil.which("kubernetes-validate") is None, reason="kubernetes-validate (PyPI) is missing"
)
def test_the_manifests_are_of_the_schemas_of_kubernetes(tmp_path: Path) -> None:
    def validated(manifest: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "manifest.yaml"
        file.write_text(manifest)
        words = ["kubernetes-validate", "--strict", str(file)]
        return subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)

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
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(file)],
            capture_output=True, text=True, timeout=50, check=False,
        )  # fmt: skip
        return "\n".join(line for line in done.stderr.splitlines() if UNIT.name in line)

    text = UNIT.read_text("utf-8").replace(unit()["ExecStart"].split()[0], "/bin/true")
    assert verify(text) == ""
    assert "KillMod" in verify(text.replace("KillMode=", "KillMod="))
