"""The calls of kernels that a virtual machine makes, recorded to be made again without it.

TVM's virtual machine allocates tensors, makes views and checks shapes in every run: 17 to 25
microseconds for the 32 kernels of a SqueezeNet. Where all sizes are known, every run calls the same
kernels on the same memory, until a condition turns out otherwise. So one run is recorded by an
instrument, and a compiled loop calls what it called, as TVM's C interface of functions has it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tvm_ffi

from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.tvm_seams.loaded import LOOP, bytes_of, empty, fill

# What has no effect but on the machine's registers, and the same in every run of the same sizes.
_ALLOCATES = "vm.builtin.alloc_tensor"
# What a branch is chosen by.
_ASKS = "vm.builtin.read_if_cond"
_WITHOUT_EFFECT = {
    *(f"vm.builtin.{name}" for name in ("alloc_storage", "alloc_tensor", "null_value", "copy")),
    *(f"vm.builtin.{name}" for name in ("check_tensor_info", "match_shape", "make_shape")),
    *(f"vm.builtin.{name}" for name in ("reshape", "ensure_zero_offset", "make_tuple")),
    "vm.builtin.check_tuple_info",
    "vm.builtin.alloc_shape_heap",
    "vm.builtin.tuple_getitem",
    "runtime.TVMTensorCreateView",
}
# Of `TVMFFIAny`, whose second word is the value.
_INT, _TENSOR, _NONE = 1, 7, 0
# A result, and that no call failed.
_STARTS = np.array([_NONE, 0, -1], np.int64)
_DL_WORDS = 6
# Bytes of TVM's objects before what they hold.
_HEADER = 24


class Recorder:
    """Instrument of a virtual machine that keeps what it calls; holds all tensors in memory.

    Attributes
    ----------
    calls : list of tuple
        Function and arguments of each kernel's call.
    conditions : list of tuple
        Calls made before, the scalar that was asked, and whether it was true, of each.
    allocated : set of tuple of int
        Address and bytes of each tensor that the machine allocated.
    is_complete : bool
        Whether the calls are all that a run does, and the same in every run with these conditions.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []
        self.conditions: list[tuple[int, Any, bool]] = []
        self.allocated: set[tuple[int, int]] = set()
        self.is_complete = True

    def __call__(self, func: Any, name: str, before: bool, result: Any, *args: Any) -> int:
        """Note a call that returned."""
        if before:
            return 0
        if not isinstance(func, tvm_ffi.Function):
            return 0  # one of the machine's own functions, whose calls are noted by themselves
        if name in _WITHOUT_EFFECT:
            if name == _ALLOCATES:
                self.allocated.add((result.data_ptr(), bytes_of(result)))
        elif name == _ASKS:
            self.conditions.append((len(self.calls), args[0], bool(result)))
        elif result is None and not name.startswith("vm.") and all(map(_is_plain, args)):
            self.calls.append((func, args))
        else:
            self.is_complete = False
        return 0


def _is_plain(argument: Any) -> bool:
    return isinstance(argument, int | tvm_ffi.Tensor)


# Takes a table of calls and a state.
Loop = Callable[[Any, Any], None]
# Number of the first call, what makes the calls, whether the condition behind them is as it was.
_Part = tuple[int, Callable[[], None], Callable[[], bool]]


