"""What was decided for each layer of a model, as data; `explain` prints it."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Footprint:
    """The part of one cache level that one operand occupies.

    Parameters
    ----------
    operand : str
        Ac, Bc, Cr, or the operand of another algorithm.
    level : str
        L1, L2, L3 or memory.
    bytes : int
        Size of the resident block.
    fraction : float
        Of that level's capacity per thread.
    """

    operand: str
    level: str
    bytes: int
    fraction: float


@dataclass(frozen=True)
class CandidateReport:
    """An implementation that was considered for a layer.

    Parameters
    ----------
    implementation : str
        The algorithm.
    predicted_ms : float or None
        Predicted time of its best configuration, None where it was no candidate.
    reason : str
        Why it was no candidate.
    """

    implementation: str
    predicted_ms: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class LeftOut:
    """Layers that are not computed as they might have been.

    Parameters
    ----------
    what : str
        What became of them: "default rule for", "in float32:", "weights in float32 of".
    layers : tuple of str
        Their workloads.
    reason : str
        Why.
    """

    what: str
    layers: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return f"{self.what} {', '.join(self.layers)}: {self.reason}"


@dataclass(frozen=True)
class LayerReport:
    """The choice made for one layer.

    Parameters
    ----------
    name : str
        Kernel name, as in profiles.
    kind : str
        conv2d, gemm, or the kind of a layer under the default rule.
    workload : str
        The sizes, readable.
    implementation : str
        The algorithm.
    microkernel : str
        Its micro-kernel's name; empty where there is none.
    config : dict
        mr, nr, mc, nc, kc and the other fields of the configuration.
    footprint : tuple of Footprint
        What lives in which cache level.
    predicted_ms : float or None
        Time by the cost model, None where it has no say.
    peak_fraction : float or None
        Of the peak of products of its types, at the predicted time.
    reason : str
        Why this was chosen, or why the layer fell back to the default rule.
    macs : int
        Multiply-accumulate operations.
    breakdown : dict
        The predicted milliseconds by cause: fma, loads and edges, traffic, packing, ...
    candidates : tuple of CandidateReport
        All implementations for this kind of layer.
    measured_ms : float or None
        Time on record, None where the layer was never tuned.
    derivation : tuple of str
        What bounds its blocks, a line each.
    types : tuple of str
        Data types of factors, sums and result (`Types`); () where there is no product.
    weights_error : float or None
        Of weights stored in fewer bytes: root of the squared differences over the squared weights.
    fused : tuple of str
        Operators that the kernel computes beside the layer itself, in order.
    runs : int
        How often it is computed in one run of the model: once for each group of images, say.
    """

    name: str
    kind: str
    workload: str
    implementation: str
    microkernel: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    footprint: tuple[Footprint, ...] = ()
    predicted_ms: float | None = None
    peak_fraction: float | None = None
    reason: str = ""
    macs: int = 0
    breakdown: dict[str, float] = field(default_factory=dict)
    candidates: tuple[CandidateReport, ...] = ()
    measured_ms: float | None = None
    derivation: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    weights_error: float | None = None
    fused: tuple[str, ...] = ()
    runs: int = 1

    @property
    def is_chosen(self) -> bool:
        """Whether an implementation computes it, rather than the default rule."""
        return bool(self.config)


@dataclass(frozen=True)
class Report:
    """The choices for all layers, in order of execution, and for whom they were made.

    Parameters
    ----------
    layers : tuple of LayerReport
        One per kernel.
    core : str
        Name of the core.
    threads : int
        Threads scheduled for.
    notes : tuple of str
        What else the user should know, such as assumed facts about the core.
    left_out : tuple of LeftOut
        Layers under the default rule or in other types than they might be, by reason.
    impossible : tuple of str
        What cannot be computed at the sizes given and is not compiled, such as a branch, and why.
    """

    layers: tuple[LayerReport, ...]
    core: str = ""
    threads: int = 1
    notes: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    impossible: tuple[str, ...] = ()

    @property
    def predicted_ms(self) -> float:
        """Sum of the predicted times, of all their runs, of the layers that have one."""
        return sum(layer.runs * (layer.predicted_ms or 0.0) for layer in self.layers)

    def matching(self, pattern: str) -> Report:
        """Return the report on layers whose name or workload matches a shell pattern, or has it.

        A pattern without wildcards is looked for anywhere in them.
        """
        found = (layer for layer in self.layers if _matches(layer, pattern))
        return dataclasses.replace(self, layers=tuple(found))

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Report:
        """Return the report that `to_json` wrote."""
        fields = json.loads(text)
        layers = tuple(_layer(entry) for entry in fields.pop("layers"))
        left = tuple(
            LeftOut(entry["what"], tuple(entry["layers"]), entry["reason"])
            for entry in fields.pop("left_out", ())
        )
        notes, impossible = (tuple(fields.get(name, ())) for name in ("notes", "impossible"))
        return Report(layers, fields["core"], fields["threads"], notes, left, impossible)


def _matches(layer: LayerReport, pattern: str) -> bool:
    wanted = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
    return any(fnmatch.fnmatchcase(text, wanted) for text in (layer.name, layer.workload))


def _layer(fields: dict[str, Any]) -> LayerReport:
    footprint = tuple(Footprint(**entry) for entry in fields.pop("footprint"))
    candidates = tuple(CandidateReport(**entry) for entry in fields.pop("candidates"))
    lists = {name: tuple(fields.pop(name, ())) for name in ("derivation", "types", "fused")}
    return LayerReport(**fields, footprint=footprint, candidates=candidates, **lists)
