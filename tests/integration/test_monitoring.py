"""``examples/monitoring`` in a real Prometheus that scrapes a real worker: every panel has data, every rule is evaluated."""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import cast, final

import httpx
import pytest
import yaml

from tests.integration.mirror_process import running, until, until_equal
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, commit, wait_for_copy, write
from tests.kit.kafka.reaper import REAPER

pytestmark = [
    pytest.mark.integration,
    pytest.mark.faults,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        shutil.which("prometheus") is None,
        reason="prometheus is missing (Debian: apt-get install prometheus)",
    ),
]

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
WITHOUT_DATA = {"History: offsets left", "Certificates: days left"}
"""Of a flow without a backfill and without TLS."""
PROPERTIES = {
    "listeners": "http://127.0.0.1:0",
    "emit.heartbeats.enabled": "true",
    "heartbeats.replication.enabled": "true",
    "{source}->{target}.refresh.topics.interval.seconds": "2",
    "{source}->{target}.sync.group.offsets.enabled": "true",
    "{source}->{target}.refresh.groups.interval.seconds": "2",
}


@final
class Prometheus:
    """A running one, as its HTTP API answers."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=20)

    def _get(self, path: str, **query: str) -> object:
        reply = self._http.get(path, params=query)
        assert reply.status_code == 200, reply.text
        return reply.json()["data"]

    def is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def samples(self, expr: str) -> list[object]:
        return cast("dict[str, list[object]]", self._get("/api/v1/query", query=expr))["result"]

    def rules(self) -> list[dict[str, str]]:
        data = cast("dict[str, list[dict[str, list[dict[str, str]]]]]", self._get("/api/v1/rules"))
        return [rule for group in data["groups"] for rule in group["rules"]]

    def alerts(self) -> dict[str, str]:
        """Return the state of each alert that is not quiet."""
        data = cast("dict[str, list[dict[str, dict[str, str]]]]", self._get("/api/v1/alerts"))
        return {it["labels"]["alertname"]: str(it["state"]) for it in data["alerts"]}

    def close(self) -> None:
        self._http.close()


@contextmanager
def scraping(worker: str, folder: Path) -> Generator[Prometheus]:
    """Run Prometheus with the example's config, each second, at one worker."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [worker]}]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    shutil.copy(FOLDER / "alerts.yaml", folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = [
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (
        (folder / "prometheus.log").open("wb") as log,
        subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        REAPER.watch_process(process.pid)
        prometheus = Prometheus(f"http://{address}")
        try:
            until(prometheus.is_ready, 90, "Prometheus is ready")
            yield prometheus
        finally:
            prometheus.close()
            process.kill()
            process.wait()
            REAPER.forget_process(process.pid)


def panels() -> dict[str, list[str]]:
    """Return the queries of each panel as Grafana sends them, for all flows."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
    return {
        panel["title"]: [
            it["expr"].replace("$flow", ".*").replace("$__rate_interval", "1m")
            for it in panel["targets"]
        ]
        for panel in dashboard["panels"]
    }


def test_every_panel_has_data_no_alert_is_wrong_and_a_worker_that_ends_is_noticed(
    setup: Setup, tmp_path: Path
) -> None:
    topic = setup.topic("watched", 2)
    write(setup.a, topic, [Sent(0, b"v")] * 20)
    commit(setup.a, setup.unique("group"), topic, {0: 7})
    flow = setup.flow(topic, PROPERTIES)
    with running(flow.file) as worker:
        line = worker.wait_for_log("rest listens public=")
        found = re.search(r"public=http://([^/ ]+)", line)
        assert found is not None, line
        wait_for_copy(worker, flow, topic)
        with scraping(found[1], tmp_path) as prometheus:

            def without_data() -> set[str]:
                return {
                    title
                    for title, queries in panels().items()
                    if not any(prometheus.samples(query) for query in queries)
                }

            until_equal(without_data, WITHOUT_DATA, alive=worker)
            until_equal(lambda: {rule["health"] for rule in prometheus.rules()}, {"ok"})
            assert "firing" not in prometheus.alerts().values()
            groups = f'mm2py_groups{{flow="{flow.name}",state="SYNCED"}} == 1'
            until(lambda: prometheus.samples(groups), 90, "the group is synced", alive=worker)
            # The example's config leaves the names of other dashboards out.
            for name, least in (
                ("mirrorsourceconnector_record_age_ms_max", 1),
                ("mirrorsourceconnector_replication_latency_ms_max", 1),
                ("mirrorcheckpointconnector_checkpoint_latency_ms_max", 0),
            ):
                sample = re.compile(rf'{name}{{.*topic="{flow.remote(topic)}".*}} (\S+)')

                def is_shown(sample: re.Pattern[str] = sample, least: int = least) -> bool:
                    # The task may have started again since for a new topic, and then knows of none.
                    write(setup.a, topic, [Sent(0, b"v")])
                    text = httpx.get(f"http://{found[1]}/metrics?compat=strimzi").text
                    shown = sample.search(text)
                    return shown is not None and float(shown[1]) >= least

                until(is_shown, 90, name, alive=worker)
            assert worker.stop() == 0
            until(
                lambda: {"WorkerDown", "NoWorker"} <= prometheus.alerts().keys(),
                90,
                lambda: f"alerts: {prometheus.alerts()}",
            )