class Tape:
    """The recorded calls as tables that a compiled loop goes through.

    Parameters
    ----------
    recorder : Recorder
        A complete record, whose tensors stay in memory as long as this.
    loop : callable, optional
        What `replayer` returns, out of a library; by default it is compiled now.

    Attributes
    ----------
    calls : list of tuple
        Function and arguments of each.
    tensors : list of tuple of int
        Address and bytes of each argument that is a tensor, then of each condition.
    """

    def __init__(self, recorder: Recorder, loop: Loop | None = None) -> None:
        self._loop = loop or replayer()
        self.calls = recorder.calls
        self._held = recorder.conditions
        arguments = [a for _, args in self.calls for a in args]
        found = [a for a in arguments if isinstance(a, tvm_ffi.Tensor)]
        found += [asked for _, asked, _ in recorder.conditions]
        self.tensors = [(t.data_ptr(), bytes_of(t)) for t in found]
        words = [word for tensor in found for word in _dl_words(tensor)]
        self._words = (ctypes.c_int64 * len(words))(*words)
        self._arguments = self._argument_table(arguments)
        starts = _tensor(_STARTS)
        self._state = (ctypes.c_int64 * 3).from_address(starts.data_ptr())
        self._parts = list(self._parted(recorder, starts))

    def move(self, number: int, address: int) -> None:
        """Let the tensor of a number lie at an address from now on."""
        self._words[number * _DL_WORDS] = address

    def run(self) -> bool:
        """Make all calls up to a condition that is not as it was; return whether there was none.

        Raises
        ------
        Exception
            Of the first kernel that fails.
        """
        for first, again, is_as_it_was in self._parts:
            again()
            if self._state[2] >= 0:
                self._tell(first)
            if not is_as_it_was():
                return False
        return True

    def _tell(self, first: int) -> None:
        """Make the call that failed once more, which tells why."""
        failed, self._state[2] = first + self._state[2], -1
        func, args = self.calls[failed]
        func(*args)
        raise RuntimeError(f"call {failed} of a recorded run failed")

    def _parted(self, recorder: Recorder, starts: Any) -> Iterator[_Part]:
        """Yield the calls up to each condition, and those behind the last one."""
        table, first = self._call_table(), 0
        number = len(self.tensors) - len(recorder.conditions)
        for condition, (end, _, outcome) in enumerate(recorder.conditions, number):
            as_it_was = functools.partial(self._is, condition, outcome)
            yield first, self._caller(table[first:end], starts), as_it_was
            first = end
        yield first, self._caller(table[first:], starts), _always

    def _caller(self, table: np.ndarray, starts: Any) -> Callable[[], None]:
        """Return what makes the calls of some rows."""
        return functools.partial(self._loop, _tensor(table), starts)

    def _is(self, number: int, outcome: bool) -> bool:
        """Whether a condition is as it was."""
        value = ctypes.string_at(self._words[number * _DL_WORDS], self.tensors[number][1])
        return any(value) == outcome

    def _argument_table(self, arguments: list[Any]) -> np.ndarray:
        place = ctypes.addressof(self._words)
        rows = []
        for argument in arguments:
            if isinstance(argument, int):
                rows.append((_INT, argument))
            else:
                rows.append((_TENSOR, place))
                place += 8 * _DL_WORDS
        return np.array(rows, np.int64).reshape(-1, 2)

    def _call_table(self) -> np.ndarray:
        place, rows = self._arguments.ctypes.data, []
        for func, args in self.calls:
            rows.append((func.__chandle__(), place, len(args)))
            place += 16 * len(args)
        return np.array(rows, np.int64).reshape(-1, 3)


def _always() -> bool:
    return True


def _tensor(array: np.ndarray) -> Any:
    tensor = empty(array.shape, str(array.dtype))
    fill(tensor, array)
    return tensor


def _dl_words(tensor: Any) -> list[int]:
    """Return the `DLTensor` of a tensor, which lies behind its object's header, as words."""
    return list((ctypes.c_int64 * _DL_WORDS).from_address(tensor.__chandle__() + _HEADER))


@functools.cache
def replayer() -> Loop:
    """Return the compiled loop, ready to run."""
    return loop_module()[LOOP]


@functools.cache
def loop_module() -> Any:
    """Return the loop as a module of generated code.

    It takes a table of calls, and a state of three words. A row of the table is a function's
    handle, the address of its arguments and their number. The last word of the state is -1, and
    then the number of the call that failed; no other follows.
    """
    import tvm
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name(LOOP)
        T.func_attr({"global_symbol": LOOP})
        calls = T.match_buffer(T.arg("calls", T.handle()), (T.int64(), 3), "int64")
        state = T.match_buffer(T.arg("state", T.handle()), (3,), "int64")
        with T.serial(0, calls.shape[0]) as index, T.If(state[2] < 0), T.Then():
            T.buffer_store(state, T.int64(_NONE), [0])
            function, arguments = (T.reinterpret("handle", calls[index, i]) for i in range(2))
            count = T.cast(calls[index, 2], "int32")
            call = ("int32", "TVMFFIFunctionCall", function, arguments, count, state.data)
            with T.If(T.call_extern(*call) != 0), T.Then():
                T.buffer_store(state, index, [2])
    module = tvm.IRModule({LOOP: builder.get()})
    with compiler_lock():
        return tvm.compile(module, tvm.target.Target({"kind": "llvm"})).mod
