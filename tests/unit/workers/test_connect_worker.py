"""An ordinary worker's process: what ends it, and with which code. Nothing listens on Kafka's side here."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import ConfigError
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import Metrics
from mm2py_workers.connect_wiring import ConnectWorker, build_distributed, build_standalone
from mm2py_workers.signals import StopSignal
from mm2py_workers.worker_file import load_worker_file

pytestmark = pytest.mark.timeout(60)

FILE = """\
bootstrap.servers = 127.0.0.1:1
group.id = g
config.storage.topic = c
offset.storage.topic = o
status.storage.topic = s
key.converter = StringConverter
value.converter = JsonConverter
listeners = http://127.0.0.1:0
internal.listener = http://127.0.0.1:0
"""


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    def written(more: str = "") -> Path:
        path = tmp_path / "worker.properties"
        path.write_text(f"{FILE}offset.storage.file.filename = {tmp_path / 'offsets'}\n{more}")
        return path

    return written


def _built(path: Path, *, standalone: bool = False) -> ConnectWorker:
    loaded = load_worker_file(path, standalone=standalone)
    build = build_standalone if standalone else build_distributed
    return build(loaded, metrics=Metrics(SYSTEM_CLOCK), clock=SYSTEM_CLOCK, mask=SecretMask())


@pytest.mark.parametrize("standalone", [False, True])
async def test_a_stop_ends_a_worker_whose_cluster_is_away(
    standalone: bool, file: Callable[..., Path]
) -> None:
    worker = _built(file(), standalone=standalone)
    assert worker.herder.worker_id.startswith("127.0.0.1:")
    assert worker.herder.flow is None
    stop = StopSignal()

    async def begun() -> None:
        stop.ask()

    assert await worker.run(stop, begun) == 0


async def test_what_fails_at_the_beginning_ends_the_worker_and_is_told(
    file: Callable[..., Path],
) -> None:
    async def begun() -> None:
        raise ConfigError("no such connector")

    with pytest.raises(ConfigError, match="no such connector"):
        await _built(file()).run(StopSignal(), begun)


async def test_a_worker_is_known_by_the_address_that_it_advertises(
    file: Callable[..., Path],
) -> None:
    more = "rest.advertised.host.name = worker-1.example\nrest.advertised.port = 8083\n"
    worker = _built(file(more))
    await worker.abandon()
    assert worker.herder.worker_id == "worker-1.example:8083"


async def test_a_taken_port_that_was_asked_for_refuses_the_start(file: Callable[..., Path]) -> None:
    first = _built(file())
    port = first.herder.worker_id.rpartition(":")[2]
    path = file()
    path.write_text(
        path.read_text().replace(
            "listeners = http://127.0.0.1:0", f"listeners = http://127.0.0.1:{port}", 1
        )
    )
    try:
        with pytest.raises(ConfigError, match=rf"REST cannot listen at 127\.0\.0\.1:{port}"):
            _built(path)
    finally:
        await first.abandon()
