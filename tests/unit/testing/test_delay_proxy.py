"""The line of the chaos tests against an echo server on loopback."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.kit.lines.delay_proxy import DelayProxy, Way

ANSWER_S = 10.0
ROUND_TRIP_S = 0.1


@pytest.fixture
def echo() -> Iterator[int]:
    """Port of a server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def serve(connection: socket.socket) -> None:
            with connection:
                try:
                    while data := connection.recv(65536):
                        connection.sendall(data)
                except OSError:
                    return

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                taken.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(ANSWER_S)


@pytest.fixture
def line() -> Iterator[DelayProxy]:
    with DelayProxy() as line:
        yield line


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)


def ask(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return take(connection, len(data))


def take(connection: socket.socket, size: int) -> bytes:
    answer = b""
    while len(answer) < size:
        part = connection.recv(65536)
        assert part, "closed in mid-answer"
        answer += part
    return answer


def test_every_byte_is_late_by_the_round_trip(line: DelayProxy, echo: int) -> None:
    line.set_round_trip(ROUND_TRIP_S)
    with connect(line.front(echo)) as connection:
        began = time.monotonic()
        assert ask(connection, b"ping") == b"ping"
        assert time.monotonic() - began >= ROUND_TRIP_S


@pytest.mark.parametrize("way", list(Way))
def test_a_stalled_direction_gives_everything_when_it_is_healed(
    line: DelayProxy, echo: int, way: Way
) -> None:
    with connect(line.front(echo)) as connection:
        assert ask(connection, b"before") == b"before"
        line.stall(way)
        connection.sendall(b"during")
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(ANSWER_S)
        line.heal()
        assert take(connection, 6) == b"during"


def test_a_reset_ends_what_is_open_and_serves_what_comes(line: DelayProxy, echo: int) -> None:
    port = line.front(echo)
    with connect(port) as connection:
        assert ask(connection, b"before") == b"before"
        line.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with connect(port) as connection:
        assert ask(connection, b"after") == b"after"
