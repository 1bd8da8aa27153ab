"""Measuring on boards that a tracker of TVM's RPC knows, as many at once as there are.

Boards may join, leave, die or hang at any time: what one of them loses another measures again.
MetaSchedule's runner for RPC keeps to the number of boards of its start, waits for a hung one
without end, and takes a board's failure for the candidate's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from tvm_blislike.errors import TargetError
from tvm_blislike.export.link import find_compiler, link, machine_of
from tvm_blislike.hardware import Core
from tvm_blislike.tuning.board import BoardUser, Reply, build_board_side
from tvm_blislike.tuning.farm import Farm
from tvm_blislike.tuning.kernels import CandidateGroup, Timing
from tvm_blislike.tuning.measure import (
    BundleRunner,
    GivenUpError,
    Measured,
    Wait,
    failures,
    measured,
)

# Boards that a group may lose before its candidates are to blame.
_TRIES = 3
# How often the tracker is asked for free boards while something is to be measured.
_TICK_SECONDS = 0.5
# Time without a board before it is mentioned.
_QUIET_SECONDS = 5.0


class RemoteRunner(BundleRunner):
    """Builds here, measures on the boards registered under a key.

    Parameters
    ----------
    core, threads, timing, build_seconds, executor
        As for `BundleRunner`; `core` is that of the boards.
    tracker : str
        "HOST:PORT".
    key : str
        What the boards are registered under.
    run_seconds : float
        Time that a board may take for a group, waiting for the board not included.
    patience_seconds : float
        Time without any board after which measuring ends.
    start_seconds : float
        Time that the tracker and a board may take to appear at first.
    emulated : bool
        Says that the boards are emulated. Emulators of single programs, such as qemu-user, are
        recognized without it.

    Raises
    ------
    UsageError
        When `tracker` is not of that form.
    TargetError
        When the tracker does not answer or knows no such board, or a board cannot load libraries
        for `core`; while measuring, when there was no board for `patience_seconds`.
    """

    def __init__(
        self,
        core: Core,
        threads: int,
        timing: Timing,
        tracker: str,
        key: str,
        build_seconds: float = 120.0,
        run_seconds: float = 60.0,
        patience_seconds: float = 120.0,
        start_seconds: float = 20.0,
        emulated: bool = False,
        executor: Executor | None = None,
    ) -> None:
        self._farm = Farm.at(tracker, key, start_seconds)
        self._run_seconds, self._patience = run_seconds, patience_seconds
        self._idle: list[BoardUser] = []
        super().__init__(core, threads, timing, build_seconds, executor)
        try:
            self.emulated = self._probe() or emulated
        except BaseException:
            self.close()
            raise

    def at_once(self) -> int:
        """Return how many boards are registered."""
        return self._boards()[0]

    def _objects(self) -> list[str]:
        return [build_board_side(self.target_config, self._folder)]

    def _start(self) -> None:
        """Nothing: processes start with the first measurements."""

    def _probe(self) -> bool:
        """Whether a board is emulated; False if none is free: every reply says so again."""
        if not self._boards()[1]:
            return False
        library = str(Path(self._folder) / "probe.so")
        link(find_compiler(self.target_config), library, self.objects)
        user = self._user()
        reply = user.probe(library)
        self._idle.append(user)
        if reply.kind == "failed":
            raise TargetError(
                f"a board {self._farm} cannot load libraries for {machine_of(self.target_config)}: "
                f"{reply.message.strip().splitlines()[-1]}"
            )
        return reply.emulated

    def _user(self) -> BoardUser:
        if self._idle:
            return self._idle.pop()
        return BoardUser(self._farm, self._run_seconds, self._worker_start())

    def _stop(self) -> None:
        for user in self._idle:
            user.end()

    def _boards(self) -> tuple[int, int]:
        """Return how many boards there are and how many are free; none without a tracker."""
        try:
            return self._farm.boards()
        except TargetError:
            return 0, 0

    def _run(self, built: Sequence[tuple[CandidateGroup, str]], wait: Wait) -> Measured:
        waiting = deque(_Task(group, library) for group, library in built)
        running, absence = _Running(), _Absence(self._farm, self._patience)
        try:
            while waiting or running.users:
                self._occupy(waiting, running)
                task, reply = running.next(_TICK_SECONDS)
                if task and reply:
                    yield from self._settle(task, reply, waiting, running)
                    absence.reason = reply.message
                if running.any_connected() or (reply and reply.kind != "unreachable"):
                    absence.end()
                elif not absence.bear(wait):
                    raise GivenUpError
        finally:
            running.end()

    def _occupy(self, waiting: deque[_Task], running: _Running) -> None:
        """Start as many tasks as there are free boards that nobody is about to take."""
        if not waiting:
            return
        for _ in range(self._boards()[1] - running.asking()):
            if waiting:
                running.start(waiting.popleft(), self._user(), self.timing)

    def _settle(
        self, task: _Task, reply: Reply, waiting: deque[_Task], running: _Running
    ) -> Measured:
        """Yield what came of a task, or let it wait for another board."""
        self._idle.append(running.users.pop(task))
        task.lost += reply.kind == "lost"
        if reply.kind == "ok":
            yield task.group, measured(task.group, reply.numbers, reply.emulated)
        elif reply.kind == "failed" or task.lost == _TRIES:
            lost = f": {_TRIES} boards were lost" if reply.kind == "lost" else ""
            what = f"cannot be run{lost}"
            yield task.group, failures(task.group, what, reply.message, reply.emulated)
        else:
            waiting.append(task)


@dataclass(eq=False)
class _Task:
    """A library to measure, and how many boards were lost with it."""

    group: CandidateGroup
    library: str
    lost: int = 0


class _Running:
    """Tasks on boards, each waited for by a thread of its own."""

    def __init__(self) -> None:
        self.users: dict[_Task, BoardUser] = {}
        self._replies: SimpleQueue[tuple[_Task, Reply]] = SimpleQueue()

    def start(self, task: _Task, user: BoardUser, timing: Timing) -> None:
        """Let a user measure a task."""
        self.users[task] = user
        user.connected = False

        def work() -> None:
            self._replies.put((task, user.measure(task.group, timing, task.library)))

        Thread(target=work, daemon=True).start()

    def next(self, seconds: float) -> tuple[_Task, Reply] | tuple[None, None]:
        """Return a task that is over with its reply, if there is one within some seconds."""
        try:
            return self._replies.get(timeout=seconds)
        except Empty:
            return None, None

    def asking(self) -> int:
        """Return how many users have no board yet."""
        return sum(not user.connected for user in self.users.values())

    def any_connected(self) -> bool:
        """Whether a user has a board."""
        return any(user.connected for user in self.users.values())

    def end(self) -> None:
        """Give up what is running."""
        for user in self.users.values():
            user.end()


class _Absence:
    """Time without a board.

    Parameters
    ----------
    farm : Farm
        The boards.
    patience : float
        Seconds until it is an error.
    """

    def __init__(self, farm: Farm, patience: float) -> None:
        self._farm, self._patience = farm, patience
        self.reason = ""
        self.end()

    def end(self) -> None:
        """There is a board again."""
        self._began = time.monotonic()

    def bear(self, wait: Wait) -> bool:
        """Say what is waited for; return whether to go on.

        Raises
        ------
        TargetError
            When it took too long.
        """
        seconds = time.monotonic() - self._began
        if seconds > self._patience:
            reason = self.reason.strip().splitlines()[-1:] or ["none is free"]
            raise TargetError(
                f"no board {self._farm} for {self._patience:.0f} s: {reason[0]}",
                "what was measured is kept: the same command goes on from there",
            )
        return seconds < _QUIET_SECONDS or wait(f"waiting for a board {self._farm}")
