"""Ordinary TVM targets: which core they mean, and what is said where something is lost."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import tvm
from small_models import two_convolutions
from tvm import relax

import tvm_blislike
from tvm_blislike import errors
from tvm_blislike.api import resolve_core
from tvm_blislike.choose import targets
from tvm_blislike.choose.targets import core_of, explain_target
from tvm_blislike.errors import BlislikeWarning, TargetWarning, WeightsWarning
from tvm_blislike.hardware import Core, names, native_core
from tvm_blislike.hardware.machine import Machine

X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
FIRST = {"avx", "avx2", "fma", "f16c", "movbe", "bmi1", "bmi2"}
FLAGS = FIRST | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni"}
# The machine that most of these tests run on, as far as the code knows.
ZEN5 = native_core(Machine("Linux", "x86_64", frozenset(FLAGS | {"avx512vp2intersect"}), "AMD"))


SYSTEM_CPU = targets.codegen.llvm_get_system_cpu


@pytest.fixture
def on_this_machine(on_a_zen5: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "native_core", native_core)
    monkeypatch.setattr(targets.codegen, "llvm_get_system_cpu", SYSTEM_CPU)


@pytest.fixture(autouse=True)
def on_a_zen5(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(targets, "native_core", lambda: ZEN5)
    monkeypatch.setattr(targets.codegen, "llvm_get_system_cpu", lambda: "znver5")
    errors.warn_once.cache_clear()
    yield
    errors.warn_once.cache_clear()


def target(mcpu: str = "", triple: str = X86, *mattr: str) -> tvm.target.Target:
    config = {"kind": "llvm", "mtriple": triple}
    config |= {"mcpu": mcpu} if mcpu else {}
    return tvm.target.Target(config | ({"mattr": list(mattr)} if mattr else {}))


def said(given: tvm.target.Target, core: Core | None = None) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        explain_target(given, core or core_of(given))
    assert all(issubclass(w.category, TargetWarning) for w in caught) and len(caught) <= 1
    return str(caught[0].message) if caught else ""


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (target("skylake-avx512"), "skylake-avx512"),
        (target("cascadelake"), "skylake-avx512"),
        (target("znver4"), "zen4"),
        (target("haswell"), "haswell"),
        (target("raptorlake"), "golden-cove"),
        (target("graniterapids"), "graniterapids"),
        (target("x86-64-v3"), "x86-64-v3"),
        (target("cortex-a72", ARM), "cortex-a72"),
        (target("cortex-a510", ARM), "cortex-a510"),
        (target("cortex-a77", ARM), "cortex-a78"),
        (target("neoverse-v2", ARM), "neoverse-v2"),
        (target("apple-m3", "arm64-apple-darwin"), "apple-m3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_processor_is_its_core(given: tvm.target.Target, name: str) -> None:
    assert core_of(given).name == name
    assert said(given) == ""


@pytest.mark.parametrize("name", names())
def test_the_target_of_a_core_means_that_core_or_one_with_its_code(name: str) -> None:
    core = Core.named(name)
    found = core_of(tvm.target.Target(core.target_config()))
    assert (found.isa, found.mcpu, found.features) == (core.isa, core.mcpu, core.features)
    assert {*core.mattr} <= {*found.mattr}


def test_the_present_machine_is_taken_with_its_caches() -> None:
    # Described by its processor's name, as `from_device` does; its caches are those of the machine.
    here = replace(ZEN5, ghz=1.25)
    for given in (target("znver5"), tvm.target.Target(here.target_config())):
        found = targets._core_of(str(given), here)
        assert (found.name, found.ghz, found.caches) == ("native-zen5", 1.25, here.caches)
        assert found.mcpu == given.attrs["mcpu"]
    assert core_of(target("znver5")).computes("float32")
    assert said(target("znver5")) == ""


def test_the_device_of_this_machine(on_this_machine: None) -> None:
    given = tvm.target.Target.from_device("cpu")
    core, native = core_of(given), native_core()
    assert core.isa.flags <= targets._llvm_features(given)
    # Unless the processor is too new for LLVM or for our files, it is this machine's core.
    if core.name == native.name:
        assert core.caches == native.caches and said(given) == ""
    else:
        assert core.name in said(given)


def test_features_are_those_that_the_code_may_use() -> None:
    assert "vnni" in core_of(target("znver4")).features
    assert "vnni" not in core_of(target("znver4", X86, "-avx512vnni")).features
    assert core_of(target("x86-64-v4")).features == ()
    assert not core_of(target("cortex-a76", ARM, "-fullfp16")).computes("float16")


def test_masked_instruction_sets_are_not_used() -> None:
    given = target("znver5", X86, "-avx512f")
    assert core_of(given).isa.name == "avx2"
    assert "no file describes 'znver5'" in said(given) and "core=" in said(given) + "core="


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (tvm.target.Target("llvm"), "'llvm' names no processor"),
        (target(), "names no processor"),
        (target("native"), "'native' is no processor that LLVM knows"),
        (target("nehalem"), "'nehalem' lacks what kernels for x86-64-v3 need (avx2)"),
    ],
    ids=["llvm", "triple", "native", "nehalem"],
)
@pytest.mark.skipif(native_core().isa.name == "neon", reason="'llvm' means code of this machine")
def test_what_plain_code_loses_is_said(given: tvm.target.Target, problem: str) -> None:
    message = said(given)
    assert problem in message
    # 512 bits and one instruction against 128 and two.
    assert "128 bits and no FMA: up to 8 times slower than kernels for native-zen5" in message
    assert "tvm.target.Target(tvm_blislike.native_core().target_config())" in message
    assert core_of(given).name == "x86-64-v3"


def test_a_board_without_a_name_is_a_plain_one() -> None:
    message = said(target("", ARM))
    assert core_of(target("", ARM)).name == "cortex-a72"
    assert "names no processor" in message and "chosen for cortex-a72" in message
    assert "tvm_blislike.Core.named(NAME).target_config()" in message


def test_processors_of_several_cores_are_named() -> None:
    message = said(target("arrowlake"))
    assert "any of lion-cove, skymont: kernels are chosen for lion-cove" in message
    assert 'relax.get_pipeline("blislike", core=tvm_blislike.Core.named(NAME))' in message


def test_names_of_llvm_are_targets_too() -> None:
    assert resolve_core("znver4").name == "zen4"
    assert resolve_core("raptorlake").name == "golden-cove"
    assert resolve_core("cortex-a77").name == "cortex-a78"
    with pytest.raises(errors.TargetError, match="'znver5'") as caught:
        resolve_core("znver5")
    assert "it may be zen5 or zen5-mobile" in str(caught.value)


def test_a_core_that_the_target_cannot_run() -> None:
    message = said(target("haswell"), Core.named("zen4"))
    assert "'haswell' lacks what kernels for zen4 need (avx512)" in message
    assert "256 bits and an FMA: up to 2 times slower" in message
    assert said(target("znver4"), Core.named("haswell")) == ""


def test_each_warning_comes_once() -> None:
    assert said(target("native"))
    assert not said(target("native"))
    assert said(target("", ARM))


# --- in a compilation ------------------------------------------------------


def compile_with(given: object, module: tvm.IRModule) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            tvm.compile(module, given, relax_pipeline=relax.get_pipeline("blislike"))
    return [w for w in caught if issubclass(w.category, BlislikeWarning)]


def test_the_pipeline_warns_once_and_the_snippet_of_the_readme_does_not(
    on_this_machine: None,
) -> None:
    module = relax_model(keep=False)
    (warning,) = compile_with(tvm.target.Target("llvm"), module)
    assert warning.category is TargetWarning
    assert not compile_with(tvm.target.Target(native_core().target_config()), module)


def relax_model(keep: bool) -> tvm.IRModule:
    from tvm.relax.frontend.onnx import from_onnx

    return from_onnx(two_convolutions(), keep_params_in_input=keep)


def test_weights_that_are_parameters_are_said_and_bound(on_this_machine: None) -> None:
    module, weights = relax.frontend.detach_params(relax_model(keep=True))
    here = tvm.target.Target(native_core().target_config())
    (warning,) = compile_with(here, module)
    assert warning.category is WeightsWarning
    message = str(warning.message)
    assert "weights of 2 layers of 'main' (" in message and "BindParams('main'" in message
    parameters = module["main"].params[-len(weights["main"]) :]
    values = dict(zip(parameters, weights["main"], strict=True))
    bound = relax.transform.BindParams("main", values)(module)
    assert not compile_with(here, bound)


def test_an_input_that_is_read_as_weights_is_no_weight(on_this_machine: None) -> None:
    """The second factor of a product may be a value of run time: the function says so."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((64, 64), "float32")) for name in "xy")
    with builder.function("main", [x, y], attrs={"num_input": 2}):
        with builder.dataflow():
            out = builder.emit_output(relax.op.matmul(x, y))
        builder.emit_func_output(out)
    here = tvm.target.Target(native_core().target_config())
    assert not compile_with(here, builder.get())
    unknown = builder.get()
    unknown["main"] = unknown["main"].without_attr("num_input")
    (warning,) = compile_with(here, unknown)
    assert "weights of 1 layers of 'main' (0.0 MB)" in str(warning.message)


def test_models_compiled_here_warn_of_nothing(on_this_machine: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", BlislikeWarning)
        compiled = tvm_blislike.compile(two_convolutions(), threads=1)
    assert compiled.run({"image": np.zeros((1, 3, 15, 17), "float32")})
