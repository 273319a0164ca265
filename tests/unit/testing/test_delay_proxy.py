"""The line of the chaos tests against an echo server on loopback."""

import gc
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


def test_what_goes_in_comes_out_unchanged_and_is_counted(line: DelayProxy, echo: int) -> None:
    data = bytes(range(256)) * 8192
    with connect(line.front(echo)) as connection:
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        assert take(connection, len(data)) == data
        sender.join()
    assert line.passed_bytes(Way.REQUESTS) == line.passed_bytes(Way.REPLIES) == len(data)
    assert line.front(echo) == line.front(echo)


def test_every_byte_is_late_by_the_round_trip(line: DelayProxy, echo: int) -> None:
    line.set_round_trip(ROUND_TRIP_S)
    with connect(line.front(echo)) as connection:
        began = time.monotonic()
        assert ask(connection, b"ping") == b"ping"
        assert time.monotonic() - began >= ROUND_TRIP_S


def test_the_rate_holds_for_each_direction(line: DelayProxy, echo: int) -> None:
    line.set_round_trip(0.0, rate_bytes_s=1_000_000)
    with connect(line.front(echo)) as connection:
        began = time.monotonic()
        ask(connection, bytes(100_000))
        assert time.monotonic() - began >= 0.1


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


def test_a_refusing_line_serves_nobody_until_it_is_healed(line: DelayProxy, echo: int) -> None:
    port = line.front(echo)
    line.refuse()
    with pytest.raises(ConnectionResetError), connect(port) as connection:
        assert connection.recv(1)
    line.heal()
    with connect(port) as connection:
        assert ask(connection, b"after") == b"after"


def test_a_server_that_is_away_resets_the_client(line: DelayProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(ConnectionResetError), connect(line.front(port)) as connection:
        assert connection.recv(1)


def test_an_end_in_order_reaches_the_server_behind_the_data(line: DelayProxy, echo: int) -> None:
    line.set_round_trip(ROUND_TRIP_S)
    with connect(line.front(echo)) as connection:
        connection.sendall(b"last")
        connection.shutdown(socket.SHUT_WR)
        assert take(connection, 4) == b"last"
        assert connection.recv(1) == b""


def test_what_connects_while_the_line_closes_is_closed_too(
    echo: int, recwarn: pytest.WarningsRecorder
) -> None:
    for clients in range(50):
        with DelayProxy() as line:
            port = line.front(echo)
            connections = [connect(port) for _ in range(clients % 5 + 1)]
        for connection in connections:
            connection.close()
    gc.collect()
    assert [str(warning.message) for warning in recwarn.list] == []
