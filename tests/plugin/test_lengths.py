"""One function for a range of sizes: each as the NumPy reference, or a library of it, computes."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from small_models import float_input, make_model
from typer.testing import CliRunner

import tvm_blislike
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cli.app import app
from tvm_blislike.cost_models.gemm.config import GemmConfig
from tvm_blislike.errors import InputError, UsageError
from tvm_blislike.hardware import Core
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.variant import MAIN
from tvm_blislike.model.workload import GemmWorkload
from tvm_blislike.passes.lengths import products as products_module
from tvm_blislike.passes.lengths import ranges as ranges_module
from tvm_blislike.passes.lengths.products import OpenProduct, opens
from tvm_blislike.passes.lengths.ranges import ranges_of
from tvm_blislike.passes.lengths.samples import Affine
from tvm_blislike.passes.open_sizes import allowing

_MOST, _HIDDEN, _HEADS, _TOKENS = 150, 48, 3, 40


def weights(rng: np.random.Generator, **shapes: tuple[int, ...]) -> list[onnx.TensorProto]:
    return [
        numpy_helper.from_array(rng.standard_normal(shape).astype("float32") / 5, name)
        for name, shape in shapes.items()
    ]


def encoder() -> onnx.ModelProto:
    """One layer as exporters write BERT: ids and mask, (1, length) each, to states and a GELU."""
    rng, node, h = np.random.default_rng(3), helper.make_node, _HIDDEN
    constants = weights(
        rng,
        words=(_TOKENS, h),
        places=(1, _MOST, h),
        **{name: (h, h) for name in ("wq", "wk", "wv", "wo")},
        w1=(h, 100),
        b1=(100,),
        w2=(100, h),
        scale=(h,),
        shift=(h,),
    )
    numbers = {"one": [1], "zero": [0], "split": [1, -1, _HEADS, h // _HEADS], "join": [1, -1, h]}
    constants += [numpy_helper.from_array(np.array(v), name) for name, v in numbers.items()]
    constants += [
        numpy_helper.from_array(np.float32(value), name)
        for name, value in (("far", -1e4), ("half", 0.5), ("whole", 1.0), ("root", 2**0.5))
    ]
    nodes = [
        node("Gather", ["words", "ids"], ["found"]),
        node("Shape", ["ids"], ["sizes"]),
        node("Gather", ["sizes", "one"], ["length"]),
        node("Slice", ["places", "zero", "length", "one"], ["own"]),
        node("Add", ["found", "own"], ["e"]),
        node("LayerNormalization", ["e", "scale", "shift"], ["x"], axis=-1),
        node("Cast", ["mask"], ["kept"], to=TensorProto.FLOAT),
        node("Sub", ["whole", "kept"], ["left"]),
        node("Mul", ["left", "far"], ["masked"]),
        node("Unsqueeze", ["masked", "axes"], ["wide"]),
    ]
    constants.append(numpy_helper.from_array(np.array([1, 2]), "axes"))
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}x"]),
            node("Reshape", [f"{name}x", "split"], [f"{name}s"]),
            node("Transpose", [f"{name}s"], [f"{name}h"], perm=order),
        ]
    nodes += [
        node("MatMul", ["qh", "kh"], ["products"]),
        node("Mul", ["products", "half"], ["scores"]),
        node("Add", ["scores", "wide"], ["visible"]),
        node("Softmax", ["visible"], ["shares"], axis=-1),
        node("MatMul", ["shares", "vh"], ["mixed"]),
        node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        node("Reshape", ["back", "join"], ["joined"]),
        node("MatMul", ["joined", "wo"], ["attended"]),
        node("Add", ["attended", "x"], ["sum"]),
        node("LayerNormalization", ["sum", "scale", "shift"], ["y"], axis=-1),
        node("MatMul", ["y", "w1"], ["p"]),
        node("Add", ["p", "b1"], ["pre"]),
        node("Div", ["pre", "root"], ["d"]),
        node("Erf", ["d"], ["erf"]),
        node("Add", ["erf", "whole"], ["up"]),
        node("Mul", ["pre", "up"], ["twice"]),
        node("Mul", ["twice", "half"], ["gelu"]),
        node("MatMul", ["gelu", "w2"], ["p2"]),
        node("Add", ["p2", "y"], ["z"]),
    ]
    ids, mask = (
        helper.make_tensor_value_info(name, TensorProto.INT64, [1, "length"])
        for name in ("ids", "mask")
    )
    outputs = [float_input("z", [1, "length", h]), float_input("gelu", [1, "length", 100])]
    return make_model(nodes, [ids, mask], outputs, constants)


def inputs_of(length: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    mask = rng.integers(0, 2, (1, length))
    mask[0, 0] = 1
    return {"ids": rng.integers(0, _TOKENS, (1, length)), "mask": mask}


def require_right(model: tvm_blislike.CompiledModel, length: int, seed: int = 0) -> None:
    inputs = inputs_of(length, seed)
    wanted = ReferenceEvaluator(encoder()).run(None, inputs)
    for found, array in zip(model.run(inputs).values(), wanted, strict=True):
        np.testing.assert_allclose(found, array, rtol=2e-4, atol=2e-5)


@pytest.fixture(scope="module")
def model() -> tvm_blislike.CompiledModel:
    return tvm_blislike.compile(encoder(), shapes={"length": range(1, _MOST + 1)}, threads=1)


@given(st.integers(1, _MOST), st.integers(0, 99))
@examples(60)
def test_any_length_is_right(model: tvm_blislike.CompiledModel, length: int, seed: int) -> None:
    require_right(model, length, seed)


def test_ends_and_edges_are_right(model: tvm_blislike.CompiledModel) -> None:
    for length in (_MOST, 1, 2, 15, 16, 17, _MOST - 1, 1, _MOST):
        require_right(model, length)


def test_one_function_and_one_set_of_kernels_serve_all(model: tvm_blislike.CompiledModel) -> None:
    assert [v.inputs[0].shape[1] for v in model.variants] == list(range(1, _MOST + 1))
    assert {v.function for v in model.variants} == {MAIN}
    assert any(f"sizes 1 to {_MOST}: one function" in note for note in model.explain().notes)
    chosen = [layer for layer in model.explain().layers if layer.is_chosen]
    assert chosen and all("any number of rows" in layer.reason for layer in chosen)


def test_lengths_outside_are_refused(model: tvm_blislike.CompiledModel) -> None:
    with pytest.raises(InputError, match=rf"1x{_MOST + 1}; the model was compiled for 1x1..150"):
        model.run(inputs_of(_MOST + 1))
    with pytest.raises(InputError, match="do not go together"):
        model.run({"ids": inputs_of(3)["ids"], "mask": inputs_of(4)["mask"]})


def test_runners_have_a_length_each(model: tvm_blislike.CompiledModel) -> None:
    runners = {n: model.runner(sizes={"ids": (1, n), "mask": (1, n)}) for n in (5, 64)}
    for n in (5, 64, 5):
        wanted = ReferenceEvaluator(encoder()).run(None, inputs_of(n))
        found = runners[n].run(inputs_of(n))
        np.testing.assert_allclose(found["z"], wanted[0], rtol=2e-4, atol=2e-5)


def test_more_lengths_run_than_are_kept(
    model: tvm_blislike.CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvm_blislike.runtime.machine._MOST_SIZES", 2)
    for length in (3, 4, 5, 3, 4, 5, 5):
        require_right(model, length)


def test_two_threads_compute_the_same() -> None:
    shapes = {"length": range(1, _MOST + 1)}
    model = tvm_blislike.compile(encoder(), shapes=shapes, threads=2)
    for length in (1, 7, 40, 128, _MOST):
        require_right(model, length)


def test_a_library_takes_all_lengths(model: tvm_blislike.CompiledModel, tmp_path: Path) -> None:
    model.export(tmp_path / "lengths.so")
    loaded = tvm_blislike.CompiledModel.load(tmp_path / "lengths.so")
    for length in (1, 33, _MOST):
        require_right(loaded, length)


def test_a_bundle_takes_all_lengths(model: tvm_blislike.CompiledModel, tmp_path: Path) -> None:
    folder = model.bundle(tmp_path / "bundle").folder
    for length in (1, 33, _MOST):
        arguments = ["--output", str(tmp_path / "out")]
        for name, array in inputs_of(length).items():
            np.save(tmp_path / f"{name}.npy", array)
            arguments += ["--input", f"{name}={tmp_path / name}.npy"]
        subprocess.run([str(folder / "blis_run"), *arguments], check=True)
        wanted = ReferenceEvaluator(encoder()).run(None, inputs_of(length))
        found = np.load(tmp_path / "out" / "z.npy")
        np.testing.assert_allclose(found, wanted[0], rtol=2e-4, atol=2e-5)


def test_the_command_line_has_ranges(tmp_path: Path) -> None:
    onnx.save(encoder(), tmp_path / "encoder.onnx")
    library = tmp_path / "encoder.so"
    compiling = ["compile", str(tmp_path / "encoder.onnx"), "--shape", f"length=1..{_MOST}"]
    done = CliRunner().invoke(app, [*compiling, "--threads", "1", "-o", str(library)])
    assert done.exit_code == 0, done.output
    running = ["run", str(library), "--shape", "ids=1x77", "--shape", "mask=1x77"]
    done = CliRunner().invoke(app, running)
    assert done.exit_code == 0, done.output
    require_right(tvm_blislike.CompiledModel.load(library), 77)


def along_rows(operator: str, **attributes: int) -> onnx.ModelProto:
    """A product, and an operator along its rows."""
    rng = np.random.default_rng(0)
    axis = numpy_helper.from_array(np.int64(0), "axis")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node(operator, ["p", "axis"], ["y"], **attributes),
    ]
    shape = ["rows", 8]
    ends = [float_input("x", shape)], [float_input("y", shape)]
    return make_model(nodes, *ends, [*weights(rng, w=(8, 8)), axis])


def test_operators_that_cannot_are_named() -> None:
    with pytest.raises(UsageError, match=r"100 sizes are more.*cumsum") as raised:
        tvm_blislike.compile(along_rows("CumSum"), shapes={"rows": range(1, 101)}, threads=1)
    assert "16/32/64" in str(raised.value.hint)


def test_what_short_sizes_alone_show_is_seen() -> None:
    """The first 64 rows are all rows of a shorter input."""
    rng, numbers = np.random.default_rng(0), {"first": 0, "last": 64}
    nodes = [
        helper.make_node("Slice", ["x", "first", "last"], ["head"]),
        helper.make_node("MatMul", ["head", "w"], ["p"]),
        helper.make_node("ReduceSum", ["p"], ["s"], keepdims=0),
    ]
    constants = [numpy_helper.from_array(np.array([v]), name) for name, v in numbers.items()]
    ends = [float_input("x", ["rows", 8])], [float_input("s", [])]
    proto = make_model(nodes, *ends, [*weights(rng, w=(8, 8)), *constants])
    with pytest.raises(UsageError, match="otherwise than in proportion: 64 of 127, 64 of 113, 1"):
        tvm_blislike.compile(proto, shapes={"rows": range(1, 201)}, threads=1)


def test_few_sizes_have_functions_each_where_one_cannot_serve() -> None:
    proto = along_rows("CumSum")
    model = tvm_blislike.compile(proto, shapes={"rows": range(1, 21)}, threads=1)
    assert len({v.function for v in model.variants}) == 20
    x = np.random.default_rng(1).standard_normal((13, 8)).astype("float32")
    wanted = ReferenceEvaluator(proto).run(None, {"x": x})[0]
    np.testing.assert_allclose(model.run({"x": x})["y"], wanted, rtol=1e-4, atol=1e-5)


@dataclass(frozen=True)
class Rated:
    """Stands for a product: of register blocks of so many rows, what each loses."""

    losses: Mapping[int, float]
    weight: float = 1.0

    def best_at(self, size: int) -> products_module._Fit | None:
        whole = [mr for mr in self.losses if size % mr == 0]
        if not whole:
            return None
        mr = min(whole, key=self.losses.__getitem__)
        choice = Choice(GemmWorkload(size, 64, 64), None, GemmConfig(mr=mr, nr=16), None, "")
        return products_module._Fit(choice, self.losses[mr])


@pytest.mark.parametrize(
    ("losses", "most", "chosen", "size"),
    [
        # The first choices meet, at several sizes.
        ([{6: 1.0, 4: 1.1}, {8: 1.0, 4: 1.1}], 150, [6, 8], 144),
        # No size up to 20 is a multiple of both: one takes its next choice, of the largest size.
        ([{14: 1.0, 7: 1.1}, {6: 1.0, 2: 1.1}], 20, [14, 2], 14),
        # The product that takes longer has its way.
        ([Rated({14: 1.0, 6: 1.1}, 9.0), Rated({6: 1.0, 7: 1.3}, 1.0)], 20, [14, 7], 14),
        ([Rated({14: 1.0, 6: 1.1}, 1.0), Rated({6: 1.0, 7: 1.3}, 9.0)], 20, [6, 6], 18),
        ([{29: 1.0}, {14: 1.0}, {8: 1.0}], 150, None, 0),
    ],
)
def test_products_take_blocks_that_have_a_common_size(
    losses: list[Rated | dict[int, float]], most: int, chosen: list[int] | None, size: int
) -> None:
    rated = [each if isinstance(each, Rated) else Rated(each) for each in losses]
    found = products_module._of_a_common_size(rated, most)
    assert (found is None) == (chosen is None)
    if found is not None:
        assert ([choice.config.mr for choice in found[0]], found[1]) == (chosen, size)


def open_product(strategy: Strategy, most: int, n: int, k: int) -> OpenProduct:
    """Return a product of as many rows as the size."""
    workloads = [GemmWorkload(m, n, k) for m in (113, 127, most)]
    return OpenProduct(Affine(1, 0), tuple(map(strategy.choose, workloads)))


@pytest.mark.parametrize("threads", [1, 2])
def test_many_rows_have_functions_of_their_own_where_other_products_gain(threads: int) -> None:
    """As the model of a core has it: seven products of half the size where all rows pay for it."""
    sizes, zen4 = range(1, 513), Core.named("zen4")
    strategy = allowing(Strategy(zen4, threads), opens)
    large = [open_product(strategy, 512, n, k) for n, k in ((768, 768), (3072, 768))]
    few, many = ranges_of(large, sizes, strategy)
    assert (few[0], many[-1]) == (1, 512) and few[-1] + 1 == many[0]
    assert 32 <= many[0] <= 256
    small = [open_product(strategy, 512, 48, 48)]
    assert ranges_of(small, sizes, strategy) == [sizes]
    plain = strategy.leaving_out(["gemm_strassen"])
    products = [open_product(plain, 512, n, k) for n, k in ((768, 768), (3072, 768))]
    assert ranges_of(products, sizes, plain) == [sizes]


def test_blocks_of_few_rows_have_several_tiles() -> None:
    """Tiles of a block share what they ask for; a size of one tile says nothing of a block."""
    strategy = allowing(Strategy(Core.named("zen4"), 2), opens).leaving_out(["gemm_strassen"])
    product = open_product(strategy, 512, 384, 384)
    (chosen,), _ = products_module.chosen_for([product], range(1, 64), strategy)
    assert chosen.choice.config.mr >= 8
    opened = products_module.opened(chosen.choice, product.at(63), 1, 2)
    assert opened.mc > opened.mr


def residual_layers(hidden: int, inner: int) -> onnx.ModelProto:
    """x + relu(x A + b) B, of any number of rows."""
    rng = np.random.default_rng(5)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["q"]),
        helper.make_node("Relu", ["q"], ["r"]),
        helper.make_node("MatMul", ["r", "c"], ["s"]),
        helper.make_node("Add", ["s", "x"], ["y"]),
    ]
    constants = weights(rng, a=(hidden, inner), b=(inner,), c=(inner, hidden))
    ends = [[float_input(name, ["rows", hidden])] for name in "xy"]
    return make_model(nodes, *ends, constants)


@pytest.mark.parametrize("threads", [1, 2])
def test_sizes_in_both_ranges_are_right(
    threads: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each range has its function, what `main` does not serve another one does."""
    monkeypatch.setattr(ranges_module, "_LEAST_GAIN", 0.0)
    proto, most = residual_layers(192, 384), 200
    sizes = {"rows": range(1, most + 1)}
    model = tvm_blislike.compile(proto, shapes=sizes, threads=threads, cache=False)
    functions = [v.function for v in model.variants]
    cut = functions.index(MAIN) + 1
    assert set(functions[cut - 1 :]) == {MAIN} and set(functions[: cut - 1]) == {"main_0"}
    said = f"for 1 to {cut - 1} and for {cut} to {most}"
    assert any(said in note for note in model.explain().notes)
    model.export(tmp_path / "rows.so")
    loaded, rng = tvm_blislike.CompiledModel.load(tmp_path / "rows.so"), np.random.default_rng(2)
    for rows in (1, 3, 4, 5, cut - 1, cut, cut + 1, most - 1, most):
        x = rng.standard_normal((rows, 192)).astype("float32")
        wanted = ReferenceEvaluator(proto).run(None, {"x": x})[0]
        for each in (model, loaded):
            np.testing.assert_allclose(each.run({"x": x})["y"], wanted, rtol=2e-4, atol=2e-4)
