"""Weights that are parameters of a function, not constants: each call packs them again."""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax
from tvm.relax.analysis import free_vars

from tvm_blislike.errors import WeightsWarning, warn_once
from tvm_blislike.passes.batches.images import tensor_bytes
from tvm_blislike.passes.plan import Plan
from tvm_blislike.tvm_seams import bindings, functions

# By which TVM's importers tell inputs from the weights behind them.
_INPUTS = "num_input"


def warn_of_weights(mod: tvm.IRModule, plan: Plan) -> None:
    """Warn of planned layers whose weights are computed from parameters that are no inputs.

    Parameters
    ----------
    mod : IRModule
        As `plan` was made for it. The first `num_input` parameters of a function are inputs; of one
        that does not say how many, the first.
    """
    for gvar, func in functions(mod):
        weights = list(_weights(func, plan))
        if weights:
            name = gvar.name_hint
            size = f"{sum(map(tensor_bytes, weights)) / 1e6:.1f} MB"
            warn_once(
                WeightsWarning,
                f"weights of {len(weights)} layers of {name!r} ({size}) are parameters, "
                "so each call packs them again. Bind them before compiling, "
                f"relax.transform.BindParams({name!r}, WEIGHTS)(module), or import the model with "
                "keep_params_in_input=False",
            )


def _weights(func: relax.Function, plan: Plan) -> Iterator[relax.Expr]:
    """Yield the second operand of each planned layer that nothing but parameters decide."""
    first = int(func.attrs[_INPUTS]) if func.attrs and _INPUTS in func.attrs else 1
    known = set(func.params[first:])
    for binding in bindings(func):
        read = list(free_vars(binding.value))
        if read and known.issuperset(read):
            known.add(binding.var)
        if binding.var in plan.choices and binding.value.args[1] in known:
            yield binding.value.args[1]
