"""Which core an ordinary TVM target means, and what its user loses by it."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from dataclasses import replace

import tvm
from tvm.target import codegen

from tvm_blislike.errors import TargetWarning, warn_once
from tvm_blislike.hardware import Core, described_cores, native_core
from tvm_blislike.hardware.machine import Machine, architecture
from tvm_blislike.hardware.recognition import cores_called, nearest_by_features

_HERE = "tvm.target.Target(tvm_blislike.native_core().target_config())"
_ANYWHERE = "tvm.target.Target(tvm_blislike.Core.named(NAME).target_config())"


def core_of(target: tvm.target.Target) -> Core:
    """Return the core that fits a target, with those features that the target's code may use.

    The core whose LLVM processor the target names, with the caches and the clock of the present
    machine if it is one of these; for a processor that no file describes the nearest core.
    """
    return _core_of(str(target), native_core())


def explain_target(target: tvm.target.Target, core: Core) -> None:
    """Warn where a target keeps kernels from what a core can do, or may mean another core.

    Parameters
    ----------
    core : Core
        What kernels are generated for: `core_of(target)`, or what the user asked for.
    """
    reason = _reason(target, core, core_of(target) == core)
    if reason and target.kind.name == "llvm":
        warn_once(TargetWarning, reason)


@functools.cache
def _core_of(text: str, native: Core) -> Core:
    """As `core_of`: what LLVM says of a target takes milliseconds, and a trace asks often."""
    target = _target_of(text)
    llvm = _llvm_features(target)
    here = _arch(target) == _arch_of(native)
    alike = _candidates(target)
    found = native if here and _named(native, target) else _least(alike) or _nearest(target)
    # The same design: this machine is one of these, of known caches and clock.
    if here and native.name in {f"native-{core.name}" for core in (found, *alike)}:
        found = replace(native, mcpu=_mcpu(target) or native.mcpu, mattr=_mattr(target))
    return replace(found, features=_usable(found, llvm))


def _target_of(text: str) -> tvm.target.Target:
    """Return the target that prints as `text`: a configuration, or the name of a tag."""
    return tvm.target.Target(json.loads(text) if text.startswith("{") else text)


def _named(core: Core, target: tvm.target.Target) -> bool:
    """Whether a target names a core's LLVM processor, with no feature that the core lacks."""
    return core.mcpu == _mcpu(target) and {*_mattr(target)} <= {*core.mattr}


def _candidates(target: tvm.target.Target) -> list[Core]:
    """Return the described cores that a target names, those of just its features if there are."""
    llvm, wanted = _llvm_features(target), {*_mattr(target)}
    alike = [core for core in cores_called(_mcpu(target)) if core.isa.flags <= llvm]
    return [core for core in alike if {*core.mattr} == wanted] or alike


def _least(cores: Iterable[Core]) -> Core | None:
    """Return the core of the fastest pipeline and, of these, the smallest caches."""
    return min(
        cores,
        key=lambda core: (-core.fma_per_cycle, [cache.bytes for cache in reversed(core.caches)]),
        default=None,
    )


def _nearest(target: tvm.target.Target) -> Core:
    """Return the core that resembles a processor without a file most, by LLVM's features of it."""
    llvm, mcpu = _llvm_features(target), _mcpu(target)
    flags = {name.replace("-", "") for name in llvm}
    announced = {
        feature.flag
        for core in described_cores()
        for feature in core.isa.features
        if feature.llvm in llvm
    }
    vendor = "AMD" if mcpu.startswith(("znver", "bdver")) else "Intel"
    arch = _arch(target)
    brand = mcpu if mcpu.startswith("apple") else ""
    system = "Darwin" if "apple" in (_triple(target) + brand) else "Linux"
    machine = Machine(system, arch, frozenset(flags | announced), vendor, brand)
    return Core.named(nearest_by_features(machine).name)


def _usable(core: Core, llvm: frozenset[str]) -> tuple[str, ...]:
    """Return the features of a core's instruction set that a target's code may use."""
    return tuple(f.name for f in core.isa.features if f.llvm in llvm)


