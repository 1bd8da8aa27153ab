"""Engines side by side on one model: interleaved, pinned, checked against each other."""

from .engines import ENGINES, Engine, EngineUnavailableError
from .measure import bench
from .result import BenchResult, EngineResult

__all__ = ["ENGINES", "BenchResult", "Engine", "EngineResult", "EngineUnavailableError", "bench"]
