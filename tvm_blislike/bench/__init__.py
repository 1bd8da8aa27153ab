"""Engines side by side on one model: interleaved, pinned, checked against each other."""

from .engines import ENGINES, Engine, EngineUnavailableError
from .result import BenchResult, EngineResult
from .rounds import bench

__all__ = ["ENGINES", "BenchResult", "Engine", "EngineResult", "EngineUnavailableError", "bench"]
