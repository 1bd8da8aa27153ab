"""No test reads or writes the records of the user who runs it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def no_records_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Name a default file of records that does not exist."""
    path = tmp_path_factory.mktemp("records") / "none.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_BLISLIKE_RECORDS", str(path))
        yield path
