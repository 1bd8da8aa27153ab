"""Experiment: scalable vectors (SVE) for the k loop, simulated. The verdict is in the results.

    python benchmarks/arm_sve.py        # as benchmarks/results/arm_sve.txt

Needs llc and llvm-mca (Debian's package llvm-22). The loop is LLVM IR, because buffers of
a scalable size are none in TVM 0.27: B comes as scalable vectors, four rows of A are replicated
into every 128 bits (`ld1rqw`) and multiplied by element, as in NEON's k loops.
"""

from __future__ import annotations

import re
import subprocess

from tvm_blislike.inspect.mca import find_tool
from tvm_blislike.tvm_seams.machine_code import count, innermost_loops

VECTOR = "<vscale x 4 x float>"
BLOCKS = ((8, 3), (12, 2), (6, 4), (4, 4))
# Core and bits of its vectors.
CORES = (("neoverse-v1", 256), ("neoverse-n2", 128), ("a64fx", 512))
ITERATIONS = 200


def main() -> None:
    """Print cycles and multiply-adds per cycle of every block on every core."""
    print("block (rows x vectors)  core         FMAs  loads  spills  moves  cycles/k  MAC/cycle")
    for rows, vectors in BLOCKS:
        for core, bits in CORES:
            text = compiled(source(rows, vectors), core)
            (loop,) = innermost_loops(text)
            listing = "loop:\n" + "\n".join(f"\t{i.name}\t{i.operands}" for i in loop)
            cycles = simulated(re.sub(r"\.LBB\w+", "loop", listing), core)
            counts = count(loop)
            print(
                f"{rows:2} x {vectors}                  {core:<11} {counts.fmas:5}  "
                f"{counts.loads:5}  {counts.spills:6}  {counts.moves:5}  {cycles:8.2f}  "
                f"{counts.fmas * bits / 32 / cycles:9.1f}"
            )


def source(rows: int, vectors: int) -> str:
    """Return the LLVM function: C (rows, vectors) = A panel x B panel over k steps."""
    block = [(row, v) for row in range(rows) for v in range(vectors)]
    quads = range(-(-rows // 4))
    lane, quad = "llvm.aarch64.sve.fmla.lane.nxv4f32", "llvm.aarch64.sve.ld1rq.nxv4f32"
    lines = [
        "declare i64 @llvm.vscale.i64()",
        f"declare {VECTOR} @{quad}(<vscale x 4 x i1>, ptr)",
        f"declare {VECTOR} @{lane}({VECTOR}, {VECTOR}, {VECTOR}, i32)",
        "declare <vscale x 4 x i1> @llvm.aarch64.sve.ptrue.nxv4i1(i32)",
        "define void @k_loop(ptr %a, ptr %b, ptr %c, i64 %k) {",
        "entry:",
        "  %scale = call i64 @llvm.vscale.i64()",
        "  %width = mul i64 %scale, 4",
        "  %all = call <vscale x 4 x i1> @llvm.aarch64.sve.ptrue.nxv4i1(i32 31)",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [0, %entry], [%next, %loop]",
        "  %pa = phi ptr [%a, %entry], [%pa_next, %loop]",
        "  %pb = phi ptr [%b, %entry], [%pb_next, %loop]",
    ]
    for r, v in block:
        lines.append(f"  %s{r}_{v} = phi {VECTOR} [zeroinitializer, %entry], [%n{r}_{v}, %loop]")
    for v in range(vectors):
        lines.append(f"  %o{v} = mul i64 %width, {v}")
        lines.append(f"  %pb{v} = getelementptr float, ptr %pb, i64 %o{v}")
        lines.append(f"  %b{v} = load {VECTOR}, ptr %pb{v}, align 4")
    for q in quads:
        lines.append(f"  %pq{q} = getelementptr float, ptr %pa, i64 {4 * q}")
        lines.append(f"  %q{q} = call {VECTOR} @{quad}(<vscale x 4 x i1> %all, ptr %pq{q})")
    for r, v in block:
        operands = f"{VECTOR} %s{r}_{v}, {VECTOR} %b{v}, {VECTOR} %q{r // 4}, i32 {r % 4}"
        lines.append(f"  %n{r}_{v} = call {VECTOR} @{lane}({operands})")
    lines += [
        f"  %pa_next = getelementptr float, ptr %pa, i64 {rows}",
        f"  %step = mul i64 %width, {vectors}",
        "  %pb_next = getelementptr float, ptr %pb, i64 %step",
        "  %next = add i64 %i, 1",
        "  %end = icmp eq i64 %next, %k",
        "  br i1 %end, label %done, label %loop",
        "done:",
    ]
    for r, v in block:
        lines.append(f"  %d{r}_{v} = mul i64 %width, {r * vectors + v}")
        lines.append(f"  %pc{r}_{v} = getelementptr float, ptr %c, i64 %d{r}_{v}")
        lines.append(f"  store {VECTOR} %n{r}_{v}, ptr %pc{r}_{v}, align 4")
    return "\n".join([*lines, "  ret void", "}", ""])


def compiled(text: str, core: str) -> str:
    """Return the assembly that llc makes of LLVM IR."""
    tool = find_tool().replace("llvm-mca", "llc")
    return run(tool, "-O3", "-mtriple=aarch64-linux-gnu", f"-mcpu={core}", "-o", "-", text=text)


def simulated(text: str, core: str) -> float:
    """Return the cycles of one iteration by llvm-mca."""
    target = ("-mtriple=aarch64-linux-gnu", f"-mcpu={core}", f"-iterations={ITERATIONS}")
    report = run(find_tool(), *target, text=text)
    return int(re.search(r"Total Cycles:\s+(\d+)", report)[1]) / ITERATIONS


def run(*command: str, text: str) -> str:
    """Run a tool on `text` and return what it prints."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    main()
