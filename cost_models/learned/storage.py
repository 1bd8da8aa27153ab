"""Learned models as files: xgboost's JSON, which any xgboost reads and nothing executes.

What a model was trained for is an attribute of xgboost's, JSON as well.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from tvm_blislike.cost_models.learned.facts import Facts
from tvm_blislike.cost_models.learned.features import FEATURES
from tvm_blislike.cost_models.learned.model import LearnedModel, import_xgboost
from tvm_blislike.errors import InputError
from tvm_blislike.files import write_text
from tvm_blislike.model.validity import are_compatible

_ATTRIBUTE = "tvm_blislike"
_HINT = "train one: tvm-blislike records train -o FILE.json"


def save(model: LearnedModel, path: str | os.PathLike[str]) -> None:
    """Write a model.

    Raises
    ------
    OutputError
        When it cannot be written; what was there before then stays.
    """
    header = {"features": FEATURES, "offset": model.offset, "facts": asdict(model.facts)}
    model.booster.set_attr(**{_ATTRIBUTE: json.dumps(header, sort_keys=True)})
    write_text(path, model.booster.save_raw("json").decode())


def load(path: str | os.PathLike[str]) -> LearnedModel:
    """Return the model that `save` wrote.

    Raises
    ------
    InputError
        When the file is missing, is no such model, or was written by another version.
    ToolchainError
        Without xgboost.
    """
    xgb = import_xgboost()
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the learned model {path}: {error.strerror}") from error
    try:
        header = json.loads(json.loads(content)["learner"]["attributes"][_ATTRIBUTE])
        booster = xgb.Booster({"nthread": 1}, model_file=bytearray(content))
        facts, offset = Facts(**header["facts"]), float(header["offset"])
    except (ValueError, KeyError, TypeError, xgb.core.XGBoostError) as error:
        raise InputError(f"{path} is no learned model", _HINT) from error
    if header["features"] != FEATURES or not are_compatible(facts.versions):
        raise InputError(f"the learned model {path} was written by another version", _HINT)
    return LearnedModel(booster, facts, offset)
