"""The searches that `tune --search` knows: this is their only list."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tvm_blislike.choose.offers import Predictor
from tvm_blislike.errors import UsageError, suggest
from tvm_blislike.tuning.search import (
    SearchMaker,
    exhaustive_search,
    learned_search,
    model_search,
)
from tvm_blislike.tuning.searches.genetic import GeneticSearch
from tvm_blislike.tuning.searches.narrowing import NarrowingSearch
from tvm_blislike.tuning.searches.whole_space import RandomSearch

# Those that follow a model draw nothing; the others take a seed.
BY_MODEL: Mapping[str, SearchMaker] = {"model": model_search, "exhaustive": exhaustive_search}
IN_WHOLE_SPACE: Mapping[str, Any] = {
    "random": RandomSearch,
    "genetic": GeneticSearch,
    "narrowing": NarrowingSearch,
}
LEARNED = "learned"
SEARCHES = (*BY_MODEL, LEARNED, *IN_WHOLE_SPACE)


def search_named(name: str, predictor: Predictor | None = None, seed: int = 0) -> SearchMaker:
    """Return the search of that name.

    Parameters
    ----------
    name : str
        One of `SEARCHES`.
    predictor : Predictor, optional
        What the learned search follows; no other does.
    seed : int
        What the searches that draw start from: the same seed and the same measurements make the
        same proposals.

    Raises
    ------
    UsageError
        When there is no such search, or it does not go with the predictor.
    """
    if name not in SEARCHES:
        raise UsageError(f"unknown search {name!r}", suggest(name, SEARCHES))
    if (name == LEARNED) != (predictor is not None):
        raise UsageError(f"a learned model and the search {LEARNED!r} belong together")
    if predictor is not None:
        return learned_search(predictor)
    return BY_MODEL[name] if name in BY_MODEL else partial(IN_WHOLE_SPACE[name], seed=seed)
