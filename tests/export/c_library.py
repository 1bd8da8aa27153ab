"""The C interface of standalone models as Python calls it, out of a shared library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_Pointer, _Size, _Int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32


class Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", _Int),
        ("rank", _Int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("bytes", _Size),
    )


class Given(ctypes.Structure):
    """An input or an output."""

    _fields_ = (
        ("data", _Pointer),
        ("bytes", _Size),
        ("type", _Int),
        ("rank", _Int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    )


_Bytes = ctypes.CFUNCTYPE(_Size, _Int)
_Create = ctypes.CFUNCTYPE(_Int, _Pointer, _Size, _Int, ctypes.POINTER(_Pointer), ctypes.c_char_p)
_Run = ctypes.CFUNCTYPE(
    _Int, _Pointer, ctypes.POINTER(Given), _Int, ctypes.POINTER(Given), _Int, ctypes.c_char_p
)


class Model(ctypes.Structure):
    _fields_ = (
        ("interface_version", _Int),
        ("threads", _Int),
        *((name, ctypes.c_char_p) for name in ("name", "version", "core")),
        ("input_count", _Int),
        ("output_count", _Int),
        ("inputs", ctypes.POINTER(Tensor)),
        ("outputs", ctypes.POINTER(Tensor)),
        ("bytes", _Bytes),
        ("create", _Create),
        ("run", _Run),
        ("free", ctypes.CFUNCTYPE(None, _Pointer)),
    )


class Failed(Exception):
    """A status and its text."""


class Runner:
    """A runner of the model of a name in a shared library."""

    def __init__(self, library: Path, name: str, threads: int = 0) -> None:
        self.model = Model.in_dll(ctypes.CDLL(str(library)), f"{name}_model")
        self._runner, self._error = _Pointer(), ctypes.create_string_buffer(256)
        create = self.model.create(None, 0, threads, ctypes.byref(self._runner), self._error)
        self._require(create)

    def _require(self, status: int) -> None:
        if status:
            raise Failed(status, self._error.value.decode())

    def run(self, inputs: Sequence[Given], outputs: Sequence[Given]) -> None:
        given = [(Given * len(side))(*side) if side else None for side in (inputs, outputs)]
        counts = len(inputs), len(outputs)
        arguments = (given[0], counts[0], given[1], counts[1])
        self._require(self.model.run(self._runner, *arguments, self._error))

    def free(self) -> None:
        self.model.free(self._runner)


def given(array: np.ndarray, kind: int = 0, shape: Sequence[int] | None = None) -> Given:
    """Return an array as the interface takes it."""
    sizes = None if shape is None else (ctypes.c_int64 * max(len(shape), 1))(*shape)
    result = Given(array.ctypes.data, array.nbytes, kind, len(shape or ()), sizes)
    result.memory = array  # as long as it is given
    return result


def placed(values: np.ndarray, offset: int) -> np.ndarray:
    """Return a copy that begins `offset` bytes behind an aligned address."""
    memory = np.full(values.nbytes + 192, 0xA5, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    place = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    place[...] = values
    return place
