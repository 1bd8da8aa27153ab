"""Schedules of PrimFuncs that do not look at the types of what their primitives are given."""

from __future__ import annotations

from tvm import s_tir


class Schedule(s_tir.Schedule):
    """A `tvm.s_tir.Schedule` whose primitives go straight to C++, which checks them again.

    TVM has a decorator around each primitive compare every argument with its annotation in Python.
    A template calls up to a hundred of them, and most take less time than that.
    """


for _name, _method in vars(s_tir.Schedule).items():
    if hasattr(_method, "__wrapped__"):
        setattr(Schedule, _name, _method.__wrapped__)
