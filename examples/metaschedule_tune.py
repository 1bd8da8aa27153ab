"""Tune a model with MetaSchedule, its space being the templates of this package.

python examples/metaschedule_tune.py
"""

from __future__ import annotations

import tempfile

import numpy as np
import tvm
import zoo
from tvm import relax
from tvm.s_tir import meta_schedule as ms

import tvm_blislike
from tvm_blislike import native_core
from tvm_blislike.onnx import frontend


def main(name: str = "squeezenet1_1", image: int = 64, trials: int = 40) -> None:
    """Tune a small model, compile it with what was found, and run it."""
    target = tvm.target.Target(native_core().target_config(threads=1))
    imported = frontend.load(zoo.build(name, image=image)).module
    module = tvm_blislike.meta_schedule.prepare(imported, target)
    with tempfile.TemporaryDirectory() as folder:
        database = ms.relax_integration.tune_relax(
            module,
            params={},
            target=target,
            work_dir=folder,
            max_trials_global=trials,
            max_trials_per_task=2,
            num_trials_per_iter=2,
            strategy="replay-trace",
            space=tvm_blislike.meta_schedule.space(),
            builder=tvm_blislike.meta_schedule.builder(),
            cost_model="random",  # the default needs `pip install xgboost`
        )
        executable = ms.relax_integration.compile_relax(database, module, target, {})
        print(f"{len(database)} schedules measured")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    values = np.random.default_rng(0).standard_normal((1, 3, image, image), dtype=np.float32)
    print(f"result of shape {machine['main'](tvm.runtime.tensor(values)).shape}")


if __name__ == "__main__":
    main()
