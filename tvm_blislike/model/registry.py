"""The contract of an implementation: one algorithm for one kind of workload.

It says when it applies, which configurations make sense, what it computes (TE), how that is
scheduled, and what it will cost. The library's own are in `schedules/` and `cost_models/`, a folder
of the algorithm's name in each; `schedules.register_implementation` adds yours, which is equal to
them. Sizes are in elements, but in bytes where named so; times in seconds, of the core's clock.

`compute` returns the result as a stage that is no sum, so that what is fused behind it can be
inlined. `schedule` gets that PrimFunc, called "main", with whatever was fused behind it, and may
schedule all or nothing: every stage is correct as it is. What `schedules.common` and
`schedules.lowering` offer finds stages by the attributes of `schedules.common.stage`:

- "unpack", the result: `fuse_epilogue` inlines what follows. Marked for you if no stage is.
- any other name is yours, to find the stage again: `stages(sch)[name]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tvm_blislike.model.config import Config
from tvm_blislike.model.space import Space, listed

if TYPE_CHECKING:
    import numpy as np
    from tvm import s_tir, te

    from tvm_blislike.hardware import Core
    from tvm_blislike.model.estimate import Estimate
    from tvm_blislike.model.nest import Nest
    from tvm_blislike.model.types import Types
    from tvm_blislike.model.workload import Workload


@runtime_checkable
class Implementation(Protocol):
    """One algorithm for one kind of workload.

    Attributes
    ----------
    name : str
        Unique name, an identifier; configs, records, `explain` and the kernels have it.
    kind : str
        Kind of workload: "conv2d" or "gemm".
    config_type : type
        `Config`, or a class derived from it, of all of its configurations.
    """

    name: str
    kind: str
    config_type: type[Config]

    def applies(self, workload: Workload, core: Core) -> str:
        """Return "" when it can compute the workload, else the reason why not."""

    def configs(self, workload: Workload, core: Core, threads: int) -> Iterable[Config]:
        """Return the configurations worth considering."""

    def space(self, workload: Workload, core: Core, threads: int) -> Space:
        """Return every configuration that computes the workload, those of `configs` included."""

    def estimate(self, workload: Workload, config: Config, core: Core, threads: int) -> Estimate:
        """Return the predicted time with its breakdown."""

    def least_seconds(self, workload: Workload, core: Core, threads: int) -> float:
        """Return a time that no estimate of what applies is below; 0.0 where none is known."""

    def least_of(self, workload: Workload, config: Config, core: Core, threads: int) -> float:
        """Return a time that no estimate of a configuration, `relaid` or not, is below, sooner.

        0.0 where none is known. What exceeds the best estimate so far spares an estimate.
        """

    def workspace_bytes(self, workload: Workload, config: Config, threads: int) -> int:
        """Return the temporary memory that one call of all threads needs, in bytes."""

    def error_bound(self, workload: Workload, config: Config) -> float:
        """Return the error to expect relative to the largest output; 0 for rounding only."""

    def relaid(self, workload: Workload, config: Config, core: Core) -> Iterable[Config]:
        """Return the same configuration for other layouts of the images, if it has them."""

    def pack(self, workload: Workload, config: Config, constant: np.ndarray) -> np.ndarray:
        """Rearrange the constant operand (OIHW weights; B of a GEMM) at compile time."""

    def pack_te(self, workload: Workload, config: Config, operand: te.Tensor) -> te.Tensor:
        """Define the same rearrangement for an operand that is not constant."""

    def compute(
        self, workload: Workload, config: Config, data: te.Tensor, packed: te.Tensor
    ) -> te.Tensor:
        """Define the result from the data operand and the packed one."""

    def schedule(
        self, sch: s_tir.Schedule, workload: Workload, config: Config, core: Core, threads: int
    ) -> None:
        """Schedule a PrimFunc made of `compute` and whatever was fused behind it (see above)."""


@dataclass(frozen=True)
class Template:
    """An `Implementation` made of plain functions; the fields are its methods.

    Without `every` its space is what `configs` returns. Without a `config_type` of its own it has
    no choices but a name and a block. `nests` are the register blocks that are compiled once, to
    see which ones stay in registers (`microkernels.spills`).
    """

    name: str
    kind: str
    applies: Callable[[Workload, Core], str]
    configs: Callable[[Workload, Core, int], Iterable[Config]]
    estimate: Callable[[Workload, Config, Core, int], Estimate]
    workspace_bytes: Callable[[Workload, Config, int], int]
    pack: Callable[[Workload, Config, np.ndarray], np.ndarray]
    pack_te: Callable[[Workload, Config, te.Tensor], te.Tensor]
    compute: Callable[[Workload, Config, te.Tensor, te.Tensor], te.Tensor]
    schedule: Callable[[s_tir.Schedule, Workload, Config, Core, int], None]
    error_bound: Callable[[Workload, Config], float] = lambda _workload, _config: 0.0
    least_seconds: Callable[[Workload, Core, int], float] = lambda *_: 0.0
    least_of: Callable[[Workload, Config, Core, int], float] = lambda *_: 0.0
    relaid: Callable[[Workload, Config, Core], Iterable[Config]] = lambda *_: ()
    config_type: type[Config] = Config
    every: Callable[[Workload, Core, int], Space] | None = None
    # What bounds the blocks of a configuration, a line each; `explain` prints them.
    derivation: Callable[[Workload, Config, Core, int], tuple[str, ...]] = lambda *_: ()
    nests: Callable[[Core, Types], Iterable[Nest]] = lambda *_: ()
    # Fields of a configuration on which what `pack` makes depends: with the same ones a slab of an
    # image is computed from the same packed weights. () where that is not so simple.
    packed_by: tuple[str, ...] = ()
    # (workload, configuration, threads, least number of rows) to the configuration of a kernel that
    # takes any number of rows at run time, scheduled for those of the workload; None for what it
    # cannot. What it schedules then has `OpenRows` on its loops over rows. None: rows have to be
    # known.
    of_open_rows: Callable[[Workload, Config, int, int], Config | None] | None = None
    # (workload, configuration) to the rows and columns beyond an image that a kernel reads, for
    # images that cover a part of a canvas (`lowering.canvas`): those of its padding, and of patches
    # of which a part is beyond. None: the kernel has tiles across rows, or nobody has tried.
    read_beyond: Callable[[Workload, Config], tuple[int, int]] | None = None
    # Whether kernels of a configuration then leave out each tile beyond an image; else they compute
    # whole blocks of tiles of which a part is there.
    leaves_out_tiles: Callable[[Config], bool] = lambda _config: True
    # Registers the TensorIntrin of a name if it is one of the algorithm's own, for traces.
    register_named: Callable[[str], None] = lambda _name: None

    def space(self, workload: Workload, core: Core, threads: int) -> Space:
        """See `Implementation.space`."""
        if self.every is None:
            start = self.config_type(implementation=self.name)
            return listed(start, self.configs(workload, core, threads))
        return self.every(workload, core, threads)
