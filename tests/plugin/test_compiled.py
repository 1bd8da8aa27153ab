"""A compiled model: running, checking inputs, exporting and loading."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from small_models import float_input, make_model, small_network, small_reference

import tvm_blislike
from tvm_blislike import pipeline
from tvm_blislike.errors import (
    InputError,
    ModelError,
    OutputError,
    TargetError,
    ToolchainError,
)
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.runtime import instruments, library, runnable
from tvm_blislike.tvm_seams import executables, loaded


@pytest.fixture(scope="module")
def model() -> tvm_blislike.CompiledModel:
    return tvm_blislike.compile(small_network(), threads=1)


@pytest.fixture(scope="module")
def exported(model: tvm_blislike.CompiledModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "net.so"
    model.export(path)
    return path


def _close(value: np.ndarray, image: np.ndarray) -> bool:
    return np.allclose(value, small_reference(image), rtol=1e-5, atol=1e-5)


def test_run_by_name_by_position_and_with_one_array(
    model: tvm_blislike.CompiledModel, image: np.ndarray
) -> None:
    for inputs in ({"image": image}, [image], image):
        outputs = model.run(inputs)
        assert list(outputs) == ["scores"]
        assert _close(outputs["scores"], image)


def test_results_are_not_overwritten_by_the_next_run(
    model: tvm_blislike.CompiledModel, image: np.ndarray
) -> None:
    first = model.run(image)["scores"]
    kept = first.copy()
    model.run(image + 1)
    assert np.array_equal(first, kept)


def test_arrays_of_any_strides_are_accepted(
    model: tvm_blislike.CompiledModel, image: np.ndarray
) -> None:
    strided = np.asfortranarray(image)
    assert _close(model.run(strided)["scores"], image)


def test_wrong_inputs_say_what_to_change(
    model: tvm_blislike.CompiledModel, image: np.ndarray
) -> None:
    cases = [
        ({"imag": image}, "no input named 'imag'\ndid you mean image?"),
        ({}, "missing input: image; the model takes image 1x3x8x8 float32"),
        ([image, image], "2 inputs given; the model takes image 1x3x8x8 float32"),
        (image.astype("float64"), "data type float64; the model takes float32"),
        (image[:, :2], "shape 1x2x8x8; the model was compiled for 1x3x8x8"),
        (image[0], "--shape image=3x8x8"),
    ]
    for inputs, message in cases:
        with pytest.raises(InputError) as caught:
            model.run(inputs)
        assert message in str(caught.value)


def test_several_outputs_are_named_in_order() -> None:
    from onnx import helper

    nodes = [helper.make_node("Split", ["x"], ["b", "a"], axis=0, num_outputs=2)]
    outputs = [float_input("b", [1, 3]), float_input("a", [1, 3])]
    proto = make_model(nodes, [float_input("x", [2, 3])], outputs, [])
    proto.opset_import[0].version = 18
    x = np.arange(6, dtype="float32").reshape(2, 3)
    results = tvm_blislike.compile(proto, threads=1).run(x)
    assert list(results) == ["b", "a"]
    assert np.array_equal(results["a"], x[1:])


def test_profile_covers_the_kernels(model: tvm_blislike.CompiledModel, image: np.ndarray) -> None:
    times = model.profile(image, repeat=3)
    assert times
    assert all(time.ms >= 0 and time.calls >= 1 for time in times)
    assert not any(time.name.startswith("vm.builtin") for time in times)


def test_profiled_names_are_those_of_the_report(
    model: tvm_blislike.CompiledModel, image: np.ndarray
) -> None:
    names = {layer.name for layer in model.explain().layers}
    assert {time.name for time in model.profile(image, repeat=1)} <= names


def test_one_machine_runs_and_profiles(
    exported: Path, image: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[loaded.VirtualMachine] = []

    def machine(*args: object) -> loaded.VirtualMachine:
        made.append(original(*args))
        return made[-1]

    original = loaded.VirtualMachine
    monkeypatch.setattr(loaded, "VirtualMachine", machine)
    for first in ("run", "profile"):
        model = tvm_blislike.CompiledModel.load(exported)
        made.clear()  # The library's own description takes one.
        getattr(model, first)(image)
        model.profile(image + 1, repeat=2)
        assert _close(model.run(image)["scores"], image)
        assert [len(run) for run in model.profile_runs(image, 2)] == [len(model.profile(image))] * 2
        assert len(made) == 1


def test_a_failing_profile_leaves_no_clock_behind(
    exported: Path, image: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tvm_blislike.CompiledModel.load(exported)
    seen: list[str] = []

    def failing(self: object, func: object, name: str, *args: object) -> int:
        seen.append(name)
        raise KeyError("a clock that stands")

    with monkeypatch.context() as patch:
        patch.setattr(instruments.KernelClock, "__call__", failing)
        with pytest.raises(KeyError, match="a clock that stands"):
            model.profile(image)
        assert _close(model.run(image)["scores"], image)
    assert len(seen) == 1
    assert model.profile(image, repeat=1)


def test_export_and_load_keep_everything(
    model: tvm_blislike.CompiledModel, exported: Path, image: np.ndarray
) -> None:
    loaded = tvm_blislike.CompiledModel.load(exported)
    assert (loaded.inputs, loaded.outputs) == (model.inputs, model.outputs)
    assert (loaded.threads, loaded.core) == (model.threads, model.core)
    assert loaded.explain() == model.explain()
    assert np.array_equal(loaded.run(image)["scores"], model.run(image)["scores"])


def test_an_executable_to_export_is_made_once_and_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, image: np.ndarray, tmp_path: Path
) -> None:
    made: list[object] = []

    def counted(*arguments: object) -> object:
        made.append(executables.calling(*arguments))
        return made[-1]

    monkeypatch.setattr(pipeline, "calling", counted)
    model = tvm_blislike.compile(small_network(), threads=1)
    assert _close(model.run(image)["scores"], image)
    assert not made
    for name in ("one.so", "two.so"):
        model.export(tmp_path / name)
        loaded = tvm_blislike.CompiledModel.load(tmp_path / name)
        assert _close(loaded.run(image)["scores"], image)
    # That which has run is not what is exported.
    assert len(made) == 1 and model.executable is made[0]
    assert _close(model.run(image)["scores"], image)


def test_export_prints_nothing(
    model: tvm_blislike.CompiledModel, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model.export(tmp_path / "net.so")
    tvm_blislike.CompiledModel.load(tmp_path / "net.so").run([np.zeros((1, 3, 8, 8), "float32")])
    assert capfd.readouterr() == ("", "")


def test_a_replaced_library_is_loaded_anew(exported: Path, tmp_path: Path) -> None:
    path = tmp_path / "same-name.so"
    path.write_bytes(exported.read_bytes())
    assert tvm_blislike.CompiledModel.load(path).inputs[0].shape == (1, 3, 8, 8)
    tvm_blislike.compile(small_network(batch=2), threads=1).export(path)
    assert tvm_blislike.CompiledModel.load(path).inputs[0].shape == (2, 3, 8, 8)


@pytest.mark.parametrize("kept", [0, 3, 63, 64, 0.5, 0.99])
def test_truncated_library_is_refused(exported: Path, tmp_path: Path, kept: float) -> None:
    data = exported.read_bytes()
    path = tmp_path / "cut.so"
    path.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    with pytest.raises(ModelError, match=r"cut\.so"):
        tvm_blislike.CompiledModel.load(path)


def test_foreign_libraries_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.so"
    foreign.write_bytes(Path(np._core._multiarray_umath.__file__).read_bytes())
    with pytest.raises(ModelError, match=r"foreign\.so"):
        tvm_blislike.CompiledModel.load(foreign)
    with pytest.raises(ModelError, match="No such file"):
        tvm_blislike.CompiledModel.load(tmp_path / "none.so")


def test_library_of_another_format_version_is_refused(exported: Path) -> None:
    _, about = library.read(exported)
    fields = json.loads(about.to_json())
    assert library.About.from_json(json.dumps(fields)) == about
    with pytest.raises(ValueError, match="another version"):
        library.About.from_json(json.dumps({**fields, "format": 0}))


def test_unwritable_output_leaves_nothing(
    model: tvm_blislike.CompiledModel, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder.so").mkdir()
    for path in ("missing/net.so", "file/net.so", "folder.so"):
        with pytest.raises(OutputError, match="cannot write"):
            model.export(tmp_path / path)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.so"]
    assert not os.listdir(tmp_path / "folder.so")


def test_failing_linker_keeps_the_old_file(
    model: tvm_blislike.CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.so"
    path.write_text("old")
    monkeypatch.setattr(library, "find_compiler", lambda target, cc: ["false"])
    with pytest.raises(ToolchainError, match="false could not link"):
        model.export(path)
    assert os.listdir(tmp_path) == ["net.so"]
    assert path.read_text() == "old"


def test_library_for_another_processor_is_refused_before_it_crashes(
    exported: Path, image: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = tvm_blislike.CompiledModel.load(exported)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(TargetError, match="this machine is riscv64"):
        loaded.run(image)


def test_missing_extensions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    haswell = frozenset({"avx", "avx2", "fma", "f16c", "bmi", "bmi2"})
    monkeypatch.setattr(runnable, "_processor_flags", lambda: haswell)
    targets = {name: Core.named(name).target_config() for name in ("haswell", "skylake-avx512")}
    assert runnable.why_not_runnable(targets["haswell"]) is None
    assert "lacks avx512f" in runnable.why_not_runnable(targets["skylake-avx512"])


def test_native_code_is_runnable() -> None:
    assert runnable.why_not_runnable(native_core().target_config()) is None


def test_chosen_compiler_that_does_not_exist(
    model: tvm_blislike.CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.raises(ToolchainError, match=r"cannot run .*none: No such file"):
        model.export(tmp_path / "net.so")
    assert not os.listdir(tmp_path)


def test_importing_the_package_is_cheap() -> None:
    import subprocess
    import sys

    slow = ("onnx", "typer", "rich", "cpuinfo", "onnxruntime", "openvino")
    code = f"import sys, tvm, tvm_blislike; print([m for m in {slow} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
