"""What a tracker of TVM's RPC says of the boards under a key."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Any

from tvm_blislike.errors import TargetError, UsageError

_ANSWER_SECONDS = 5.0
_TICK_SECONDS = 0.5


@dataclass(frozen=True)
class Farm:
    """The boards that are registered at a tracker under a key; they may come and go.

    Parameters
    ----------
    host : str
        Of the tracker.
    port : int
        Of the tracker.
    key : str
        What the boards are registered under.
    """

    host: str
    port: int
    key: str

    @staticmethod
    def at(tracker: str, key: str, start_seconds: float = 0.0) -> Farm:
        """Return the farm of a tracker "HOST:PORT" that has a board.

        Parameters
        ----------
        start_seconds : float
            How long both may take to appear: their programs may have been started just now.

        Raises
        ------
        UsageError
            When `tracker` is not of that form.
        TargetError
            When the tracker does not answer or knows no such board.
        """
        host, colon, port = tracker.rpartition(":")
        if not (host and colon and port.isdigit()):
            raise UsageError(f"{tracker!r} is not of the form HOST:PORT")
        farm, end = Farm(host, int(port), key), time.monotonic() + start_seconds
        while True:
            last = time.monotonic() >= end
            try:
                if farm.boards()[0]:
                    return farm
            except TargetError:
                if last:
                    raise
            if last:
                raise TargetError(f"no board {key!r} at the tracker {tracker}", _HINT)
            time.sleep(_TICK_SECONDS)

    def boards(self) -> tuple[int, int]:
        """Return how many boards are registered, and how many of them are free.

        Raises
        ------
        TargetError
            When the tracker does not answer.
        """
        from tvm import rpc

        try:
            # TVM's client would try for a minute.
            socket.create_connection((self.host, self.port), _ANSWER_SECONDS).close()
            summary = rpc.connect_tracker(self.host, self.port).summary()
        except (OSError, RuntimeError) as error:
            raise TargetError(f"no tracker answers at {self.host}:{self.port}", _HINT) from error
        registered = [item["key"] for item in summary["server_info"]].count(f"server:{self.key}")
        return registered, summary["queue_info"].get(self.key, {"free": 0})["free"]

    def session(self, seconds: int) -> Any:
        """Take a free board for some seconds; it is free again when the session is dropped.

        Raises
        ------
        TargetError
            When none becomes free.
        """
        from tvm import rpc

        try:
            tracker = rpc.connect_tracker(self.host, self.port)
            return tracker.request(self.key, session_timeout=seconds, max_retry=1)
        except (OSError, RuntimeError) as error:
            raise TargetError(f"no board {self} is free", _HINT) from error

    def __str__(self) -> str:
        return f"{self.key!r} at the tracker {self.host}:{self.port}"


_HINT = "python -m tvm.exec.query_rpc_tracker --host HOST --port PORT lists what is registered"
