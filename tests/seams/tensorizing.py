"""A program that tensorizes a loop, which test_tensorize.py runs."""

from __future__ import annotations

from tvm import s_tir, te
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def doubled(a: T.handle, b: T.handle) -> None:
    A = T.match_buffer(a, (4,), "float32", offset_factor=1)
    B = T.match_buffer(b, (4,), "float32", offset_factor=1)
    with T.sblock("root"):
        T.reads(A[0:4])
        T.writes(B[0:4])
        for i in range(4):
            with T.sblock("doubled"):
                lane = T.axis.spatial(4, i)
                B[lane] = A[lane] + A[lane]


if __name__ == "__main__":
    s_tir.TensorIntrin.register("seams.doubled", doubled, doubled, override=True)
    data = te.placeholder((8, 4), name="data")
    result = te.compute((8, 4), lambda i, j: data[i, j] + data[i, j], name="result")
    sch = s_tir.Schedule(te.create_prim_func([data, result]))
    sch.tensorize(sch.get_loops("result")[1], "seams.doubled")
    print("tensorized")
