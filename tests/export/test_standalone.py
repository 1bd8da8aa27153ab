"""Objects without TVM's runtime: results, memory, what they need, what they cannot do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import float_input, make_model, small_network, small_reference, two_convolutions
from typer.testing import CliRunner
from use_standalone import build, results

from tvm_blislike import standalone
from tvm_blislike.cli.app import app
from tvm_blislike.errors import UsageError
from tvm_blislike.export.link import find_builder, run_tool
from tvm_blislike.hardware import Core
from tvm_blislike.standalone import c_header


def _run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, timeout=60)


def _branches() -> onnx.ModelProto:
    """Two inputs, three outputs, a concatenation, a reshape, a constant result, an input again."""
    rng = np.random.default_rng(8)
    weights = {
        "one": rng.standard_normal((16, 8, 1, 1)).astype("float32"),
        "three": rng.standard_normal((32, 8, 3, 3)).astype("float32"),
        "shape": np.array([1, -1], "int64"),
        "fixed": np.arange(4, dtype="float32"),
    }
    nodes = [
        helper.make_node("Conv", ["x", "one"], ["a"]),
        helper.make_node("Conv", ["x", "three"], ["b"], pads=[1] * 4),
        helper.make_node("Concat", ["a", "b"], ["joined"], axis=1),
        helper.make_node("Relu", ["joined"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["flat"]),
        helper.make_node("Softmax", ["flat"], ["soft"]),
        helper.make_node("Add", ["count", "count"], ["twice"]),
        helper.make_node("Identity", ["fixed"], ["constant"]),
    ]
    count = helper.make_tensor_value_info("count", TensorProto.INT64, [3])
    twice = helper.make_tensor_value_info("twice", TensorProto.INT64, [3])
    outputs = [float_input("soft", [1, 48 * 25]), twice, float_input("constant", [4])]
    initializers = [numpy_helper.from_array(w, name) for name, w in weights.items()]
    return make_model(nodes, [float_input("x", [1, 8, 5, 5]), count], outputs, initializers)


def _check(model: onnx.ModelProto, folder: Path, target: str | Core = "native") -> None:
    rng = np.random.default_rng(2)
    compiled = standalone.compile(model, target)
    inputs = {
        spec.name: rng.integers(0, 9, spec.shape).astype(spec.dtype)
        if "int" in spec.dtype
        else rng.standard_normal(spec.shape).astype(spec.dtype)
        for spec in compiled.inputs
    }
    found = results(compiled, list(inputs.values()), folder, _run)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for name, wanted in zip(found, session.run(None, inputs), strict=True):
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", [small_network, two_convolutions, _branches])
def test_agrees_with_onnxruntime(model: object, tmp_path: Path) -> None:
    _check(model(), tmp_path)


def test_memory_need_not_be_aligned(tmp_path: Path) -> None:
    model = standalone.compile(small_network(), "native")
    image = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype("float32")
    found = results(model, [image], tmp_path, _run, arguments=[1, 4])
    np.testing.assert_allclose(found["scores"], small_reference(image), rtol=1e-5, atol=1e-5)


def test_an_object_has_one_thread_and_no_heap(tmp_path: Path) -> None:
    program = build(standalone.compile(small_network(), "native"), tmp_path)
    (tmp_path / "in").write_bytes(bytes(4 * 3 * 8 * 8))
    command = [str(program), str(tmp_path / "in"), str(tmp_path / "out"), "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "an object runs in one thread" in done.stderr
    two = standalone.compile(small_network(), "native", threads=2)
    with pytest.raises(UsageError, match="one thread"):
        standalone.write(two, tmp_path / "two.o")


def test_says_what_it_needs(tmp_path: Path) -> None:
    """Exactly the names without which it does not link: with these and nothing else it does."""
    model = standalone.compile(_branches(), "native")
    standalone.write(model, tmp_path / "net.o")
    needed = standalone.needs(model, tmp_path / "net.o")
    assert not [name for name in needed if "TVM" in name]
    header = (tmp_path / "net.h").read_text()
    assert all(name in header for name in needed)
    stubs = "".join(f"void {name}(void) {{}}\n" for name in needed)
    (tmp_path / "stubs.c").write_text(stubs + "void _start(void) {}\n")
    command = [*find_builder(model.core.target_config()), "-nostdlib", "-static", "-fno-builtin"]
    command += ["-Wl,--no-gc-sections", str(tmp_path / "stubs.c"), str(tmp_path / "net.o")]
    run_tool([*command, "-o", str(tmp_path / "linked")], "link")


def test_two_models_in_one_program(tmp_path: Path) -> None:
    names, objects = ("first", "second"), []
    for name in names:
        model = standalone.compile(small_network(), "native", name)
        standalone.write(model, tmp_path / f"{name}.o")
        objects.append(str(tmp_path / f"{name}.o"))
    text = "".join(f'#include "{name}.h"\n' for name in names)
    calls = "".join(f"{name}_model.threads != 1 ||" for name in names)
    (tmp_path / "both.c").write_text(f"{text}int main() {{ return {calls} 0; }}\n")
    command = [*find_builder(model.core.target_config()), f"-I{tmp_path}"]
    command += [str(tmp_path / "both.c"), *objects, "-lm", "-o", str(tmp_path / "both")]
    run_tool(command, "build both.c")
    _run(tmp_path / "both")


@pytest.mark.parametrize("is_folder", [False, True])
def test_apple_archive_links(is_folder: bool, tmp_path: Path) -> None:
    """Never run, but complete: a program for macOS links with it."""
    model = standalone.compile(small_network(), "apple-m1", "net")
    if is_folder:
        header = standalone.package(model, tmp_path / "net").header
        archive = tmp_path / "net" / "lib" / "libnet.a"
    else:
        archive = tmp_path / "net.a"
        header = standalone.write(model, archive)
    (tmp_path / "main.c").write_text(
        f'#include "{header.name}"\nint main() {{ return net_model.threads != 1; }}'
    )
    command = [*find_builder(model.core.target_config()), f"-I{header.parent}"]
    command += [str(tmp_path / "main.c"), str(archive)]
    run_tool([*command, "-o", str(tmp_path / "main")], "link")
    assert (tmp_path / "main").read_bytes()[:4] == b"\xcf\xfa\xed\xfe"


def test_names_become_identifiers() -> None:
    assert c_header.identifier("input:0") == "input_0"
    assert c_header.identifier("1st") == "_1st"
    assert c_header.identifier("größe") == "gr__e"


def test_arguments_have_names_of_their_own(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["int", "x.1"], ["x:1"]),
        helper.make_node("Relu", ["x:1"], ["y"]),
    ]
    sizes = [float_input(name, [3]) for name in ("int", "x.1", "x:1", "y")]
    model = standalone.compile(make_model(nodes, sizes[:2], sizes[2:], []), "native")
    arguments = "const float* int_, const float* x_1, float* x_1_, float* y, blislike_error*"
    assert f"model_run(blislike_runner* runner, {arguments}" in c_header.header(model)
    inputs = [np.array([1, -2, 3], "float32"), np.array([1, 1, 1], "float32")]
    found = results(model, inputs, tmp_path, _run)
    np.testing.assert_array_equal(found["x:1"], [2, -1, 4])
    np.testing.assert_array_equal(found["y"], [2, 0, 4])


def test_command_line(tmp_path: Path) -> None:
    onnx.save(small_network(), tmp_path / "net.onnx")
    arguments = ["compile", str(tmp_path / "net.onnx"), "--standalone"]
    output = ["-o", str(tmp_path / "my-net.o")]
    result = CliRunner().invoke(app, [*arguments, *output, "--target", "cortex-a53"])
    assert result.exit_code == 0, result.output
    assert "needs from elsewhere: memcpy" in result.stdout
    text = (tmp_path / "my-net.h").read_text()
    assert "my_net_run(blislike_runner* runner, const float* image, float* scores" in text
    for wrong in (["--threads", "2"], ["--bundle", str(tmp_path / "ship")]):
        refused = CliRunner().invoke(app, [*arguments, *output, *wrong])
        assert refused.exit_code == 2
        assert "standalone" in refused.stderr


def test_reference_network_by_hand(tmp_path: Path) -> None:
    image = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype("float32")
    found = results(standalone.compile(small_network(), "native"), [image], tmp_path, _run)
    np.testing.assert_allclose(found["scores"], small_reference(image), rtol=1e-5, atol=1e-5)
