"""Whether code for a target can run on this machine: a clear error instead of a crash."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from tvm_blislike.errors import TargetError
from tvm_blislike.hardware.machine import architecture, listed_info

# x86 extensions that LLVM uses on its own when the target has them, by LLVM's names.
_X86_EXTENSIONS = (
    *("avx", "avx2", "fma", "f16c", "bmi", "bmi2"),
    *("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vbmi", "avx512vbmi2"),
    *("avx512ifma", "avx512vnni", "avx512bf16", "avx512fp16", "avx512bitalg", "avxvnni", "gfni"),
    *("avx512vpopcntdq", "avx512vp2intersect", "avxifma", "avxvnniint8", "avxneconvert"),
    *("sse4a", "xop", "fma4"),  # of AMD alone
)

# By target, as text.
_found: dict[str, tuple[str, ...]] = {}


def why_not_runnable(target: Mapping[str, Any]) -> str | None:
    """Return why code for `target` cannot run here, or None when nothing speaks against it.

    Parameters
    ----------
    target : mapping
        Configuration of a `tvm.target.Target` of kind llvm.
    """
    wanted = architecture(target["mtriple"].partition("-")[0])
    here = architecture(platform.machine())
    if wanted != here:
        return f"it was compiled for {wanted}, this machine is {here}"
    if here != "x86_64":
        return None
    present = _processor_flags()
    missing = [name for name in extensions(target) if present and name not in present]
    return f"this processor lacks {', '.join(missing)}" if missing else None


def require_runnable(target: Mapping[str, Any]) -> None:
    """Raise TargetError when code for `target` cannot run here."""
    reason = why_not_runnable(target)
    if reason:
        raise TargetError(f"this model cannot run here: {reason}")


def extensions(target: Mapping[str, Any]) -> list[str]:
    """Return the x86 extensions that code for `target` may use."""
    key = _key(target)
    if key not in _found:
        _found[key] = _asked(target)
    return list(_found[key])


def remember(target: Mapping[str, Any], found: Sequence[str]) -> None:
    """Keep what `extensions` returned in another process, so that LLVM need not be loaded."""
    _found.setdefault(_key(target), tuple(found))


def _key(target: Mapping[str, Any]) -> str:
    return json.dumps(target, sort_keys=True, default=str)


def _asked(target: Mapping[str, Any]) -> tuple[str, ...]:
    import tvm
    from tvm.target import codegen

    with tvm.target.Target(dict(target)):
        return tuple(name for name in _X86_EXTENSIONS if codegen.llvm_cpu_has_features(name))


def _processor_flags() -> frozenset[str]:
    """Return what Linux says this processor has, by LLVM's names; nothing elsewhere."""
    names = {flag.replace("_", "") for flag in listed_info().get("flags", ())}
    return frozenset(names | ({"bmi"} if "bmi1" in names else set()))
