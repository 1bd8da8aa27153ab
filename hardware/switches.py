"""Variables of the environment that turn something off."""

from __future__ import annotations

import os

_OFF = ("0", "off", "no")


def is_on(variable: str) -> bool:
    """Return whether a variable of the environment does not say 0, off or no."""
    return os.environ.get(variable, "").strip().lower() not in _OFF
