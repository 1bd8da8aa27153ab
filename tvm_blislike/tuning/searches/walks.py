"""Random walks through spaces, from the root to a configuration, none of them twice.

Only what was visited takes memory (Keane's thesis, section 4.5). A branch whose configurations are
all used up is cut off, so walks end when there is nothing left.

The thesis weights the branches by hand-made heuristics; here all values of an axis are alike, since
what this library knows of good configurations is its cost model, and that has a search of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tvm_blislike.model.config import Config
from tvm_blislike.model.space import Axis, Space, Value

# Walks in a row that end in what is not wanted, after which there is taken to be nothing left.
_MOST_VAIN = 5000


@dataclass(eq=False)
class _Node:
    """A partial choice; `branches` are those that may lead somewhere, None those not visited."""

    config: Config
    axes: tuple[Axis, ...]
    branches: dict[Value, _Node | None]

    @staticmethod
    def of(config: Config, axes: tuple[Axis, ...]) -> _Node:
        branches = dict.fromkeys(axes[0].values(config)) if axes else {}
        return _Node(config, axes, branches)

    def step(self, value: Value) -> _Node:
        """Return the node behind a branch."""
        found = self.branches[value]
        if found is None:
            axis, *left = self.axes
            found = self.branches[value] = _Node.of(axis.put(self.config, value), tuple(left))
        return found


class Walks:
    """Draws configurations of several spaces.

    Parameters
    ----------
    spaces : sequence of Space
        One for each implementation; all are as likely.
    is_wanted : callable
        Whether to return a configuration; one that is not wanted now never will be.
    """

    def __init__(self, spaces: Sequence[Space], is_wanted: Callable[[Config], bool]) -> None:
        self._roots = [_Node.of(space.start, space.axes) for space in spaces]
        self._is_wanted = is_wanted

    def draw(self, rng: Random) -> Config | None:
        """Return a configuration that was not drawn before; None when there is none left."""
        for _ in range(_MOST_VAIN):
            if not self._roots:
                return None
            config = self._walk(rng)
            if config is not None and self._is_wanted(config):
                return config
        return None

    def _walk(self, rng: Random) -> Config | None:
        """Walk down once and cut off what is used up; None for a dead end."""
        path = [rng.choice(self._roots)]
        taken: list[Value] = []
        while path[-1].branches:
            value = rng.choice(list(path[-1].branches))
            taken.append(value)
            path.append(path[-1].step(value))
        end = path[-1]
        while taken:
            path.pop()
            del path[-1].branches[taken.pop()]
            if path[-1].branches:
                break
        else:
            self._roots.remove(path[0])
        return None if end.axes else end.config
