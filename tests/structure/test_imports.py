"""Rooms lie one above the other: nothing imports upwards, and no imports run in a circle."""

from __future__ import annotations

import pytest
from imports import ROOMS_BESIDE, Import, imports, modules, name_of

# From the bottom to the top. Modules that lie in no room stand by their name; "" is the package
# itself, which imports its contents when they are asked for.
ORDER = (
    "errors",
    "files",
    "collector",
    "compiler_lock",
    "progress",
    "later",
    "hardware",
    "side_by_side",
    "copies",
    "tvm_seams",
    "model",
    "operators",
    "microkernels",
    "cost_models",
    "schedules",
    "records",
    "choose",
    "onnx",
    "quantize",
    "passes",
    "export",
    "runtime",
    "cache",
    "probe",
    "plugin",
    "pipeline",
    "api",
    "inspect",
    "standalone",
    "tuning",
    "meta_schedule",
    "torch",
    "",
    "bench",
    "pictures",
    "cli",
    "__main__",
)


def room_of(module: str) -> str:
    return [*module.split("."), ""][1]


def _shown(found: Import) -> str:
    return f"{found.source}:{found.line} imports {found.target}"


def test_every_room_has_its_place() -> None:
    assert {room_of(name) for name in modules()} == set(ORDER)


def test_nothing_imports_upwards() -> None:
    rank = {room: place for place, room in enumerate(ORDER)}
    upwards = [i for i in imports() if rank[room_of(i.source)] < rank[room_of(i.target)]]
    assert not upwards, "\n".join(map(_shown, upwards))


def _reached(start: str) -> set[str]:
    """Return all modules that `start` imports, directly or not, in functions or for typing."""
    direct: dict[str, set[str]] = {}
    for found in imports():
        direct.setdefault(found.source, set()).add(found.target)
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for target in direct.get(waiting.pop(), ()):
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen


def test_no_circles() -> None:
    # The package itself imports nothing but what registers it; all else comes on first use.
    circles = sorted(name for name in modules() if "." in name and name in _reached(name))
    assert not circles, circles


@pytest.mark.parametrize("room", ROOMS_BESIDE)
def test_rooms_beside_the_package_are_read_too(room: str) -> None:
    assert any(room_of(name) == room for name in modules())
    assert any(room_of(found.target) == room for found in imports())


def test_imports_are_found_wherever_they_stand() -> None:
    found = {(i.source, i.target) for i in imports()}
    path = modules()["tvm_blislike.api"]
    assert name_of(path) == "tvm_blislike.api"
    assert ("tvm_blislike.api", "tvm_blislike.pipeline") in found  # within a function
    assert ("tvm_blislike.hardware.native", "tvm_blislike.hardware.core") in found  # relative
