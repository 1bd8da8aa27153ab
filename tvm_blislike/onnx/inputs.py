"""Seeded random inputs for `run` without files, for `bench` and for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_blislike.model.tensor_spec import TensorSpec


def random_inputs(specs: Sequence[TensorSpec], seed: int = 0) -> dict[str, np.ndarray]:
    """Return one array per input: normal values, 0 or 1 for integers and booleans.

    Integers are mostly indices or masks, for which 0 and 1 are nearly always valid.

    Parameters
    ----------
    specs : sequence of TensorSpec
        The inputs.
    seed : int
        Same seed, same values.
    """
    rng = np.random.default_rng(seed)
    return {spec.name: _random(rng, spec) for spec in specs}


def _random(rng: np.random.Generator, spec: TensorSpec) -> np.ndarray:
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return rng.standard_normal(spec.shape, dtype="float32").astype(dtype)
    return rng.integers(0, 2, spec.shape).astype(dtype)
