"""Bad files: good ones, changed at random from a seed or field by field."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

# For any field of a manifest: other types, numbers that overflow something, texts that lead away.
HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    10**9,
    2**31,
    2**53,
    2**63,
    1e300,
    "",
    "two",
    "../model.so",
    "%s%n",
    "x" * 5000,
    [],
    [[]],
    {},
    [0] * 9,
    [2**40, 2**40],
    [{}],
)


def changed(content: bytes, rng: np.random.Generator) -> bytes:
    """Return the content after one to three random edits."""
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(content) + 1))
        size = int(rng.choice((1, 1, 2, 8, 100)))
        content = _EDITS[rng.integers(len(_EDITS))](content, at, size, rng)
    return content


def hostile_manifests(
    manifest: dict[str, Any], fields: Sequence[str], values: int
) -> Iterator[str]:
    """Yield manifests in which one thing below these fields is missing, or another value.

    Of each, `values` are tried, drawn from a fixed seed.
    """
    rng = np.random.default_rng(0)
    for path in _paths({field: manifest[field] for field in fields}):
        damaged = copy.deepcopy(manifest)
        parent = _parent(damaged, path)
        for index in rng.permutation(len(HOSTILE))[:values]:
            parent[path[-1]] = HOSTILE[index]
            yield json.dumps(damaged)
        del parent[path[-1]]
        yield json.dumps(damaged)


def _paths(value: Any, here: tuple = ()) -> Iterator[tuple]:
    """Yield the way to every field; of a list's items only the first."""
    if here:
        yield here
    if isinstance(value, dict):
        for key in value:
            yield from _paths(value[key], (*here, key))
    elif isinstance(value, list) and value:
        yield from _paths(value[0], (*here, 0))


def _parent(value: Any, path: tuple) -> Any:
    for step in path[:-1]:
        value = value[step]
    return value


def _cut(content: bytes, at: int, size: int, rng: np.random.Generator) -> bytes:
    return content[:at]


def _remove(content: bytes, at: int, size: int, rng: np.random.Generator) -> bytes:
    return content[:at] + content[at + size :]


def _overwrite(content: bytes, at: int, size: int, rng: np.random.Generator) -> bytes:
    return content[:at] + rng.bytes(min(size, len(content) - at)) + content[at + size :]


def _repeat(content: bytes, at: int, size: int, rng: np.random.Generator) -> bytes:
    return content[:at] + content[at : at + size] * int(rng.integers(2, 40)) + content[at + size :]


def _digits(content: bytes, at: int, size: int, rng: np.random.Generator) -> bytes:
    return content[:at] + b"9" * size + content[at:]


def _punctuation(content: bytes, at: int, size: int, rng: np.random.Generator) -> bytes:
    return content[:at] + bytes([rng.choice(list(b"\"'\\[]{}(),:-.\n\0"))]) * size + content[at:]


_EDITS: tuple[Callable[[bytes, int, int, np.random.Generator], bytes], ...] = (
    _cut,
    _remove,
    _overwrite,
    _repeat,
    _digits,
    _punctuation,
)
