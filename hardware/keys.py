"""What processors call themselves, as the files of cores write it (`Core.recognized_by`).

Arm's cores have an identification register: `0x41:0xd0b` is implementer 0x41 and part 0xd0b. x86
processors have vendor, family and models: `AuthenticAMD:25:0x10-0x1f`; the cores of hybrid ones
also a kind, as Linux tells them apart: `GenuineIntel:6:0x97:atom`. What has no colon is the
beginning of the name that the operating system shows, `Apple M2`, or another name in LLVM:
`raptorlake`.
"""

from __future__ import annotations

import re

from .cpus import arm_key, x86_key

_ARM = re.compile(r"(0x[0-9a-f]{2}):(0x[0-9a-f]{3})")
_X86 = re.compile(r"(\w+):(\d+):(0x[0-9a-f]+)(?:-(0x[0-9a-f]+))?(?::(core|atom|lowpower))?")
_NAME = re.compile(r"[^:]*\w[^:]*")


def is_key(text: object) -> bool:
    """Whether `text` has one of the forms above."""
    return isinstance(text, str) and any(p.fullmatch(text) for p in (_ARM, _X86, _NAME))


def expanded(text: str) -> tuple[str, ...]:
    """Return the keys that one entry of a file stands for, as `Cpu.key` has them."""
    if arm := _ARM.fullmatch(text):
        return (arm_key(int(arm[1], 16), int(arm[2], 16)),)
    if x86 := _X86.fullmatch(text):
        vendor, family, first, last, kind = x86.groups()
        models = range(int(first, 16), int(last or first, 16) + 1)
        return tuple(x86_key(vendor, int(family), model, kind or "") for model in models)
    return (text,)
