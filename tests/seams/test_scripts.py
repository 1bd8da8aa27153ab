"""TVMScript parsed without a search through all modules for each frame."""

from __future__ import annotations

import inspect
import sys
from types import FrameType

from tvm_blislike.tvm_seams import scripts


def test_frames_of_an_import_are_known_at_once() -> None:
    scripts.know_importers()
    found: list[FrameType] = []

    class Finder:
        def find_spec(self, name: str, *_: object) -> None:
            found.extend(each.frame for each in inspect.stack(context=0))

    sys.meta_path.insert(0, Finder())
    try:
        __import__("no_module_of_this_name")
    except ModuleNotFoundError:
        pass
    finally:
        del sys.meta_path[0]
    importers = [f for f in found if f.f_code.co_filename.startswith("<frozen importlib.")]
    assert importers
    for frame in importers:
        assert frame.f_code.co_filename in inspect.modulesbyfile
        assert inspect.getmodule(frame, frame.f_code.co_filename).__name__.endswith("_bootstrap")
