"""Folders for C and C++: the examples, every refusal, threads, memory, sanitizers."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import zoo
from c_library import Failed, Given, Runner, given, placed
from effort import examples
from hypothesis import given as random_cases
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from small_models import float_input, make_model, small_network, two_convolutions
from typer.testing import CliRunner
from use_standalone import build, results

import tvm_blislike
from tvm_blislike import standalone
from tvm_blislike.cli.app import app
from tvm_blislike.errors import OutputError, TargetError
from tvm_blislike.hardware import Core, names
from tvm_blislike.runtime.runnable import why_not_runnable

ROOT = Path(__file__).parents[2]
FLOAT32, FLOAT64 = 12, 13


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command wrote for the small network and two threads."""
    home = tmp_path_factory.mktemp("package")
    onnx.save(small_network(), home / "small.onnx")
    command = ["compile", str(home / "small.onnx"), "--standalone", "--threads", "2"]
    done = CliRunner().invoke(app, [*command, "-o", str(home / "net"), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["threads"] == 2 and Path(told["header"]).is_file()
    return home / "net"


@pytest.fixture(scope="module")
def images() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal((1, 3, 8, 8)).astype("float32") for _ in range(4)]


@pytest.fixture(scope="module")
def wanted(images: list[np.ndarray]) -> list[np.ndarray]:
    model = tvm_blislike.compile(small_network(), threads=2)
    return [model.run([image])["scores"] for image in images]


def _built(example: str, folder: Path, build: Path) -> Path:
    """Build an example by CMake."""
    configure = ["cmake", "-S", str(ROOT / "examples" / example), "-B", str(build)]
    flags = "-Wall -Wextra -Werror -pedantic"
    configure += [f"-DCMAKE_PREFIX_PATH={folder}"]
    configure += [f"-DCMAKE_{lang}_FLAGS={flags}" for lang in ("C", "CXX")]
    for command in (configure, ["cmake", "--build", str(build)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return build


def _run(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_in_c(
    folder: Path, images: list[np.ndarray], wanted: list[np.ndarray], tmp_path: Path
) -> None:
    program = _built("c", folder, tmp_path / "build") / "run_net"
    images[0].tofile(tmp_path / "image")
    for threads in (1, 2, 3):
        _run(program, "-t", threads, tmp_path / "image", tmp_path / "scores")
        found = np.fromfile(tmp_path / "scores", "float32").reshape(wanted[0].shape)
        np.testing.assert_allclose(found, wanted[0], rtol=1e-6, atol=1e-6)
    refused = {
        (): "input image: 1 3 8 8, 768 bytes",
        ("-t", "-1", "image", "scores"): "threads are 1 to 1024",
        ("scores", "image"): "input image has 20 bytes, not 768; the model takes 1x3x8x8 float32",
    }
    for arguments, text in refused.items():
        command = [program, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and text in done.stdout + done.stderr


def test_the_example_in_cpp(
    folder: Path, images: list[np.ndarray], wanted: list[np.ndarray], tmp_path: Path
) -> None:
    program = _built("cpp", folder, tmp_path / "build") / "classify"
    files = [tmp_path / f"{i}.bin" for i in range(len(images))]
    for file, image in zip(files, images, strict=True):
        image.tofile(file)
    lines = _run(program, *files).splitlines()
    for line, scores in zip(lines, wanted, strict=True):
        best, score = re.search(r"class (\d+), score (\S+)", line).groups()
        assert int(best) == scores.argmax()
        assert float(score) == pytest.approx(scores.max(), rel=1e-4)
    images[0][..., 1:].tofile(files[0])
    done = subprocess.run([program, *files[:1]], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "input image has 672 bytes, not 768" in done.stderr


def test_pkg_config_names_what_links(folder: Path, tmp_path: Path) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config here")
    command = ["pkg-config", "--with-path", str(folder / "lib" / "pkgconfig")]
    flags = _run(*command, "--cflags", "--libs", "net").split()
    source = tmp_path / "main.c"
    source.write_text('#include "net.h"\nint main(void) { return net_model.input_count != 1; }\n')
    _run("gcc", source, *flags, "-o", tmp_path / "main")
    _run(tmp_path / "main")


def test_the_model_tells_of_itself(folder: Path) -> None:
    model = Runner(folder / "lib" / "libnet.so", "net").model
    assert (model.interface_version, model.threads, model.name) == (1, 2, b"net")
    assert model.core.decode() == tvm_blislike.native_core().name
    assert model.version.decode() == tvm_blislike.__version__
    image, scores = model.inputs[0], model.outputs[0]
    assert (image.name, image.type, image.shape[: image.rank]) == (b"image", FLOAT32, [1, 3, 8, 8])
    assert (scores.name, scores.bytes) == (b"scores", 20)


@examples(30)
@random_cases(st.integers(0, 127), st.integers(0, 127), st.integers(1, 5), st.integers(0, 3))
def test_any_alignment_and_number_of_threads(
    folder: Path,
    images: list[np.ndarray],
    wanted: list[np.ndarray],
    read: int,
    written: int,
    threads: int,
    which: int,
) -> None:
    runner = Runner(folder / "lib" / "libnet.so", "net", threads)
    image, scores = placed(images[which], read), placed(np.zeros((1, 5), "float32"), written)
    runner.run([given(image, FLOAT32, image.shape)], [given(scores, FLOAT32, scores.shape)])
    np.testing.assert_allclose(scores, wanted[which], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(image, images[which])
    start = scores.ctypes.data - scores.base.ctypes.data
    around = np.delete(scores.base, slice(start, start + scores.nbytes))
    assert np.all(around == 0xA5)
    runner.free()


def test_every_misfit_is_told(folder: Path, images: list[np.ndarray]) -> None:
    runner = Runner(folder / "lib" / "libnet.so", "net")
    image, scores = placed(images[0], 0), placed(np.zeros((1, 5), "float32"), 0)
    good, result = given(image), given(scores)
    takes = "; the model takes 1x3x8x8 float32"
    cases: list[tuple[list[Given], list[Given], str]] = [
        ([], [result], "0 inputs given; the model takes 1: image"),
        ([good], [result, result], "2 outputs given; the model returns 1: scores"),
        ([given(image, FLOAT64)], [result], "input image has type float64" + takes),
        ([given(image, 99)], [result], "input image has type none that is known" + takes),
        ([given(image, 0, (1, 3, 8))], [result], "input image has shape 1x3x8" + takes),
        ([given(image, 0, (1, 3, 8, -9))], [result], "input image has shape 1x3x8x-9" + takes),
        ([given(image, 0, ())], [result], "input image has shape scalar" + takes),
        ([given(image[:, :2])], [result], "input image has 512 bytes, not 768" + takes),
        ([Given(None, 768)], [result], "input image is NULL" + takes),
        ([good], [given(scores, 1)], "output scores has type bool; the model returns 1x5 float32"),
        ([good], [given(scores, 0, (5,))], "output scores has shape 5; the model returns 1x5"),
        ([good], [given(image)], "output scores has 768 bytes, not 20"),
    ]
    for inputs, outputs, text in cases:
        with pytest.raises(Failed) as failed:
            runner.run(inputs, outputs)
        status, told = failed.value.args
        assert status == 1 and told.startswith(text)
    runner.run([good], [result])
    runner.free()


def test_what_cannot_be_made_is_told(folder: Path) -> None:
    library = folder / "lib" / "libnet.so"
    for threads in (-1, 1025):
        with pytest.raises(Failed, match="threads are 1 to 1024"):
            Runner(library, "net", threads)
    model = Runner(library, "net").model
    error, runner = ctypes.create_string_buffer(256), ctypes.c_void_p()
    wanted = model.bytes(2)
    memory = np.zeros(wanted + 64, np.uint8)
    start = -memory.ctypes.data % 64 + memory.ctypes.data
    for place, size in ((start, wanted - 1), (start + 32, wanted)):
        assert model.create(place, size, 2, ctypes.byref(runner), error) == 2
        assert error.value.decode() == f"a runner needs aligned memory, in bytes {wanted}"
    # Without anywhere to put the text.
    assert model.create(start, 1, 2, ctypes.byref(runner), None) == 2 and runner.value is None


def test_processors_that_lack_something_are_told(tmp_path: Path) -> None:
    for name in names():
        core = Core.named(name)
        reason = why_not_runnable(core.target_config()) or ""
        if reason.startswith("this processor lacks"):
            break
    else:
        pytest.skip("this processor has everything")
    model = standalone.compile(small_network(), core, "net")
    package = standalone.package(model, tmp_path / "net")
    lacks = reason.partition(",")[0].replace(" bmi", " bmi1")
    with pytest.raises(Failed, match=f"{lacks}'"):
        Runner(package.folder / "lib" / "libnet.so", "net")


def test_an_input_may_be_overwritten(tmp_path: Path) -> None:
    """Kernels write the output before they read the input again."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Softmax", ["r"], ["s"]),
        helper.make_node("Add", ["s", "x"], ["y"]),
    ]
    specs = [float_input("x", [2, 64]), float_input("y", [2, 64])]
    model = standalone.compile(make_model(nodes, specs[:1], specs[1:], []), "native", "over")
    package = standalone.package(model, tmp_path / "over")
    values = np.random.default_rng(1).standard_normal((2, 64)).astype("float32")
    runner = Runner(package.folder / "lib" / "libover.so", "over")
    apart, place = placed(np.zeros_like(values), 0), placed(values, 0)
    runner.run([given(placed(values, 0))], [given(apart)])
    runner.run([given(place)], [given(place)])
    np.testing.assert_array_equal(place, apart)
    runner.free()


def test_outputs_may_not_overlap(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    specs = [float_input(name, [16]) for name in "xyz"]
    model = standalone.compile(make_model(nodes, specs[:1], specs[1:], []), "native", "two")
    package = standalone.package(model, tmp_path / "two")
    runner = Runner(package.folder / "lib" / "libtwo.so", "two")
    values = placed(np.arange(-8, 8, dtype="float32"), 0)
    both = placed(np.zeros(24, "float32"), 0)
    with pytest.raises(Failed, match="output z overlaps output y"):
        runner.run([given(values)], [given(both[:16]), given(both[8:])])
    runner.free()


def _lstm() -> onnx.ModelProto:
    """One direction of many units: threads divide them and wait for each other in every step."""
    rng, hidden, steps = np.random.default_rng(5), 256, 6
    weights = {
        "w": rng.standard_normal((1, 4 * hidden, 64)).astype("float32") / 16,
        "r": rng.standard_normal((1, 4 * hidden, hidden)).astype("float32") / 16,
    }
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y", "", ""], hidden_size=hidden)
    outputs = [float_input("y", [steps, 1, 1, hidden])]
    initializers = [numpy_helper.from_array(w, name) for name, w in weights.items()]
    return make_model([node], [float_input("x", [steps, 1, 64])], outputs, initializers)


def _zoo() -> onnx.ModelProto:
    return zoo.build("mobilenet_v2", image=64)


def _inputs(model: standalone.StandaloneModel) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.standard_normal(s.shape).astype(s.dtype) for s in model.inputs]


def _require_near(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    for name, array in wanted.items():
        bound = 1e-6 * np.abs(array).max()
        np.testing.assert_allclose(found[name], array, rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize("make", [small_network, two_convolutions, _lstm, _zoo])
def test_between_forbidden_pages_as_in_python(make: object, tmp_path: Path) -> None:
    proto = make()
    model = standalone.compile(proto, "native", threads=2)
    inputs = _inputs(model)
    wanted = tvm_blislike.compile(proto, threads=2).run(inputs)
    program = build(model, tmp_path, as_package=True)
    for arguments in ((1,), (2, 4), (3, 60), (2, 0, "pair"), (1, 8, "pair")):
        found = results(model, inputs, tmp_path, _run, program, arguments)
        _require_near(found, wanted)


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_under_sanitizers(sanitizer: str, tmp_path: Path) -> None:
    options = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g"]
    (tmp_path / "empty.c").write_text("int main(void) { return 0; }\n")
    trial = ["gcc", *options, str(tmp_path / "empty.c"), "-o", str(tmp_path / "empty")]
    for command in (trial, trial[-1:]):
        try:
            if subprocess.run(command, capture_output=True, check=False).returncode:
                pytest.skip(f"no compiler for -fsanitize={sanitizer}")
        except OSError:
            pytest.skip("no gcc")
    model = standalone.compile(two_convolutions(), "native", threads=2)
    inputs = _inputs(model)
    program = build(model, tmp_path, options, as_package=True)
    wanted = tvm_blislike.compile(two_convolutions(), threads=2).run(inputs)
    for arguments in ((2, 4), (3, 0, "pair")):
        _require_near(results(model, inputs, tmp_path, _run, program, arguments), wanted)


def test_models_of_one_process_run_at_once(tmp_path: Path) -> None:
    """Their kernels' variables are their own: no model runs on another one's threads."""
    protos = {"first": small_network(), "second": two_convolutions()}
    models = {
        name: standalone.compile(proto, "native", name, threads=2) for name, proto in protos.items()
    }
    inputs = {name: _inputs(model) for name, model in models.items()}
    wanted = {
        name: tvm_blislike.compile(proto, threads=2).run(inputs[name])
        for name, proto in protos.items()
    }
    for name, model in models.items():
        standalone.package(model, tmp_path / name)
    wrong: list[str] = []

    def use(name: str) -> None:
        runner = Runner(tmp_path / name / "lib" / f"lib{name}.so", name)
        for _ in range(100):
            outputs = [placed(np.zeros_like(a), 0) for a in wanted[name].values()]
            runner.run([given(placed(a, 0)) for a in inputs[name]], list(map(given, outputs)))
            same = zip(outputs, wanted[name].values(), strict=True)
            if not all(np.allclose(a, b, rtol=0, atol=1e-6 * abs(b).max()) for a, b in same):
                wrong.append(name)
        runner.free()

    users = [threading.Thread(target=use, args=(name,)) for name in (*models, *models)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert not wrong


_FORK = """
import os, sys
import numpy as np
sys.path[:0] = [sys.argv[2]]
from c_library import Failed, Runner, given
runner = Runner(sys.argv[1], "net", 2)
image, scores = np.ones((1, 3, 8, 8), "float32"), np.zeros((1, 5), "float32")
runner.run([given(image)], [given(scores)])
child = os.fork()
if child == 0:
    try:
        runner.run([given(image)], [given(scores)])
        os._exit(3)
    except Failed as failed:
        assert "create a runner in it" in failed.args[1]
    runner.free()
    again = np.zeros_like(scores)
    Runner(sys.argv[1], "net", 2).run([given(image)], [given(again)])
    os._exit(0 if np.array_equal(scores, again) else 4)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_needs_a_runner_of_its_own(folder: Path) -> None:
    library = folder / "lib" / "libnet.so"
    _run(sys.executable, "-c", _FORK, library, Path(__file__).parent)


def test_a_folder_is_replaced_only_as_it_was_written(tmp_path: Path) -> None:
    model = standalone.compile(small_network(), "native", "net")
    for _ in range(2):
        package = standalone.package(model, tmp_path / "net")
    assert package.bytes == sum(p.stat().st_size for p in package.folder.rglob("*") if p.is_file())
    (tmp_path / "net" / "mine.c").write_text("int mine;\n")
    with pytest.raises(OutputError, match=r"mine\.c"):
        standalone.package(model, tmp_path / "net")


def test_a_system_without_threads_gets_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="for Linux and Apple's systems"):
        standalone.require_package(tmp_path / "net", "aarch64-none-elf")


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT16", "DOUBLE", "UINT8", "BOOL", "INT64"])
def test_every_type_has_a_name(kind: str, tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    specs = [
        helper.make_tensor_value_info(name, getattr(TensorProto, kind), sizes)
        for name, sizes in (("x", [2, 4]), ("y", [8]))
    ]
    shape = numpy_helper.from_array(np.array([8], "int64"), "shape")
    model = standalone.compile(make_model(nodes, specs[:1], specs[1:], [shape]), "native", "net")
    runner = Runner(standalone.package(model, tmp_path).folder / "lib" / "libnet.so", "net")
    tensor = runner.model.inputs[0]
    dtype = np.dtype(model.inputs[0].dtype)
    image = placed(np.arange(8).reshape(2, 4).astype(dtype), 2)
    result = placed(np.zeros(8, dtype), 2)
    assert tensor.bytes == image.nbytes
    header = standalone.package(model, tmp_path).header.read_text()
    names = re.search(r"BLISLIKE_ANY_TYPE,.*?}", header, re.S)[0]
    assert (
        re.findall(r"BLISLIKE_\w+", names)[tensor.type]
        == f"BLISLIKE_{model.inputs[0].dtype.upper()}"
    )
    runner.run([given(image, tensor.type)], [given(result, tensor.type)])
    np.testing.assert_array_equal(result, image.reshape(-1))
    runner.free()
