"""Weights and kernels' definitions that threads make ahead of the calls."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import tvm
from relax_graphs import conv, graph, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import Core
from tvm_blislike.passes import definitions
from tvm_blislike.passes.lower import lower
from tvm_blislike.passes.plan import Plan
from tvm_blislike.pipeline import plan_of, prepare

CORE = Core.named("haswell")
TARGET = tvm.target.Target(CORE.target_config(1))
IMAGE = (1, 16, 12, 12)


def layers(builder: relax.BlockBuilder, image: relax.Expr, matrix: relax.Expr) -> relax.Expr:
    """Layers that share a kernel, one whose weights are no constant, and products."""
    x = image
    for channels in (32, 32, 32, 48):
        x = builder.emit(op.nn.relu(conv(builder, x, channels)))
    x = conv(builder, x, 32, 1)
    x = builder.emit(op.reshape(op.mean(x, [2, 3]), (1, 32)))
    x = builder.emit(op.matmul(x, relax.const(random(32, 24))))
    return builder.emit(op.matmul(x, matrix))


def planned() -> tuple[tvm.IRModule, Plan]:
    strategy = Strategy(CORE, 1)
    with TARGET:
        mod = prepare(TARGET, strategy)(graph(layers, IMAGE, (24, 40)))
        return mod, plan_of(mod, strategy)


def lowered_by(threads: int, monkeypatch: pytest.MonkeyPatch) -> tvm.IRModule:
    mod, plan = planned()
    monkeypatch.setattr(definitions, "code_threads", lambda: threads)
    with TARGET:
        return lower(mod, plan)


def test_threads_make_what_one_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for threads in (1, 2, 3):
        monkeypatch.setattr("relax_graphs.RNG", np.random.default_rng(5))
        made.append(lowered_by(threads, monkeypatch))
    for other in made[1:]:
        tvm.ir.assert_structural_equal(made[0], other)
        assert [g.name_hint for g in made[0].functions] == [g.name_hint for g in other.functions]


def test_layers_of_one_choice_share_a_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str, object]] = []
    define = definitions.primfunc

    def counted(choice: object, note: str, *given: object) -> object:
        seen.append((note, threading.current_thread().name, tvm.target.Target.current()))
        return define(choice, note, *given)

    monkeypatch.setattr(definitions, "primfunc", counted)
    lowered_by(2, monkeypatch)
    notes = [note for note, _, _ in seen]
    assert len(set(notes)) == len(notes) == 6
    assert all(target is not None for _, _, target in seen)
    others = [note for note, thread, _ in seen if thread == "MainThread"]
    assert len(others) == 1 and 'constant_b\\": false' in others[0]


@pytest.mark.parametrize("threads", [1, 2])
def test_what_fails_in_a_thread_fails_here(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mod, plan = planned()

    def failing(*_: object) -> np.ndarray:
        raise ValueError("no such weights")

    for layer, choice in plan.choices.items():
        plan.choices[layer] = replace(choice, implementation=_with(choice, failing))
    monkeypatch.setattr(definitions, "code_threads", lambda: threads)
    with TARGET, pytest.raises(ValueError, match="no such weights"):
        lower(mod, plan)


def _with(choice: object, pack: object) -> object:
    return replace(choice.implementation, pack=pack)
