"""Objects by name: in a folder, or behind a URL through fsspec, which the extra `store` brings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tvm_blislike.errors import ToolchainError, UsageError
from tvm_blislike.files import scratch_beside

# What a store's objects, and files of records, are called.
SUFFIX = ".jsonl"
# Folders below that of versions: of a core, of a number of threads.
_DEPTH = 2


class Objects(Protocol):
    """Reads and adds objects, whose names have slashes; any method may raise any exception."""

    def names(self, folder: str) -> list[str]:
        """Return the names of all objects below a folder, which need not exist."""

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the contents of objects, without those that are gone."""

    def write(self, name: str, content: bytes) -> None:
        """Add an object; of some file systems readers may see a part of it for a while."""


def objects_in(place: str) -> Objects:
    """Return the objects of a folder or a URL.

    Raises
    ------
    UsageError
        When nothing knows URLs of that kind.
    ToolchainError
        When what knows them is not installed.
    """
    local = place.removeprefix("file://")
    return _Remote(place) if "://" in local else _Folder(Path(local))


class _Folder:
    """Files below a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, folder: str) -> list[str]:
        found = (self._root / folder).rglob(f"*{SUFFIX}")
        return sorted(path.relative_to(self._root).as_posix() for path in found)

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        return {n: (self._root / n).read_bytes() for n in names if (self._root / n).exists()}

    def write(self, name: str, content: bytes) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Beside the folders that readers look into.
        with scratch_beside(self._root / "new") as folder:
            (folder / "new").write_bytes(content)
            os.replace(folder / "new", path)


class _Remote:
    """Objects behind a URL; one that ends in `.jsonl` is a single object."""

    def __init__(self, url: str) -> None:
        self._files, root = _file_system(url)
        self._root, _, self._single = (
            root.rpartition("/") if root.endswith(SUFFIX) else (root.rstrip("/"), "", "")
        )

    def names(self, folder: str) -> list[str]:
        if self._single:
            return [self._single]
        self._files.invalidate_cache()
        start = len(self._root) + 1
        return sorted(path[start:] for path in self._below(f"{self._root}/{folder}", _DEPTH))

    def _below(self, path: str, depth: int) -> Iterator[str]:
        """Yield the paths of objects; fsspec's own `find` passes over what it cannot reach."""
        try:
            entries = self._files.ls(path, detail=True)
        except FileNotFoundError:
            return
        for entry in entries:
            name = entry["name"].rstrip("/")
            if name.endswith(SUFFIX):
                yield name
            elif depth and entry["type"] == "directory":
                yield from self._below(name, depth - 1)

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        if not names:
            return {}
        paths = {f"{self._root}/{name}": name for name in names}
        found = self._files.cat(list(paths), on_error="return")
        for content in found.values():
            if isinstance(content, Exception) and not isinstance(content, FileNotFoundError):
                raise content
        return {paths[p]: content for p, content in found.items() if isinstance(content, bytes)}

    def write(self, name: str, content: bytes) -> None:
        if self._single:
            raise PermissionError(f"{self._single} is a single file, which is only read")
        path = f"{self._root}/{name}"
        try:
            self._files.pipe_file(path, content)
        except FileNotFoundError:  # of file systems that have folders
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, content)


def _file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL and the path in it."""
    try:
        import fsspec
    except ImportError as error:
        raise ToolchainError(
            f"the records in {url} need fsspec", "pip install 'tvm-blislike[store]'"
        ) from error
    try:
        return fsspec.url_to_fs(url)
    except ImportError as error:  # says what to install
        raise ToolchainError(f"cannot use the records in {url}: {error}") from error
    except ValueError as error:
        raise UsageError(
            f"cannot use the records in {url}: {error}",
            "name a file, a folder, or a URL such as https://HOST/records or s3://BUCKET/records",
        ) from error
