"""What `import tvm_blislike` does and costs, and what the installed package contains."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
import setuptools
import tvm
from small_models import small_network, small_reference
from tvm import relax

import tvm_blislike
from tvm_blislike.hardware import native_core
from tvm_blislike.onnx import frontend
from tvm_blislike.tvm_seams.measuring import Worker

ROOT = Path(tvm_blislike.__file__).parents[1]


def _python(code: str, autoload: bool = True) -> dict:
    """Run code that prints JSON in a fresh interpreter, where TVM loads its plugins or not."""
    env = {**os.environ, "TVM_DEVICE_BACKEND_AUTOLOAD": str(int(autoload))}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return json.loads(done.stdout)


def test_import_adds_little_to_that_of_tvm() -> None:
    code = (
        "import json, sys, time; import tvm; before = set(sys.modules);"
        "start = time.perf_counter(); import tvm_blislike; seconds = time.perf_counter() - start;"
        "print(json.dumps({'seconds': seconds, 'new': sorted(set(sys.modules) - before)}))"
    )
    found = (_python(code, autoload=False) for _ in range(3))
    best = min(found, key=lambda result: result["seconds"])
    assert best["seconds"] <= 0.3
    assert best["new"] == ["tvm_blislike"]


# Prints by which name TVM's own pipeline for PrimFuncs begins.
FIRST = """
import json; from tvm import tirx
print(json.dumps({'first': str(tirx.get_tir_pipeline('s_tir')[0].info.name)}))
"""


def test_tvms_own_pipeline_stays_as_it_is() -> None:
    plain = _python(FIRST, autoload=False)
    assert plain != {"first": "blislike.TIR"}
    compiles = (
        "import zoo, tvm_blislike; tvm_blislike.compile(zoo.build('squeezenet1_1', image=32));"
    )
    compiles = f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r}); {compiles}"
    for first in ("import tvm_blislike, tvm;", "import tvm, tvm_blislike;", compiles):
        for autoload in (False, True):
            assert _python(first + FIRST, autoload) == plain


def test_where_tvm_names_its_pipeline_ours_takes_its_place() -> None:
    for first in (
        "import tvm_blislike; tvm_blislike.meta_schedule;",
        "import tvm_blislike; from tvm import relax; relax.get_pipeline('blislike');",
    ):
        for autoload in (False, True):
            assert _python(first + FIRST, autoload) == {"first": "blislike.TIR"}


@pytest.mark.skipif(
    not any(e.name == "tvm_blislike" for e in entry_points(group="tvm.backends")),
    reason="this checkout is not installed",
)
def test_tvms_own_workers_finish_schedules() -> None:
    """Its builders start processes that import TVM and nothing else."""

    def first() -> str:
        from tvm import tirx

        return str(tirx.get_tir_pipeline("s_tir")[0].info.name)

    worker = Worker(lambda: None)
    try:
        assert worker.ask(first) == "blislike.TIR"
    finally:
        worker.close()


def test_import_registers_the_pipeline_once() -> None:
    code = (
        "import importlib, json; from tvm import relax; import tvm_blislike;"
        "importlib.reload(tvm_blislike);"
        "print(json.dumps({'pass': str(relax.get_pipeline('blislike').info.name)}))"
    )
    assert _python(code)["pass"] == "blislike.Pipeline"


@pytest.mark.parametrize("threads", [1, 2])
def test_pipeline_compiles_an_ordinary_module(image: np.ndarray, threads: int) -> None:
    module = frontend.load(small_network()).module
    target = tvm.target.Target(native_core().target_config(threads))
    pipeline = relax.get_pipeline("blislike")
    executable = tvm.compile(module, target, relax_pipeline=pipeline)
    scores = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(image))
    np.testing.assert_allclose(scores.numpy(), small_reference(image), rtol=1e-5, atol=1e-5)


def test_pipeline_takes_the_arguments_of_its_function(image: np.ndarray) -> None:
    seen = []
    module = frontend.load(small_network()).module
    pipeline = relax.get_pipeline("blislike", core=native_core(), threads=1, override=seen.append)
    tvm.compile(module, tvm.target.Target(native_core().target_config(1)), relax_pipeline=pipeline)
    assert {workload.kind for workload in seen} >= {"conv2d"}


def test_every_exported_name_exists() -> None:
    for name in tvm_blislike.__all__:
        assert getattr(tvm_blislike, name) is not None
        assert name in dir(tvm_blislike)
    assert set(tvm_blislike.__all__) == set(tvm_blislike._LAZY)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = tvm_blislike.no_such_name


def test_version_is_that_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{tvm_blislike.__version__}"' in text


def test_every_folder_with_code_is_packaged(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, list[str]] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    for room in ("tvm_blislike", "schedules", "microkernels", "cost_models", "hardware"):
        for file in (ROOT / room).rglob("*.py"):
            parts = file.parent.relative_to(ROOT).parts
            name = ".".join(parts if parts[0] == "tvm_blislike" else ("tvm_blislike", *parts))
            assert name in given["packages"], name


def test_a_checkout_that_is_not_installed_says_what_to_run() -> None:
    """Its folder hides an installed wheel from `python -m pytest`."""
    # Without -S, site would add this checkout where it is installed.
    found = os.pathsep.join(path for path in sys.path if path.endswith("-packages"))
    command = [sys.executable, "-S", "-m", "pytest", "--collect-only", "tests/tuning"]
    environment = {**os.environ, "PYTHONPATH": found}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode != 0
    assert "python dev.py test" in done.stderr
    assert len(done.stderr.splitlines()) == 1
