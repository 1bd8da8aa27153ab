"""The learned model: how far measured times are from the analytical estimates.

Boosted trees (xgboost) over the features of `features` predict log(measured / analytical); the
analytical time multiplied by that is the prediction. So they need to learn only what the analytical
model does not know, and an implementation without records keeps the median correction of all
others: the analytical order, in the machine's units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_blislike.cost_models.learned.facts import Facts
from tvm_blislike.cost_models.learned.features import Sample, features, matrix
from tvm_blislike.cost_models.roofline import clock_hz
from tvm_blislike.errors import ToolchainError, UsageError
from tvm_blislike.hardware import Core
from tvm_blislike.model.config import Config
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.workload import Workload

if TYPE_CHECKING:
    import xgboost

# Fewer records teach noise.
LEAST_RECORDS = 30
# The same for one implementation.
LEAST_OF_ONE = 8
# Part of a breakdown: what the trees add to the analytical model, or take away.
LEARNED = "learned"
# A factor that all groups share, as inside a model, is learned by the groups' means, which weigh
# little: 300 rounds leave a tenth to a sixth of it out, by seed and version of xgboost, 600 a
# fiftieth.
_ROUNDS = 600
# What a group's mean error counts for, relative to the errors around it. Groups that were
# measured again took 0.85 to 1.12 times as long, candidates alike within 3 %: clocks move,
# and candidates that take turns move together.
GROUP_WEIGHT = 0.3
# Standard deviation of the measured times of a group's candidates, relatively, below which it is
# noise as much as difference.
NOISE = 0.055
# Small steps and shallow trees on a part of the records and features each: there are a thousand
# records rather than a million, and their times differ by several percent from run to run.
_PARAMETERS = {
    "objective": "reg:squarederror",
    "eta": 0.05,
    "max_depth": 5,
    # Of records that weigh 1 on average; those of layers whose candidates differ most weigh 0.04.
    "min_child_weight": 0.5,
    "subsample": 0.7,
    "colsample_bytree": 0.5,
    "base_score": 0.0,
    "tree_method": "hist",
    # The order of additions, and with it the result, depends on the number of threads.
    "nthread": 1,
}


class LearnedModel:
    """Predicts the times of candidates.

    Parameters
    ----------
    booster : xgboost.Booster
        The trees; its names of features are what it was trained on.
    facts : Facts
        What it was trained for.
    offset : float
        Median of log(measured / analytical), which the trees predict the difference from.
    """

    def __init__(self, booster: xgboost.Booster, facts: Facts, offset: float) -> None:
        self.booster, self.facts, self.offset = booster, facts, offset

    @staticmethod
    def train(
        candidates: Sequence[Sample],
        seconds: Sequence[float],
        groups: Sequence[int],
        facts: Facts,
        seed: int = 0,
    ) -> LearnedModel:
        """Return the model of measured times; the same for the same arguments.

        Parameters
        ----------
        candidates : sequence of Sample
            All of one core.
        seconds : sequence of float
            Measured time of each.
        groups : sequence of int
            The same number for those that took turns.
        facts : Facts
            What they have in common.
        seed : int
            Of the records and features that each tree sees.

        Raises
        ------
        UsageError
            With fewer than `LEAST_RECORDS` candidates.
        ToolchainError
            Without xgboost.
        """
        xgb = import_xgboost()
        if len(candidates) < LEAST_RECORDS:
            raise UsageError(
                f"{len(candidates)} usable records of {facts.core} are too few to learn from: "
                f"{LEAST_RECORDS} are needed",
                "measure more: tvm-blislike tune MODEL.onnx",
            )
        names = _telling(candidates)
        analytical = np.array([candidate.seconds for candidate in candidates])
        target = np.log(np.asarray(seconds) / analytical)
        offset = float(np.median(target))
        data = xgb.DMatrix(matrix(candidates, names), target - offset, feature_names=names)
        loss = _loss(target - offset, np.log(seconds), np.asarray(groups))
        booster = xgb.train({**_PARAMETERS, "seed": seed}, data, _ROUNDS, obj=loss)
        return LearnedModel(booster, facts, offset)

    def seconds(self, candidates: Sequence[Sample]) -> np.ndarray:
        """Return the predicted times of candidates' kernels, in seconds."""
        rows = matrix(candidates, self.booster.feature_names)
        corrections = self.booster.inplace_predict(rows, validate_features=False)
        counts = self.facts.implementations
        known = [counts.get(c.config.implementation, 0) >= LEAST_OF_ONE for c in candidates]
        analytical = np.array([candidate.seconds for candidate in candidates])
        return analytical * np.exp(self.offset + np.where(known, corrections, 0.0))

    def estimates(
        self,
        workload: Workload,
        configs: Sequence[Config],
        analytical: Sequence[Estimate],
        core: Core,
        threads: int,
    ) -> list[Estimate]:
        """Return the analytical estimates of configurations, corrected.

        Raises
        ------
        UsageError
            When the model was trained for another core or number of threads.
        """
        self.facts.require(core, threads)
        if not configs:
            return []
        candidates = [
            Sample(workload, config, estimate, core, threads, self.facts.in_model)
            for config, estimate in zip(configs, analytical, strict=True)
        ]
        seconds = map(float, self.seconds(candidates))
        return [_corrected(c, time) for c, time in zip(candidates, seconds, strict=True)]


