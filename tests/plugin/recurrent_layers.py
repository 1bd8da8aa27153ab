"""Random recurrent layers: their models, operands and results."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx_runtime import exact_session
from reference.recurrent import FUNCTIONS, GATES, recurrent

import tvm_blislike

USUAL = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
REVERSE = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
ORDER = ("x", "w", "r", "bias", "lengths", "h", "c", "peepholes")
OPTIONAL = {"LSTM": ORDER[3:], "GRU": ORDER[3:6], "RNN": ORDER[3:6]}


@dataclass(frozen=True)
class Case:
    """A layer of one node."""

    kind: str = "LSTM"
    steps: int = 4
    batch: int = 2
    inputs: int = 5
    hidden: int = 8
    direction: str = "forward"
    given: tuple[str, ...] = ("bias",)
    constant: bool = True
    dtype: str = "float32"
    opset: int = 22
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def by_batch(self) -> bool:
        return bool(self.settings.get("layout"))

    def operands(self) -> dict[str, np.ndarray]:
        """Random operands; rows end early where lengths are given, one of them at once."""
        rng, directions = np.random.default_rng(self.hidden), len(REVERSE[self.direction])
        rows, state = GATES[self.kind] * self.hidden, (directions, self.batch, self.hidden)
        if self.by_batch:
            state = (self.batch, directions, self.hidden)
        data = (self.batch, self.steps) if self.by_batch else (self.steps, self.batch)
        shapes = {
            "x": (*data, self.inputs),
            "w": (directions, rows, self.inputs),
            "r": (directions, rows, self.hidden),
            "bias": (directions, 2 * rows),
            "h": state,
            "c": state,
            "peepholes": (directions, 3 * self.hidden),
        }
        names = ("x", "w", "r", *self.given)
        found = {
            name: rng.uniform(-0.7, 0.7, shapes[name]).astype(self.dtype)
            for name in names
            if name != "lengths"
        }
        if "lengths" in names:
            found["lengths"] = np.arange(self.batch, dtype="int32") % (self.steps + 1)
        return found

    def model(self) -> onnx.ModelProto:
        """The layer with its weights as constants, or as inputs."""
        operands = self.operands()
        names = [
            name if name in operands else "" for name in ORDER[: 8 if self.kind == "LSTM" else 6]
        ]
        results = ["y", "y_h", "y_c"][: 3 if self.kind == "LSTM" else 2]
        notes = {"direction": self.direction, "hidden_size": self.hidden, **self.settings}
        node = helper.make_node(self.kind, names, results, "it", **notes)
        fixed = ("w", "r", "bias", "peepholes") if self.constant else ()
        values = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in operands.items()
            if n not in fixed
        ]
        made = [onnx.ValueInfoProto(name=name) for name in results]
        weights = [numpy_helper.from_array(a, n) for n, a in operands.items() if n in fixed]
        graph = helper.make_graph([node], "layer", values, made, weights)
        sets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=sets, ir_version=10)

    def inputs_of_run(self) -> dict[str, np.ndarray]:
        names = {value.name for value in self.model().graph.input}
        return {name: a for name, a in self.operands().items() if name in names}

    def computed(self, **options: Any) -> list[np.ndarray]:
        return [*tvm_blislike.compile(self.model(), **options).run(self.inputs_of_run()).values()]

    def runtime(self) -> list[np.ndarray]:
        return exact_session(self.model(), optimized=True).run(None, self.inputs_of_run())

    def reference(self) -> list[np.ndarray]:
        reverse = REVERSE[self.direction]
        names = self.settings.get("activations", USUAL[self.kind] * len(reverse))
        numbers = [
            iter(self.settings.get(f"activation_{which}", ())) for which in ("alpha", "beta")
        ]
        functions = [_function(name, *numbers) for name in names]
        each = len(USUAL[self.kind])
        split = [functions[first : first + each] for first in range(0, len(functions), each)]
        settings = {n: v for n, v in self.settings.items() if not n.startswith("activation")}
        return recurrent(self.kind, self.operands(), split, reverse, **settings)


# Which numbers a function takes from the lists.
_TAKES = {"Affine": "ab", "HardSigmoid": "ab", "ScaledTanh": "ab", "Elu": "a", "LeakyRelu": "a"}
_TAKES["ThresholdedRelu"] = "a"


def _function(name: str, alphas: Any, betas: Any) -> Any:
    takes = _TAKES.get(name, "")
    alpha = next(alphas) if "a" in takes else 0.0
    beta = next(betas) if "b" in takes else 0.0
    return partial(lambda x, name, a, b: FUNCTIONS[name](x, a, b), name=name, a=alpha, b=beta)


def cases() -> st.SearchStrategy[Case]:
    """Cases of any kind, setting and small size."""

    def of_kind(kind: str) -> st.SearchStrategy[Case]:
        switches = {"LSTM": "input_forget", "GRU": "linear_before_reset", "RNN": ""}[kind]
        settings = {"layout": st.integers(0, 1), "clip": st.sampled_from([0.0, 0.3])}
        if switches:
            settings[switches] = st.integers(0, 1)
        return st.builds(
            Case,
            st.just(kind),
            st.integers(1, 6),
            st.integers(1, 9),
            st.integers(1, 20),
            st.integers(1, 40),
            st.sampled_from([*REVERSE]),
            st.sets(st.sampled_from(OPTIONAL[kind])).map(_in_order),
            st.booleans(),
            settings=st.fixed_dictionaries(settings).map(_without_zeros),
        )

    return st.sampled_from([*GATES]).flatmap(of_kind)


def _in_order(names: set[str]) -> tuple[str, ...]:
    return tuple(name for name in ORDER if name in names)


def _without_zeros(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value}


def in_steps_first(case: Case) -> Case:
    """The case in the only layout that ONNX Runtime knows."""
    return replace(case, settings={n: v for n, v in case.settings.items() if n != "layout"})
