"""Records that machines share: objects in a folder or behind a URL, and a local copy of them.

    STORE/0.3-tvm0.27/1a2b3c4d/2/20261124T101530-9f86d081884c7d65.jsonl

holds records of these versions, of the core with these facts, with 2 threads; the workload stands
in each line. An object is never changed: its name follows from its content, so writers never
overwrite each other's, readers take each once, and any of them may be joined by `cat`. What other
versions or cores measured is not even read.

Whatever goes wrong with the store, the local copy serves and nothing is lost: what could not be
sent is sent later.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from tvm_blislike.errors import OutputError, StoreWarning, warn_once
from tvm_blislike.hardware import Core
from tvm_blislike.model.validity import core_facts, minor_of, versions
from tvm_blislike.records import files
from tvm_blislike.records.objects import objects_in
from tvm_blislike.records.place import default_place, is_store, local_file
from tvm_blislike.records.record import BadRecordError, Record, fields_of

# Time that a store may take for one step: fsspec's own limits are minutes.
ANSWER_SECONDS = 30.0
# Objects that are asked for in one step; what was taken stays taken.
_AT_ONCE = 100
# After a failure this process does not ask again for so long, but for sending at the end.
_RETRY_SECONDS = 300.0
# What is measured is sent this often: a machine may go away at any time.
_SEND_SECONDS = 60.0
_NAME = re.compile(r"-([0-9a-f]{16})\.jsonl$")
_failed: dict[str, float] = {}

Result = TypeVar("Result")


class LocalRecords:
    """A file of records.

    Parameters
    ----------
    place : str or path
        The file.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place, self.path = os.fspath(place), local_file(place)

    def get(self, core: Core | None = None, threads: int | None = None) -> None:
        """Bring `path` up to date, for a core and a number of threads or for all."""

    def put(self, records: Sequence[Record]) -> None:
        """Add records.

        Raises
        ------
        OutputError
            When `path` cannot be written; it then ends as before.
        """
        files.append(self.path, records)

    def send(self) -> None:
        """Let others read what was put; warn where that is not possible yet."""

    def send_or_raise(self) -> None:
        """Let others read what was put.

        Raises
        ------
        OutputError
            When that is not possible.
        """


