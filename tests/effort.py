"""How many random examples the property tests that compile something try."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A run by hand before a release: TVM_BLISLIKE_TEST_EFFORT=20 pytest tests/schedules
EFFORT = int(os.environ.get("TVM_BLISLIKE_TEST_EFFORT", "1"))


def examples(count: int) -> settings:
    """Settings of a property test of `count` examples, each of which may take long."""
    return settings(
        max_examples=count * EFFORT, deadline=None, suppress_health_check=list(HealthCheck)
    )
