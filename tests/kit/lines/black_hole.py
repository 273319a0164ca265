"""Addresses at which connections hang."""

import socket
from contextlib import suppress


class BlackHole:
    """A listener whose queue is full: attempts to connect hang, as at an address that drops packets.

    With room in its queue it accepts connections and never answers, as a frozen process does.
    """

    def __init__(self, host: str, port: int, *, accepts: bool = False) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((host, port))
        self._listener.listen(100 if accepts else 0)
        self._queued: list[socket.socket] = []
        for _ in range(0 if accepts else 4):
            sock = socket.socket()
            sock.setblocking(False)
            with suppress(BlockingIOError):
                sock.connect(self._listener.getsockname())
            self._queued.append(sock)

    def __enter__(self) -> None:
        """Nothing is left to do."""

    def __exit__(self, *_: object) -> None:
        for sock in (*self._queued, self._listener):
            sock.close()
