"""No kernel reads or writes outside its tensors: all of them lie against unmapped pages.

The cases run in a few processes beside this one, since the failure is a segmentation fault.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from effort import EFFORT, every_second  # noqa: E402

# (kind, arguments): odd sizes, so that every edge variant and border of a kernel runs.
CASES = {
    "conv 3x3": "Conv2dWorkload(1, 16, 13, 17, 48, 3, 3, padding=(1, 1, 1, 1))",
    "conv 1x1 in place": "Conv2dWorkload(2, 32, 7, 9, 80, 1, 1)",
    "conv NHWC 24 to 57": "Conv2dWorkload(1, 24, 11, 19, 57, 3, 3, (2, 1), (0, 1, 2, 1))",
    "dilated": "Conv2dWorkload(1, 57, 12, 15, 24, 3, 3, (1, 1), (2, 2, 2, 2), (2, 2))",
    "first layer": "Conv2dWorkload(1, 3, 31, 29, 32, 7, 7, (2, 2), (3, 3, 3, 3))",
    "grouped": "Conv2dWorkload(1, 64, 9, 10, 96, 3, 3, groups=2, padding=(1, 0, 1, 0))",
    "groups of 4": "Conv2dWorkload(1, 32, 13, 17, 32, 3, 3, padding=(1, 1, 1, 1), groups=8)",
    "stride 3": "Conv2dWorkload(3, 16, 20, 23, 16, 5, 5, (3, 3))",
    "stride 2 without a kernel": "Conv2dWorkload(1, 40, 15, 17, 23, 1, 1, (2, 2))",
    "many channels": "Conv2dWorkload(1, 160, 10, 7, 29, 3, 3, padding=(1, 1, 1, 1))",
    "depthwise": "Conv2dWorkload(1, 32, 13, 17, 32, 3, 3, padding=(1, 1, 1, 1), groups=32)",
    "depthwise 24": "Conv2dWorkload(1, 24, 15, 14, 24, 5, 5, (2, 2), (2, 1, 2, 2), groups=24)",
    "volume": (
        "Conv3dWorkload(4, 32, 9, 10, 32, 3, 3, padding=(1, 1, 1, 1), groups=32, depth_taps=3,"
        " depth_padding=(1, 1))"
    ),
    "volume 24": (
        "Conv3dWorkload(5, 24, 9, 10, 24, 3, 3, (2, 2), (1, 0, 0, 1), groups=24, depth_taps=2,"
        " depth_stride=2, depth_padding=(0, 1))"
    ),
    "winograd 3x3": "Conv2dWorkload(2, 16, 12, 25, 48, 3, 3, padding=(1, 0, 2, 1))",
    "winograd 5x5": "Conv2dWorkload(1, 32, 9, 25, 32, 5, 5)",
    "winograd 1x7": "Conv2dWorkload(1, 16, 7, 17, 32, 1, 7, padding=(0, 3, 0, 3))",
    "winograd NHWC 24 to 57": "Conv2dWorkload(1, 24, 12, 25, 57, 3, 3, padding=(1, 0, 2, 1))",
    "winograd NHWC 9 to 32": "Conv2dWorkload(1, 9, 12, 11, 32, 3, 3)",
    # Pairs of 16 bits, of another core than this where that has products of bytes.
    "winograd of words": (
        "Conv2dWorkload(1, 32, 12, 25, 48, 3, 3, padding=(1, 0, 2, 1), types=WORDS)"
    ),
    "winograd of words 10 to 57": "Conv2dWorkload(1, 10, 12, 11, 57, 3, 3, types=WORDS)",
    "winograd_1d 3x3": "Conv2dWorkload(2, 16, 12, 25, 48, 3, 3, padding=(1, 0, 2, 1))",
    "winograd_1d 5x5": "Conv2dWorkload(1, 32, 9, 25, 32, 5, 5)",
    "im2col 3x3": "Conv2dWorkload(2, 5, 13, 17, 37, 3, 3, padding=(1, 0, 1, 2))",
    "im2col 1x1 in place": "Conv2dWorkload(1, 19, 9, 7, 21, 1, 1)",
    "im2col groups": "Conv2dWorkload(1, 15, 9, 11, 21, 3, 3, padding=(1, 1, 1, 1), groups=3)",
    "im2col stride 2": "Conv2dWorkload(1, 8, 14, 15, 24, 3, 3, (2, 2), (1, 1, 1, 1))",
    # Magnitudes and masks of bytes, of such a core too.
    "masks 3x3": "Conv2dWorkload(1, 57, 8, 8, 40, 3, 3, padding=(1, 1, 1, 1), types=MASKED)",
    "masks in place": "Conv2dWorkload(1, 32, 7, 6, 48, 3, 3, types=MASKED)",
    "masks 1x1": "Conv2dWorkload(1, 36, 8, 16, 80, 1, 1, types=MASKED)",
    # As many bytes as fill lines, so that an array ends right at the forbidden page.
    "bytes 3x3": "Conv2dWorkload(1, 57, 8, 8, 40, 3, 3, padding=(1, 1, 1, 1), types=BYTES)",
    "bytes in place": "Conv2dWorkload(1, 32, 7, 6, 48, 3, 3, types=BYTES)",
    "bytes 1x1": "Conv2dWorkload(1, 36, 8, 16, 80, 1, 1, types=BYTES)",
    "bytes 1x1, odd": "Conv2dWorkload(2, 37, 8, 8, 24, 1, 1, (2, 2), types=BYTES)",
    "bytes first layer": (
        "Conv2dWorkload(1, 3, 32, 32, 32, 3, 3, (2, 2), (1, 1, 1, 1), types=BYTES)"
    ),
    "bytes depthwise": (
        "Conv2dWorkload(1, 57, 8, 8, 57, 3, 3, padding=(1, 1, 1, 1), groups=57, types=BYTES)"
    ),
    "bytes depthwise 5x5": (
        "Conv2dWorkload(1, 64, 9, 9, 64, 5, 5, (2, 2), (2, 1, 2, 2), groups=64, types=BYTES)"
    ),
    "bytes gemm": "GemmWorkload(37, 53, 192, types=BYTES)",
    "bytes gemm, odd": "GemmWorkload(64, 80, 77, types=BYTES)",
    "bytes one row": "GemmWorkload(1, 1001, 64, types=BYTES)",
    "masks gemm, odd": "GemmWorkload(64, 80, 77, types=MASKED)",
    "masks one row": "GemmWorkload(1, 1001, 64, types=MASKED)",
    "gemm": "GemmWorkload(37, 53, 29)",
    "gemm deep": "GemmWorkload(20, 70, 1031)",
    "gemm of halves": "GemmWorkload(193, 192, 194)",
    "one row": "GemmWorkload(1, 1001, 77)",
}
# Configurations drawn from the whole space of each implementation.
ANYTHING = EFFORT
PROCESSES = 8


@pytest.mark.parametrize("part", range(PROCESSES))
def test_stays_inside(part: int) -> None:
    # Neighbours in the list, which take about as long, go to different processes.
    command = [sys.executable, __file__, *list(CASES)[part::PROCESSES]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # The last line printed says which kernel it was.
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr[-2000:]}"


def test_guards_do_guard() -> None:
    program = "import guard; a = guard.GuardedArrays().at_end((16,)); import ctypes\n"
    program += "ctypes.memmove(a.ctypes.data + 64, a.ctypes.data, 4)"
    done = subprocess.run([sys.executable, "-c", program], cwd=TESTS, check=False)
    assert done.returncode < 0


def _run(case: str) -> None:
    """Run the kernel of the strategy's choice, and a few others, on guarded arrays."""
    from guard import GuardedArrays

    from tvm_blislike.cost_models.data_types import quantized_types
    from tvm_blislike.hardware import Core, native_core
    from tvm_blislike.model.types import MASKED, WORDS
    from tvm_blislike.model.workload import Conv2dWorkload, Conv3dWorkload, GemmWorkload
    from tvm_blislike.runtime.runnable import why_not_runnable
    from tvm_blislike.schedules import implementations

    core = native_core()
    words = Core.named("x86-64-v3")
    names = {each.__name__: each for each in (Conv2dWorkload, Conv3dWorkload, GemmWorkload)}
    types = {"BYTES": quantized_types(core), "WORDS": WORDS, "MASKED": MASKED}
    workload = eval(CASES[case], {**names, **types})
    only = f"conv2d_{case.split()[0]}" if case.startswith(("winograd", "im2col")) else ""
    if workload.types in (WORDS, MASKED):
        if why_not_runnable(words.target_config(1)):
            return
        core = words
    for implementation in implementations(workload.kind):
        if implementation.applies(workload, core) or only not in ("", implementation.name):
            continue
        found = sorted(
            implementation.configs(workload, core, 1),
            key=lambda c: implementation.estimate(workload, c, core, 1).seconds,
        )
        chosen = [found[0], *every_second([found[-1], found[len(found) // 2]], len(case))]
        if only:
            chosen += every_second(list(_cut_on_all_sides(found, core, workload.types)), len(case))
        chosen += _anything(implementation.space(workload, core, 1), workload)
        for config in dict.fromkeys(chosen):
            library, operands, empty = _compiled(implementation, workload, config, core)
            for place in ("at_end", "at_start"):
                print(case, place, config, file=sys.stderr, flush=True)
                arrays = GuardedArrays()
                _call(library, operands, empty, getattr(arrays, place))
                arrays.check()


def _anything(space, workload):
    """A few of all configurations, whatever the cost model thinks of them."""
    from random import Random

    from tvm_blislike.tuning.searches.walks import Walks

    walks, rng = Walks([space], lambda _: True), Random(str(workload))
    return [c for c in (walks.draw(rng) for _ in range(ANYTHING)) if c]


def _cut_on_all_sides(found, core, types):
    """Blocks of 2 x 5 tiles: cut by mr, and at the right and below by the image; every form."""
    from tvm_blislike.microkernels import kernels_for

    forms = ("loop_order", "tile_h", "tile_w", "columns", "packing")
    best = {tuple(getattr(c, form, "") for form in forms): c for c in reversed(found)}
    for config in best.values():
        if config.implementation == "conv2d_im2col":
            yield config
            continue
        heights = [k.mr for k in kernels_for(core, types) if k.nr == config.nr and 10 % k.mr]
        mr = max((mr for mr in heights if mr < 10), default=config.mr)
        cut = config.with_fields(mr=mr, mc=10, oh_block=2)
        yield cut
        if cut.implementation == "conv2d_winograd" and max(cut.tile_h, cut.tile_w) == 2:
            yield cut.with_fields(transform="flat")
        if cut.implementation == "conv2d_winograd_1d":
            yield cut.with_fields(mr=min(mr, 4), ring=2)


def _compiled(implementation, workload, config, core):
    """Return the library, data and packed operand, and an array like the result."""
    import tvm

    from tvm_blislike.model.choice import Choice
    from tvm_blislike.model.layouts import Layout
    from tvm_blislike.operators import operator_of
    from tvm_blislike.passes.definitions import primfunc
    from tvm_blislike.passes.plan import Plan, note_of
    from tvm_blislike.passes.schedule import schedule_chosen
    from tvm_blislike.schedules.lowering import lower as lowering

    data, operand = operator_of(workload).random(workload)
    if workload.images:
        data = np.ascontiguousarray(Layout(config.data_layout).packed(data))
    constant = implementation.pack(workload, config, operand)
    choice = Choice(workload, implementation, config, None, "")
    shapes = data.shape, constant.shape
    func = primfunc(choice, note_of(workload, config), *shapes, str(constant.dtype))
    func = func.with_attr("global_symbol", "main")
    mod = lowering.lower(tvm.IRModule({"main": schedule_chosen(func, Plan(core, 1))}))
    library = tvm.compile(mod, tvm.target.Target(core.target_config(1)))
    result = func.params[-1]
    shape = tuple(int(extent) for extent in result.shape)
    return library, [data, constant], np.empty(shape, str(result.dtype))


def _call(library, operands, empty, array) -> None:
    import tvm

    arguments = [array(value.shape, value.dtype) for value in operands]
    for argument, value in zip(arguments, operands, strict=True):
        argument[...] = value
    result = array(empty.shape, empty.dtype)
    nothing = np.nan if empty.dtype.kind == "f" else np.iinfo(empty.dtype).min
    result[...] = nothing
    library["main"](*map(tvm.runtime.from_dlpack, (*arguments, result)))
    assert np.isfinite(result).all()
    assert (result != nothing).all()


if __name__ == "__main__":
    for case in sys.argv[1:]:
        _run(case)
