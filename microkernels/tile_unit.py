"""The unit of tile registers (`tile_loops`): its configuration, its release, and leave to use it.

How many rows and bytes of k the tiles have is the configuration, which takes 50 ns to load: as long
as ten products.
"""

from __future__ import annotations

import re

from tvm_blislike.microkernels.tile_loops import GROUP_BYTES, OF_A, OF_B, ROW_BYTES, TileBlock

RELEASE = "blislike_tiles_release"
_CONFIGURE = re.compile(r"blislike_tiles_configure_(\d+)x(\d+)")


def configure_symbol(block: TileBlock) -> str:
    """Return the name of the function that loads the configuration of a block."""
    return f"blislike_tiles_configure_{block.rows}x{block.groups}"


def unit_source(symbol: str) -> str:
    """Return the function that prepares or releases the unit, "" for any other name."""
    if symbol == RELEASE:
        return _RELEASE
    found = _CONFIGURE.fullmatch(symbol)
    return _configure(symbol, *map(int, found.groups())) if found else ""


_RELEASE = f"""
declare void @llvm.x86.tilerelease()
define linkonce_odr void @{RELEASE}() alwaysinline nounwind {{
  call void @llvm.x86.tilerelease()
  ret void
}}
"""
# Linux gives a process the unit when it asks: arch_prctl (158) with ARCH_REQ_XCOMP_PERM (0x1023)
# for XTILEDATA (18). Threads and forked processes inherit it. Who is refused is told so on stderr
# (write, 1) before an instruction that would end in a fault without a word.
_REFUSED = (
    "tvm_blislike: the operating system does not let this process use AMX tiles; "
    "compile without the feature amx_int8"
)
_PERMITTED = "@blislike_tiles_permitted"
_PERMISSION = f"""
{_PERMITTED} = linkonce_odr global i32 0
@blislike_tiles_refused = linkonce_odr constant [{len(_REFUSED) + 1} x i8] c"{_REFUSED}\\0A"
declare void @llvm.trap()
define linkonce_odr void @blislike_tiles_ask() noinline nounwind {{
  %r = call i64 asm sideeffect "syscall",
    "={{rax}},0,{{rdi}},{{rsi}},~{{rcx}},~{{r11}},~{{memory}}"(
    i64 158, i64 4131, i64 18)
  %ok = icmp eq i64 %r, 0
  br i1 %ok, label %permitted, label %refused
permitted:
  store atomic i32 1, ptr {_PERMITTED} monotonic, align 4
  ret void
refused:
  %w = call i64 asm sideeffect "syscall",
    "={{rax}},0,{{rdi}},{{rsi}},{{rdx}},~{{rcx}},~{{r11}},~{{memory}}"(
    i64 1, i64 2, ptr @blislike_tiles_refused, i64 {len(_REFUSED) + 1})
  call void @llvm.trap()
  unreachable
}}
"""


def _configure(symbol: str, rows: int, groups: int) -> str:
    """Return the function that loads a configuration, asking for permission the first time."""
    return f"""{_PERMISSION}
@{symbol}_data = linkonce_odr constant [64 x i8] c"{_configuration(rows, groups)}", align 64
declare void @llvm.x86.ldtilecfg(ptr)
define linkonce_odr void @{symbol}() alwaysinline nounwind {{
  %known = load atomic i32, ptr {_PERMITTED} monotonic, align 4
  %ok = icmp ne i32 %known, 0
  br i1 %ok, label %load, label %ask
ask:
  call void @blislike_tiles_ask()
  br label %load
load:
  call void @llvm.x86.ldtilecfg(ptr @{symbol}_data)
  ret void
}}
"""


def _configuration(rows: int, groups: int) -> str:
    """Return the 64 bytes of palette 1: bytes of a row of each tile from 16 on, rows from 48 on."""
    data = bytearray(64)
    data[0] = 1
    k_bytes = groups * GROUP_BYTES
    for tile in range(8):
        is_a, is_b = OF_A <= tile < OF_B, tile >= OF_B
        data[16 + 2 * tile] = k_bytes if is_a else ROW_BYTES
        data[48 + tile] = groups if is_b else rows
    return "".join(f"\\{byte:02X}" for byte in data)
