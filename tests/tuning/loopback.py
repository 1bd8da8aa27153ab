"""A tracker and servers of TVM's RPC as processes on loopback: a farm of boards to mistreat."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

KEY = "board"
_START_SECONDS = 100.0


class Server:
    """A process group that nobody else belongs to.

    Parameters
    ----------
    module : str
        Of `tvm.exec`.
    log : Path
        What it prints.
    arguments : str
        Its command line.
    """

    def __init__(self, module: str, log: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", f"tvm.exec.{module}", "--host", "127.0.0.1", *arguments]
        self.log = log
        with log.open("w") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""
        os.killpg(self._process.pid, number)

    def end(self) -> None:
        """Kill it if it is still there."""
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self._process.wait()

    def sessions(self) -> int:
        """Return how many sessions it has begun."""
        return self.log.read_text().count("connected from")

    def busy(self) -> bool:
        """Whether a client uses it now: a session is a process of its own, below two others."""
        try:
            return len(psutil.Process(self._process.pid).children(recursive=True)) > 1
        except psutil.NoSuchProcess:
            return False


class Loopback:
    """A tracker, and boards under `KEY`.

    Parameters
    ----------
    folder : Path
        For what they print.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = _free_port()
        ports = ("--port", str(self.port), "--port-end", str(self.port + 1))
        self.servers = [Server("rpc_tracker", folder / "tracker.log", *ports)]
        self.address = f"127.0.0.1:{self.port}"
        # A board that comes before its tracker tries again five seconds later.
        _wait(self._answers, self.servers)

    def add(self, count: int) -> list[Server]:
        """Start boards; they register by themselves."""
        return [self._add() for _ in range(count)]

    def _add(self) -> Server:
        port, log = _free_port(), self._folder / f"board-{len(self.servers)}.log"
        options = ("--tracker", self.address, "--key", KEY, "--port", str(port))
        server = Server("rpc_server", log, *options, "--port-end", str(port + 9))
        self.servers.append(server)
        return server

    def boards(self) -> int:
        """Return how many boards the tracker knows."""
        from tvm_blislike.tuning.farm import Farm

        return Farm("127.0.0.1", self.port, KEY).boards()[0]

    def wait_for(self, count: int) -> None:
        """Wait until so many boards are registered."""
        _wait(lambda: self.boards() == count, self.servers)

    def end(self) -> None:
        """End all of it."""
        for server in self.servers:
            server.end()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def _wait(condition: Callable[[], bool], servers: list[Server]) -> None:
    end = time.monotonic() + _START_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("\n".join(server.log.read_text() for server in servers))
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
