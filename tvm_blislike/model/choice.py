"""What the strategy decided for one workload, and what it thought of the alternatives."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_blislike.model.config import Config
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.registry import Implementation
from tvm_blislike.model.workload import Workload


@dataclass(frozen=True)
class Candidate:
    """What the strategy thought of one implementation.

    Parameters
    ----------
    implementation : str
        Its name.
    seconds : float or None
        Predicted time of its best configuration, None when it was no candidate.
    reason : str
        Why it was no candidate.
    configs : int
        Configurations that were estimated.
    """

    implementation: str
    seconds: float | None = None
    reason: str = ""
    configs: int = 0


@dataclass(frozen=True)
class Choice:
    """The decision for one workload.

    Parameters
    ----------
    workload : Workload
        What is computed.
    implementation : Implementation or None
        The algorithm; None where no implementation applies.
    config : Config or None
        Its configuration.
    estimate : Estimate or None
        Its predicted time.
    reason : str
        Why it was chosen, or why nothing applies.
    candidates : tuple of Candidate
        Every implementation for this kind of workload, in order of registration.
    measured_seconds : float or None
        Its time on record.
    is_fastest_predicted : bool
        It is what the cost model alone would take.
    """

    workload: Workload
    implementation: Implementation | None
    config: Config | None
    estimate: Estimate | None
    reason: str
    candidates: tuple[Candidate, ...] = ()
    measured_seconds: float | None = None
    is_fastest_predicted: bool = False

    @property
    def seconds(self) -> float:
        """Its time: predicted where predictions compete, else measured if it was."""
        if self.is_fastest_predicted or self.measured_seconds is None:
            return self.estimate.seconds
        return self.measured_seconds

    @property
    def layouts(self) -> tuple[str, str]:
        """Layouts of input and result of a convolution."""
        return self.config.data_layout, self.config.out_layout
