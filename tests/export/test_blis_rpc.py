"""blis_rpc against connections that lie or say nothing: built with sanitizers, on this machine."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import sanitized
from corpus import changed
from effort import EFFORT
from sanitized import Programs
from tvm import rpc
from tvm.rpc.tracker import Tracker

MAGIC, MISMATCH = 0xFF271, 0xFF273
# Of messages of a tracker.
LENGTHS = (-1, 65_535, 65_536, 2**31 - 1)
# What blis_rpc waits for a greeting, and how long an answer may take on a busy machine.
GREETING_SECONDS, PATIENCE = 10, 8


@dataclass(frozen=True)
class Server:
    """A running `blis_rpc`: its process, port, the folder of its sessions, what it wrote."""

    process: subprocess.Popen[str]
    port: int
    folder: Path
    messages: Path

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)


@contextlib.contextmanager
def _server(programs: Programs, folder: Path, *options: str) -> Iterator[Server]:
    """Start a server; when the block ends it must still run, and nothing be left or wrong."""
    sessions, messages = folder / "sessions", folder / "messages"
    sessions.mkdir()
    command = [str(programs.folder / "blis_rpc"), "127.0.0.1:0", "--key", "board", *options]
    environment = {**sanitized.environment(), "TMPDIR": str(sessions)}
    with (
        messages.open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        ) as process,
    ):
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().split("port ")[1].split(",")[0])
            yield Server(process, port, sessions, messages)
            assert process.poll() is None
        finally:
            process.terminate()
    text = messages.read_text()
    assert sanitized.is_clean(text) and "a session ended" not in text, text
    assert not os.listdir(sessions)


@pytest.fixture
def server(good_bundle: Programs, tmp_path: Path) -> Iterator[Server]:
    with _server(good_bundle, tmp_path) as server:
        yield server


def _greeting(key: str) -> bytes:
    request = f"client:{key} -timeout=60".encode()
    return struct.pack("<ii", MAGIC, len(request)) + request


def _answer(connection: socket.socket, key: str) -> int:
    connection.sendall(_greeting(key))
    return struct.unpack("<i", connection.recv(4, socket.MSG_WAITALL))[0]


def test_silent_connections_keep_nobody_waiting(server: Server) -> None:
    started = time.monotonic()
    silent = [server.connect() for _ in range(5)]
    silent[1].sendall(_greeting("board")[:2])
    silent[2].sendall(_greeting("board")[:-5])
    with server.connect() as client, server.connect() as stranger:
        assert _answer(client, "board") == MAGIC
        assert _answer(stranger, "another") == MISMATCH
    for connection in silent:
        connection.settimeout(GREETING_SECONDS + PATIENCE)
        assert connection.recv(4) == b""
        assert time.monotonic() - started > GREETING_SECONDS / 2
        connection.close()
    _use(rpc.connect("127.0.0.1", server.port, "board", session_timeout=60))


@contextlib.contextmanager
def _unless_hung_up() -> Iterator[None]:
    """End the block early where the other side has hung up: of a shutdown no ConnectionError."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, ConnectionError) and error.errno != errno.ENOTCONN:
            raise


def _send(server: Server, content: bytes) -> None:
    """Send all of it, and wait until the server hangs up."""
    with server.connect() as connection, _unless_hung_up():
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1000):
            pass


def _use(session: rpc.RPCSession) -> None:
    session.upload(bytearray(b"some bytes"), "file.bin")
    assert session.listdir(".") == "file.bin"


def test_greetings_changed_at_random(server: Server) -> None:
    # Of a stranger: what comes after a right one is read by TVM.
    good = _greeting("another")
    for seed in range(40 * EFFORT):
        _send(server, changed(good, np.random.default_rng(seed)))
    for size in (-1, 1023, 1024, 2**31 - 1, -(2**31)):
        _send(server, struct.pack("<ii", MAGIC, size) + b"x" * 3000)
    _use(rpc.connect("127.0.0.1", server.port, "board", session_timeout=60))


def test_the_trackers_clients_pass_silent_ones(good_bundle: Programs, tmp_path: Path) -> None:
    tracker = Tracker("127.0.0.1", port=9190, port_end=9290)
    try:
        place = f"127.0.0.1:{tracker.port}"
        with _server(good_bundle, tmp_path, "--tracker", place) as server, server.connect():
            client = rpc.connect_tracker("127.0.0.1", tracker.port)
            for _ in range(3):
                session = client.request("board", priority=1, session_timeout=60)
                _use(session)
                del session
    finally:
        tracker.terminate()


def test_a_tracker_that_lies(good_bundle: Programs, tmp_path: Path) -> None:
    answers = [b"", b"\0\0", b"HTTP/1.1 400", *(struct.pack("<ii", 0x2F271, n) for n in LENGTHS)]
    met = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)

        def lie() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(answer + b"x" * 70_000 * (len(answer) == 8))
            met.set()

        threading.Thread(target=lie, daemon=True).start()
        port = listener.getsockname()[1]
        with _server(good_bundle, tmp_path, "--tracker", f"127.0.0.1:{port}"):
            assert met.wait(30)
