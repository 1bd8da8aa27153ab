"""Which described core an ordinary TVM target means."""

from __future__ import annotations

import tvm

from tvm_blislike.hardware import Core, names, native_core


def core_of(target: tvm.target.Target) -> Core:
    """Return the core that fits a target: the present machine, or the best described one.

    The present machine fits when its LLVM processor and features are those of the target.
    """
    native = native_core()
    if _matches(native, target):
        return native
    described = [Core.named(name) for name in names()]
    same_cpu = [core for core in described if core.mcpu == _attr(target, "mcpu")]
    exact = [core for core in same_cpu if _matches(core, target)]
    if exact or same_cpu:
        return (exact or same_cpu)[0]
    return _by_features(target, described)


def _attr(target: tvm.target.Target, name: str) -> str:
    return str(target.attrs.get(name, ""))


def _matches(core: Core, target: tvm.target.Target) -> bool:
    features = {str(f) for f in target.attrs.get("mattr", [])}
    return core.mcpu == _attr(target, "mcpu") and features <= set(core.mattr)


def _by_features(target: tvm.target.Target, described: list[Core]) -> Core:
    """Return a plain core of the widest instruction set that the target's triple allows."""
    triple = _attr(target, "mtriple")
    if triple.startswith(("aarch64", "arm64")):
        return Core.named("cortex-a72")
    features = {str(f) for f in target.attrs.get("mattr", [])}
    if "+avx512f" in features or "v4" in _attr(target, "mcpu"):
        return Core.named("skylake-avx512")
    return Core.named("x86-64-v3")
