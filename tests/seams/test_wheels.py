"""The files in the wheels of TVM's runtime."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

from tvm_blislike.tvm_seams import wheels


@pytest.mark.skipif(sys.platform != "linux", reason="names of Linux")
def test_wheels_have_the_libraries() -> None:
    for name, files in wheels.LIBRARIES.items():
        listed = {str(file) for file in importlib.metadata.files(name) or []}
        assert set(files) <= listed
        assert all(wheels.installed(file).is_file() for file in files)
    assert wheels.installed("tvm/lib/libno_such.so") is None


def test_wheels_have_the_headers() -> None:
    for name, path in wheels.headers().items():
        assert path.is_file() and str(path).endswith(name)
    assert "TVMFFISafeCallType" in wheels.headers()["tvm/ffi/c_api.h"].read_text()