def _reason(target: tvm.target.Target, core: Core, is_resolved: bool) -> str:
    """Return what is lost with a target and what to write instead, "" where nothing is."""
    mcpu, llvm, arch = _mcpu(target), _llvm_features(target), _arch(target)
    native = native_core()
    better = _HERE if arch == _arch_of(native) else _ANYWHERE
    shown = f"the target {mcpu!r}" if mcpu else f"the target {target.kind.name!r}"
    if not _is_known(target):
        problem = f"{shown} is no processor that LLVM knows, so its code is that of any {arch}"
    elif not mcpu:
        problem = f"{shown} names no processor, so its code is that of any {arch}"
    elif not core.isa.flags <= llvm:
        problem = f"{shown} lacks what kernels for {core.name} need ({core.isa.name})"
    elif is_resolved and not _candidates(target) and not _named(native, target):
        return (
            f"no file describes {mcpu!r} with the features of the target: kernels are chosen for "
            f"{core.name}, the nearest by its features. Describe it "
            "(tvm-blislike probe -o FILE.toml) and pass "
            'relax.get_pipeline("blislike", core=tvm_blislike.Core.from_toml(FILE))'
        )
    else:
        return _ambiguity(target, core) if is_resolved else ""
    if core.isa.flags <= llvm:
        # All that code of any such processor lacks is its name.
        return f"{problem}: kernels are chosen for {core.name}. Pass {better}"
    best = native if arch == _arch_of(native) else core
    code = f"vectors of {_vector_bits(llvm)} bits and {'an' if 'fma' in llvm else 'no'} FMA"
    times = f"up to {_times_slower(best, llvm):g} times slower than kernels for {best.name}"
    return f"{problem}, with {code}: {times}. Pass {better}"


def _ambiguity(target: tvm.target.Target, core: Core) -> str:
    """Return which cores of unlike pipelines a target may mean, "" when it is one."""
    if core.name.startswith("native"):
        return ""
    if _arch(target) == _arch_of(native_core()) and _mcpu(target) == codegen.llvm_get_system_cpu():
        # By the number that a virtual machine makes up.
        return (
            f"LLVM takes this machine for {_mcpu(target)!r}, but its features are those of "
            f"{native_core().name}: kernels are chosen for {core.name}. Pass {_HERE}"
        )
    found = _candidates(target)
    if len({(c.fma_per_cycle, c.loads_per_cycle, c.reorder_window, c.in_order) for c in found}) < 2:
        return ""
    names = ", ".join(c.name for c in found)
    return (
        f"the target {_mcpu(target)!r} may be any of {names}: kernels are chosen for {core.name}. "
        'Pass relax.get_pipeline("blislike", core=tvm_blislike.Core.named(NAME))'
    )


def _vector_bits(llvm: frozenset[str]) -> int:
    """Return the widest vectors of x86 code that has LLVM's features."""
    return 512 if "avx512f" in llvm else 256 if "avx" in llvm else 128


def _times_slower(core: Core, llvm: frozenset[str]) -> float:
    """Return how many instructions such code takes for one FMA of a core, at most."""
    return max(core.vector_bits / _vector_bits(llvm), 1) * (1 if "fma" in llvm else 2)


@functools.cache
def _features_of(text: str) -> frozenset[str]:
    target = _target_of(text)
    if target.kind.name != "llvm" or not _is_known(target):
        return frozenset()
    return frozenset(map(str, codegen.llvm_get_cpu_features(target)))


def _llvm_features(target: tvm.target.Target) -> frozenset[str]:
    """Return LLVM's names of all that a target's code may use."""
    return _features_of(str(target))


def _is_known(target: tvm.target.Target) -> bool:
    mcpu = _mcpu(target)
    return not mcpu or bool(codegen.llvm_is_valid_cpu(mcpu, _triple(target)))


def _mcpu(target: tvm.target.Target) -> str:
    return str(target.attrs.get("mcpu", ""))


def _mattr(target: tvm.target.Target) -> tuple[str, ...]:
    return tuple(str(feature) for feature in target.attrs.get("mattr", []))


def _triple(target: tvm.target.Target) -> str:
    return str(target.attrs.get("mtriple", "")) or str(codegen.llvm_get_system_triple())


def _arch(target: tvm.target.Target) -> str:
    return architecture(_triple(target).split("-")[0])


def _arch_of(core: Core) -> str:
    return architecture(core.mtriple.split("-")[0])
