"""The line with real delay that tests over a long round trip use."""

import socket
import subprocess
import sys
import threading
from collections.abc import Generator

import pytest

from tests.kit.lines.far_line import FarLine, LineUnavailableError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ONE_WAY_S = 0.04

ASK = """
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as one:
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    best = 60.0
    for _ in range(5):
        began = time.monotonic()
        one.sendall(b"?")
        one.recv(1)
        best = min(best, time.monotonic() - began)
print(best)
"""


@pytest.fixture
def line() -> Generator[FarLine]:
    try:
        with FarLine(ONE_WAY_S) as line:
            yield line
    except LineUnavailableError as error:
        pytest.skip(str(error))


def echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while data := connection.recv(1):
            connection.sendall(data)


def round_trip_s(line: FarLine, host: str) -> float:
    """Return the shortest time from a byte to its echo, as a process behind the line sees it."""
    with socket.create_server((host, 0)) as server:
        threading.Thread(target=echo, args=(server,), daemon=True).start()
        port = str(server.getsockname()[1])
        command = [*line.inside, sys.executable, "-c", ASK, host, port]
        asked = subprocess.run(command, capture_output=True, text=True, check=True, timeout=90)
        return float(asked.stdout)


def test_a_round_trip_takes_twice_the_delay_of_the_line_and_none_beside_it(line: FarLine) -> None:
    assert round_trip_s(line, line.far_host) >= 2 * ONE_WAY_S
    assert round_trip_s(line, line.near_host) < ONE_WAY_S


def test_the_far_side_reaches_nothing_but_this_side(line: FarLine) -> None:
    shown = subprocess.run(
        [*line.inside, "ip", "-o", "addr"], capture_output=True, text=True, check=True
    )
    assert {text.split()[1].rstrip("0123456789") for text in shown.stdout.splitlines()} == {
        "lo",
        "far",
        "mmc",
    }


def test_nothing_of_a_line_is_left_behind_after_an_error() -> None:
    line = FarLine(ONE_WAY_S)
    with pytest.raises((ArithmeticError, LineUnavailableError)), line:
        raise ArithmeticError
    shown = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True)
    assert line.far_host not in shown.stdout
    assert line.near_host not in shown.stdout
