"""TVM's compiler works for one thread at a time.

It keeps what it works on in variables of the process: the stack of `relax.BlockBuilder`, the tag of
tensor expressions, its tables of intrinsics, LLVM's options. Of 20 compilations in four threads one
to three failed. So each compilation of this package holds one lock; running models does not.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from tvm_blislike.errors import UsageError

_lock = threading.RLock()
# Whether this process was forked amid another thread's compilation, which left TVM half changed.
_is_torn = False


@contextlib.contextmanager
def compiler_lock() -> Iterator[None]:
    """Wait until no other thread compiles, and keep them waiting; may be nested.

    Code that calls TVM's compiler itself while other threads compile models takes it too.

    Raises
    ------
    UsageError
        In a process that was forked while another thread of its parent compiled.
    """
    if _is_torn:
        raise UsageError(
            "this process was forked while another thread was compiling: TVM cannot compile here",
            "fork when nobody compiles, or start processes with the method 'spawn'",
        )
    with _lock:
        yield


def _after_fork() -> None:
    """Give the new process a lock of its own: the thread that held this one is not in it."""
    global _lock, _is_torn
    _is_torn = _is_torn or not _lock.acquire(blocking=False)
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
