"""What follows from the fields of a frozen dataclass, computed when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

_Value = TypeVar("_Value")


class derived(Generic[_Value]):
    """As `functools.cached_property`, without its lock, which costs more than most sizes do.

    Cost models ask some hundred thousand times while a model is compiled. Two threads may compute
    the same value twice.
    """

    def __init__(self, function: Callable[[Any], _Value]) -> None:
        self._function, self._name = function, function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> derived[_Value]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> _Value: ...
    def __get__(self, instance: object | None, owner: type) -> derived[_Value] | _Value:
        if instance is None:
            return self
        value = self._function(instance)
        instance.__dict__[self._name] = value
        return value
