"""A line with real delay between two network namespaces: packets are held back, TCP connections pass through whole.

Flow: ``FarLine()`` -> a helper process (this module as a program) opens a network namespace and a TUN device on either
side, and forwards packets between them after ``one_way_s`` -> processes started with ``inside`` in front
of their command reach this side at ``far_host`` over the line, and at ``near_host`` without it. What the
ends of a connection have in flight is then up to their own kernels, which a proxy that ends TCP hides
(``delay_proxy``). Linux only, as root. Devices and namespace go away with the helper and what was started inside.
"""

import ctypes
import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self, final

_NET_NAMESPACE: Final = 0x40000000
_SET_DEVICE: Final = 0x400454CA  # TUNSETIFF
_SET_OFFLOAD: Final = 0x400454D0  # TUNSETOFFLOAD
_DEVICE_FLAGS: Final = (
    0x0001 | 0x1000 | 0x4000
)  # TUN, no packet information, with the offload header
_OFFLOADS: Final = 0x01 | 0x02 | 0x04  # checksums and TCP segmentation: up to 64 KiB per read
_PACKET_BYTES: Final = 128 * 1024
_QUEUE_BYTES: Final = 64 * 1024 * 1024
"""Packets held in one direction, above rate x delay of any test; as in a router, what comes beyond is dropped."""

_QUEUE_PACKETS: Final = "10000"
_START_TIMEOUT_S: Final = 90.0
_TUN: Final = Path("/dev/net/tun")


class LineUnavailableError(Exception):
    """This machine does not let us build a line; the text says why."""


def missing_for_a_line() -> str:
    """Return what this machine lacks for a line, empty if nothing."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "a line with real delay needs Linux and root"
    if not _TUN.exists():
        return f"a line with real delay needs {_TUN}"
    lacking = [name for name in ("ip", "nsenter") if shutil.which(name) is None]
    return f"a line with real delay needs the commands {lacking}" if lacking else ""


@final
class FarLine:
    """A namespace behind a line; as a context manager it is there from entry to exit.

    Raises:
        LineUnavailableError: on entry, where namespaces or devices are refused.
    """

    def __init__(self, one_way_s: float) -> None:
        self._one_way_s = one_way_s
        self._helper: subprocess.Popen[str] | None = None
        number = os.getpid() % 250 + 1
        self.far_host = f"198.18.{number}.1"
        """Address of this side as seen from inside, over the line."""
        self.near_host = f"198.19.{number}.1"
        """Address of this side as seen from inside, without delay."""

    @property
    def inside(self) -> tuple[str, ...]:
        """What a command begins with so that it runs behind the line."""
        assert self._helper is not None, "the line is not there"
        return ("nsenter", f"--net=/proc/{self._helper.pid}/ns/net", "--")

    def __enter__(self) -> Self:
        missing = missing_for_a_line()
        if missing:
            raise LineUnavailableError(missing)
        self._helper = subprocess.Popen(
            [sys.executable, "-m", __name__, self.far_host, str(self._one_way_s)],
            stdin=subprocess.PIPE,  # it ends with us: at our end it reads the end of its input
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self._wait_for(self._helper)
            self._bypass(self._helper.pid)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _wait_for(self, helper: "subprocess.Popen[str]") -> None:
        assert helper.stdout is not None
        ready, _, _ = select.select([helper.stdout], [], [], _START_TIMEOUT_S)
        if not ready or helper.stdout.readline() != "ready\n":
            raise LineUnavailableError(f"no line: {self._end()}")

    def _bypass(self, pid: int) -> None:
        """Lay a second way beside the line, without delay."""
        here, there = f"mmb{pid}", f"mmc{pid}"
        try:
            _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", str(pid))
            _ip("addr", "add", f"{self.near_host}/30", "dev", here)
            _ip("link", "set", here, "up")
            peer = self.near_host.rpartition(".")[0] + ".2"
            _ip("addr", "add", f"{peer}/30", "dev", there, inside=self.inside)
            _ip("link", "set", there, "up", inside=self.inside)
        except subprocess.CalledProcessError as error:
            raise LineUnavailableError(f"no veth devices: {error.stderr}") from error

    def _end(self) -> str:
        helper, self._helper = self._helper, None
        if helper is None:
            return ""
        helper.kill()
        said = helper.communicate()[1]
        # The namespace, and its device with it, lives as long as a process inside.
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", f"mmb{helper.pid}")
        return said.strip().rpartition("\n")[2]


def _ip(*arguments: str, inside: tuple[str, ...] = ()) -> None:
    command = [*inside, "ip", *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True)


# -- the helper process -------------------------------------------------------------------------------


@final
class _Way:
    """One direction: packets, and when each is due."""

    __slots__ = ("_due", "_into", "_one_way_s", "_queued_bytes", "out_of")

    def __init__(self, out_of: int, into: int, one_way_s: float) -> None:
        self.out_of, self._into, self._one_way_s = out_of, into, one_way_s
        self._due: deque[tuple[float, bytes]] = deque()
        self._queued_bytes = 0

    def take(self) -> None:
        """Read all packets that wait."""
        due = time.monotonic() + self._one_way_s
        while True:
            try:
                packet = os.read(self.out_of, _PACKET_BYTES)
            except BlockingIOError:
                return
            if self._queued_bytes + len(packet) <= _QUEUE_BYTES:
                self._due.append((due, packet))
                self._queued_bytes += len(packet)

    def give(self, now: float) -> float:
        """Write the packets that are due; return the seconds until the next one is."""
        due = self._due
        while due and due[0][0] <= now:
            packet = due.popleft()[1]
            self._queued_bytes -= len(packet)
            try:
                os.write(self._into, packet)
            except OSError:
                continue  # the kernel dropped it, as any router may
        return max(0.0, due[0][0] - now) if due else 1.0


def _open_device(name: str, host: str) -> int:
    device = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _SET_DEVICE, struct.pack("16sH22x", name.encode(), _DEVICE_FLAGS))
    fcntl.ioctl(device, _SET_OFFLOAD, _OFFLOADS)
    _ip("addr", "add", f"{host}/30", "dev", name)
    _ip("link", "set", name, "mtu", "1500", "txqueuelen", _QUEUE_PACKETS, "up")
    return device


def _run(host: str, one_way_s: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    here = _open_device(f"mma{os.getpid()}", host)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NET_NAMESPACE):
        raise OSError(ctypes.get_errno(), "unshare of the network namespace")
    _ip("link", "set", "lo", "up")
    there = _open_device("far", host.rpartition(".")[0] + ".2")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    ways = (_Way(here, there, one_way_s), _Way(there, here, one_way_s))
    by_device = {way.out_of: way for way in ways}
    poll = select.epoll()
    for descriptor in (here, there, sys.stdin.fileno()):
        poll.register(descriptor, select.EPOLLIN)
    while True:
        now = time.monotonic()
        pause_s = min(way.give(now) for way in ways)
        for descriptor, _ in poll.poll(pause_s):
            if descriptor not in by_device:
                return
            by_device[descriptor].take()


if __name__ == "__main__":
    _run(sys.argv[1], float(sys.argv[2]))
