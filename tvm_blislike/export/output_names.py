"""Names of the files that a model's outputs are written to, the same here and on a board."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CHANGED = re.compile(rb"[^A-Za-z0-9._-]|^\.")
# Leaves room for a suffix, and for that of a temporary file beside it: names end at 255 bytes.
_MOST_BYTES = 200


def output_files(names: Sequence[str]) -> list[str]:
    """Return the file of each output, no two the same, on file systems that fold case either.

    The readable name of an output is its name in UTF-8, cut to 200 bytes, with an underscore for
    every byte but ASCII letters, digits, `-`, `_` and `.`, and for a first `.`; `_` for no name.

    1. In order, an output whose readable name is its own gets it, unless an earlier one has it.
    2. In order, each output left gets its readable name, unless another has it; then it is the
       first of NAME.1, NAME.2, ... that no other has.

    Names are compared without regard to the case of ASCII letters. Each file is then NAME.npy.
    `blis_run` follows the same rule.

    Parameters
    ----------
    names : sequence of str
        Names of all outputs, in the model's order.
    """
    readable = [_readable(name) for name in names]
    plain = [i for i, name in enumerate(names) if readable[i] == name]
    taken: dict[str, int] = {}
    for i in plain:
        taken.setdefault(readable[i].lower(), i)
    files = {i: readable[i] for i in taken.values()}
    for i in range(len(names)):
        if i not in files:
            files[i] = _free(readable[i], taken)
            taken[files[i].lower()] = i
    return [f"{files[i]}.npy" for i in range(len(names))]


def _readable(name: str) -> str:
    return (_CHANGED.sub(b"_", name.encode())[:_MOST_BYTES] or b"_").decode()


def _free(name: str, taken: dict[str, int]) -> str:
    candidate, number = name, 0
    while candidate.lower() in taken:
        number += 1
        candidate = f"{name}.{number}"
    return candidate