def _telling(candidates: Sequence[Sample]) -> list[str]:
    """Return the names of the features by which candidates differ.

    Each tree sees a part of the features: those that tell nothing would take the place of others.
    """
    names = sorted({name for candidate in candidates for name in features(candidate)})
    table = matrix(candidates, names)
    differ = table.min(axis=0) != table.max(axis=0)
    return [name for name, tells in zip(names, differ, strict=True) if tells] or names


def _loss(
    target: np.ndarray, times: np.ndarray, groups: np.ndarray
) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Return gradient and Hessian of half the squared errors, groups' means weighing less.

    Errors count relative to how much the candidates of their group differ: those of a fully
    connected layer by a few percent, those of a convolution by a factor of ten.
    """
    _, places, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    weights = _weights(times, places, sizes)[places]

    def derivatives(predicted: np.ndarray, _data: object) -> tuple[np.ndarray, np.ndarray]:
        errors = predicted - target
        means = np.bincount(places, errors) / sizes
        return weights * (errors - (1 - GROUP_WEIGHT) * means[places]), weights

    return derivatives


def _weights(times: np.ndarray, places: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the inverse variance of each group's times, 1 on average over the candidates."""
    means = np.bincount(places, times) / sizes
    variances = np.bincount(places, (times - means[places]) ** 2) / sizes
    several = sizes > 1
    # One candidate differs from nothing.
    typical = np.average(variances[several], weights=sizes[several]) if several.any() else 0.0
    weights = 1.0 / (np.where(several, variances, typical) + NOISE**2)
    return weights / np.average(weights, weights=sizes)


def _corrected(candidate: Sample, seconds: float) -> Estimate:
    """Return a candidate's estimate with another time of its kernel."""
    estimate, added = candidate.estimate, seconds - candidate.seconds
    total = estimate.seconds + added
    return replace(
        estimate,
        seconds=total,
        peak_fraction=estimate.peak_fraction * estimate.seconds / total,
        cycles={**estimate.cycles, LEARNED: added * clock_hz(candidate.core)},
    )


def import_xgboost() -> Any:
    """Return the module xgboost.

    Raises
    ------
    ToolchainError
        When it is not installed.
    """
    try:
        import xgboost
    except ImportError as error:
        raise ToolchainError(
            "the learned model needs xgboost", "pip install 'tvm-blislike[learned]'"
        ) from error
    return xgboost