class Store(LocalRecords):
    """A store, and the local copy of what was read from it or is to be sent.

    Parameters
    ----------
    place : str or path
        A folder, or a URL that fsspec knows. A URL that ends in `.jsonl` is one file, only read.

    Raises
    ------
    UsageError, ToolchainError
        See `objects_in`.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        super().__init__(place)
        self._objects = objects_in(self.place)
        self._taken = self.path.with_name("taken")
        self._unsent = self.path.with_name("unsent.jsonl")
        self._sent = time.monotonic()

    def get(self, core: Core | None = None, threads: int | None = None) -> None:
        """Take in the objects of these versions that are new, or warn why that is impossible."""
        if time.monotonic() - _failed.get(self.place, -_RETRY_SECONDS) < _RETRY_SECONDS:
            return
        parts = [] if core is None else [core_facts(core), *([] if threads is None else [threads])]
        folder = "/".join([_folder(versions()), *map(str, parts)])
        try:
            names = self._asked(lambda: self._objects.names(folder))
            taken = self._taken_before()
            new = [name for name in names if name not in taken]
            for start in range(0, len(new), _AT_ONCE):
                part = new[start : start + _AT_ONCE]
                self._take(self._asked(partial(self._objects.read, part)))
        except Exception as error:  # each file system has its own
            text = f"cannot read the records in {self.place}: {_reason(error)}"
            warn_once(StoreWarning, f"{text}; the local copy serves instead, {self.path}")

    def put(self, records: Sequence[Record]) -> None:
        """Add records to the local copy, and send them soon.

        Raises
        ------
        OutputError
            When the local copy cannot be written.
        """
        super().put(records)
        files.append(self._unsent, records)
        if time.monotonic() - self._sent > _SEND_SECONDS and self.place not in _failed:
            self.send()

    def send(self) -> None:
        """Send what was put, now and before; warn where it is sent later."""
        self._sent = time.monotonic()
        try:
            self.send_or_raise()
        except OutputError as error:
            text = f"{error.message}; they are kept in {self._unsent} and sent with the next ones"
            warn_once(StoreWarning, text)

    def send_or_raise(self) -> None:
        """Send what was put.

        Raises
        ------
        OutputError
            When that is not possible; nothing is lost.
        """
        if not self._unsent.exists():
            return  # Nor is there a folder for the lock, perhaps.
        with files.locked(self._unsent):
            # Only now: who kept the lock may have sent them all.
            if not self._unsent.exists():
                return
            objects = _as_objects(self._unsent.read_bytes())
            try:
                for name, content in objects.items():
                    self._asked(partial(self._objects.write, name, content))
            except Exception as error:  # each file system has its own
                text = f"cannot write records to {self.place}: {_reason(error)}"
                raise OutputError(text, "name a place that can be written") from error
            self._note(objects)
            self._unsent.unlink()

    def _taken_before(self) -> set[str]:
        """Return the objects that the local copy has; none where somebody removed it."""
        there = self.path.exists() and self._taken.exists()
        return set(self._taken.read_text(encoding="utf-8").split("\n")) if there else set()

    def _take(self, objects: Mapping[str, bytes]) -> None:
        """Add the lines of objects to the local copy, each once."""
        whole = {name: text for name, text in objects.items() if self._is_complete(name, text)}
        with files.locked(self.path):
            known = set(self.path.read_bytes().split(b"\n")) if self.path.exists() else set()
            for name, content in whole.items():
                lines = [line for line in content.split(b"\n") if line.strip()]
                good = [line for line in dict.fromkeys(lines) if _is_record(line)]
                if bad := sum(not _is_record(line) for line in lines):
                    text = f"skipped {bad} damaged lines or ones that are no records"
                    warn_once(StoreWarning, f"{text}: {name} in {self.place}")
                files.append_lines(self.path, [line for line in good if line not in known])
                known.update(good)
            self._note(whole)

    def _is_complete(self, name: str, content: bytes) -> bool:
        """Whether an object has the content that it is named after, or its name tells nothing."""
        named = _NAME.search(name)
        if named is None or named[1] == _digest(content):
            return True
        warn_once(StoreWarning, f"skipped, not complete or changed: {name} in {self.place}")
        return False

    def _note(self, names: Iterable[str]) -> None:
        """Remember that the local copy has objects; one that is the place itself may change."""
        files.append_lines(self._taken, [name.encode() for name in names if "/" in name])

    def _asked(self, question: Callable[[], Result]) -> Result:
        """Return what a store answers, if it does so soon; remember whether it did."""
        try:
            answer = _within(ANSWER_SECONDS, question)
        except Exception:
            _failed[self.place] = time.monotonic()
            raise
        _failed.pop(self.place, None)
        return answer


def opened(place: str | os.PathLike[str] | None) -> LocalRecords:
    """Return the records of a file or a store, by default of the user's own.

    Raises
    ------
    UsageError, ToolchainError
        See `Store`.
    """
    place = default_place() if place is None else place
    return Store(place) if is_store(place) else LocalRecords(place)


def up_to_date(
    place: str | os.PathLike[str] | None, core: Core | None = None, threads: int | None = None
) -> str | os.PathLike[str] | None:
    """Return a file that has the records of a place: a store's local copy, "none" without any.

    What is no store is returned as it is.
    """
    records = opened(place)
    if not isinstance(records, Store):
        return place
    records.get(core, threads)
    if records.path.exists():
        return records.path
    what = "" if core is None else f" for {core.name}"
    what += "" if threads is None else f" with {threads} threads"
    warn_once(StoreWarning, f"no records of these versions{what} in {records.place}")
    return "none"


def _as_objects(text: bytes) -> dict[str, bytes]:
    """Return lines of records as objects by name: one for each of versions, core and threads."""
    groups: dict[str, list[bytes]] = defaultdict(list)
    dates: dict[str, str] = {}
    for line in filter(_is_record, text.split(b"\n")):
        record = fields_of(line.decode())
        folder = f"{_folder(record['versions'])}/{record['facts']}/{record['threads']}"
        groups[folder].append(line)
        dates[folder] = max(dates.get(folder, ""), record["date"])
    found = {}
    for folder, lines in groups.items():
        content = b"".join(line + b"\n" for line in lines)
        date = re.sub(r"[-:]", "", dates[folder][:19])
        found[f"{folder}/{date}-{_digest(content)}.jsonl"] = content
    return found


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _is_record(line: bytes) -> bool:
    try:
        fields_of(line.decode("utf-8", errors="replace"))
    except BadRecordError:
        return False
    return True


def _folder(found: Mapping[str, str]) -> str:
    """Return the folder of compatible versions."""
    return f"{minor_of(found, 'tvm-blislike')}-tvm{minor_of(found, 'apache-tvm')}"


def _within(seconds: float, question: Callable[[], Result]) -> Result:
    """Return what a function does, unless it takes too long: nobody waits for its thread then."""
    answer: list[Result] = []
    failure: list[BaseException] = []

    def ask() -> None:
        try:
            answer.append(question())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not answer:
        raise TimeoutError(f"no answer in {seconds:.0f} s")
    return answer[0]


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
