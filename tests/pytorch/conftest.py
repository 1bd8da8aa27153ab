"""Tests of what torch and this package do together; skipped where torch is not installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]'")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install '.[torch]'")

from tvm_blislike.errors import warn_once  # noqa: E402


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is compiled before, no warning was given; one thread; the same random numbers."""
    torch.compiler.reset()
    warn_once.cache_clear()
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
