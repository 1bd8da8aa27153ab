"""Analytical models: what a core's facts say about block sizes and time."""

from .cache_blocking import (
    LOOP_ORDERS,
    CacheBlocking,
    OperandPlace,
    Roles,
    cache_blocking,
    roles,
)

__all__ = [
    "LOOP_ORDERS",
    "CacheBlocking",
    "OperandPlace",
    "Roles",
    "cache_blocking",
    "roles",
]
