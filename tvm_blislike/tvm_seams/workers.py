"""TVM's worker processes, as one finds out that it is one: amid `import tvm`, so without TVM."""

from __future__ import annotations

import sys

# What a worker process runs.
_WORKER = "tvm.exec.popen_worker"


def is_worker() -> bool:
    """Whether this process is one that TVM started to call functions in, as its builders do."""
    return _WORKER in sys.orig_argv
