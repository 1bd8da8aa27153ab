"""The examples for Kubernetes and Slurm hold commands that divide a sweep and end it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from small import small_model

from tvm_blislike.records import files

EXAMPLES = Path(__file__).parents[2] / "examples"
SLURM = EXAMPLES / "slurm" / "tune.sh"


def _job(name: str) -> dict[str, Any]:
    (found,) = yaml.safe_load_all((EXAMPLES / "kubernetes" / name).read_text())
    assert found["apiVersion"] == "batch/v1" and found["kind"] == "Job"
    return found


def _container(job: Mapping[str, Any]) -> dict[str, Any]:
    (found,) = job["spec"]["template"]["spec"]["containers"]
    return found


def _run(command: list[str], folder: Path, node: str, variables: Mapping[str, str]) -> str:
    """Run a command as on a machine of its own that mounts `folder`."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    shared = {
        "PATH": programs,
        "MODEL": str(folder / "small.onnx"),
        "TVM_BLISLIKE_RECORDS": f"{folder / 'records'}/",
        "XDG_DATA_HOME": str(folder / node),
    }
    done = subprocess.run(
        command, env={**kept, **variables, **shared}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _check(parts: list[str], last: str, folder: Path) -> None:
    """Both shards measured, nothing twice, and the last run only compared."""
    counts = [int(re.search(r"(\d+) measurements", text)[1]) for text in parts]
    assert all("has done its part" in text for text in parts)
    assert all(counts) and "0 measurements" in last and "whole model: " in last
    objects = sorted((folder / "records").rglob("*.jsonl"), key=lambda path: path.name)
    records = [record for path in objects for record in files.read(path)[0]]
    alone = [r for r in records if r.context == "cold" and r.status == "ok"]
    assert len(alone) == sum(counts) == len({(r.workload, r.config) for r in alone})


def test_the_jobs_of_kubernetes_agree() -> None:
    tune, compare = _job("tune.yaml"), _job("compare.yaml")
    spec = tune["spec"]
    environment = {v["name"]: v["value"] for v in _container(tune)["env"]}
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(environment.pop("SHARDS"))
    # They measure the same on the same kind of machine.
    assert environment == {v["name"]: v["value"] for v in _container(compare)["env"]}
    pods = [job["spec"]["template"]["spec"] for job in (tune, compare)]
    assert pods[0]["nodeSelector"] == pods[1]["nodeSelector"]
    assert pods[0]["volumes"] == pods[1]["volumes"]
    for name in ("image", "resources", "volumeMounts"):
        assert _container(tune)[name] == _container(compare)[name]
    (mount,) = _container(tune)["volumeMounts"]
    for path in environment.values():
        assert path.startswith(mount["mountPath"])


@pytest.mark.skipif(os.name == "nt", reason="the commands are for a shell")
def test_pods_divide_a_sweep(tmp_path: Path) -> None:
    small_model(tmp_path / "small.onnx")
    jobs = [_container(_job(name)) for name in ("tune.yaml", "compare.yaml")]
    commands = [job["command"] + job["args"] for job in jobs]
    parts = []
    for index in range(2):
        variables = {"JOB_COMPLETION_INDEX": str(index), "SHARDS": "2"}
        parts.append(_run(commands[0], tmp_path, f"pod {index}", variables))
    _check(parts, _run(commands[1], tmp_path, "last", {}), tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="the script is for a shell")
def test_an_array_of_slurm_divides_a_sweep(tmp_path: Path) -> None:
    small_model(tmp_path / "small.onnx")
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", SLURM.read_text(), re.M))
    variables = {"SLURM_CPUS_PER_TASK": asked["cpus-per-task"], "SLURM_ARRAY_TASK_COUNT": "2"}
    parts = []
    for index in range(2):
        task = {"SLURM_ARRAY_TASK_ID": str(index)}
        parts.append(_run(["bash", str(SLURM)], tmp_path, f"node {index}", variables | task))
    _check(parts, _run(["bash", str(SLURM)], tmp_path, "last", variables), tmp_path)
