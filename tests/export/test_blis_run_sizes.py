"""blis_run of a model that takes several sizes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sanitized import Programs
from small_models import small_network, small_reference

import tvm_blislike


@pytest.fixture(scope="module")
def programs(good_bundle: Programs, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """A bundle of a network that takes 1 to 3 images."""
    model = tvm_blislike.compile(small_network("batch"), shapes={"batch": range(1, 4)}, threads=1)
    folder = model.bundle(tmp_path_factory.mktemp("sizes") / "ship").folder
    shutil.copy(good_bundle.folder / "blis_run", folder / "blis_run")
    return Programs(folder, good_bundle.address)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_size_of_an_input_chooses(count: int, programs: Programs, tmp_path: Path) -> None:
    image = np.random.default_rng(count).standard_normal((count, 3, 8, 8), dtype=np.float32)
    np.save(tmp_path / "image.npy", image)
    done = programs.run("--input", f"image={tmp_path}/image.npy", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    scores = np.load(tmp_path / "out" / "scores.npy")
    np.testing.assert_allclose(scores, small_reference(image), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("options", "count"), [([], 3), (["--shape", "image=2x3x8x8"], 2)])
def test_a_shape_chooses(
    options: list[str], count: int, programs: Programs, tmp_path: Path
) -> None:
    done = programs.run(*options, "--output", tmp_path / "out", "--layers")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "out" / "scores.npy").shape == (count, 5)


def test_another_size_is_refused_with_those_there_are(programs: Programs, tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", np.zeros((4, 3, 8, 8), np.float32))
    done = programs.run("--input", f"image={tmp_path}/image.npy")
    assert done.returncode == 5
    assert "the sizes of image: 1x3x8x8 float32 2x3x8x8 float32 3x3x8x8 float32" in done.stderr
    done = programs.run("--shape", "image=5x3x8x8")
    assert done.returncode == 5


@pytest.mark.parametrize("shape", ["image", "image=", "image=1x", "image=axb", "image=-1x3x8x8"])
def test_what_is_no_shape_is_refused(shape: str, programs: Programs) -> None:
    assert programs.run("--shape", shape).returncode == 2


def test_other_inputs_of_a_size_are_refused(programs: Programs, tmp_path: Path) -> None:
    folder = tmp_path / "ship"
    shutil.copytree(programs.folder, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["variants"][0]["inputs"][0]["name"] = "other"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    done = Programs(folder, programs.address).run()
    assert done.returncode == 3
    assert "variants[0] is not of the same inputs and outputs" in done.stderr
