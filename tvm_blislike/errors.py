"""Errors a user can cause and mend, each with its exit code and a hint."""

from __future__ import annotations

import difflib
import functools
import warnings
from collections.abc import Iterable
from typing import ClassVar


class BlislikeError(Exception):
    """Base of every error this library raises on purpose.

    Parameters
    ----------
    message : str
        What is wrong, naming the file, node, input or option.
    hint : str, optional
        What to change; shown below the message.
    """

    exit_code: ClassVar[int] = 1
    summary: ClassVar[str] = "internal error"

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(BlislikeError):
    """The command or the call asks for something that does not exist."""

    exit_code = 2
    summary = "wrong usage"


class ChoiceError(UsageError, ValueError):
    """An override or a pin names an implementation that cannot compute its workload."""


class SizesMeetError(UsageError):
    """The parts of a size that stays open depend on each other; it is caught on the way."""


class ModelError(BlislikeError):
    """The file is no complete, valid ONNX model or compiled library."""

    exit_code = 3
    summary = "the model cannot be read (no ONNX file, truncated, inconsistent)"


class UnsupportedOperatorError(BlislikeError):
    """The model uses an operator that cannot be imported."""

    exit_code = 4
    summary = "the model uses an unsupported operator"


class InputError(BlislikeError):
    """An input name, shape, data type or `--shape` does not fit the model."""

    exit_code = 5
    summary = "an input (name, shape, data type) does not fit the model"


class TargetError(BlislikeError):
    """The target is no known core and no valid TOML file, or its code cannot run here."""

    exit_code = 6
    summary = "the target is unknown, or is not this machine's"


class OutputError(BlislikeError):
    """The result cannot be written."""

    exit_code = 7
    summary = "the output cannot be written"


class ToolchainError(BlislikeError):
    """A tool outside Python (the linker) is missing or failed."""

    exit_code = 8
    summary = "no working C compiler to link the library with"


class DisagreementError(BlislikeError):
    """Two engines computed different outputs."""

    exit_code = 9
    summary = "bench: outputs of the engines disagree"


class BlislikeWarning(UserWarning):
    """Base of the warnings of this library that a user can mend."""


class TargetWarning(BlislikeWarning):
    """The target keeps kernels from what the processor can do, or may mean another one."""


class StoreWarning(BlislikeWarning):
    """A store of records cannot be read or written, or holds what is no record."""


class WeightsWarning(BlislikeWarning):
    """Weights are not constant, so each call packs them again."""


class SizesWarning(BlislikeWarning):
    """Sizes that were to stay open share no functions, so each is compiled by itself."""


class EagerWarning(BlislikeWarning):
    """A graph of `torch.compile` cannot be compiled, and runs as torch runs it."""


@functools.cache
def warn_once(category: type[BlislikeWarning], text: str) -> None:
    """Warn, but not a second time in this process of the same."""
    warnings.warn(text, category, stacklevel=3)


def all_errors() -> list[type[BlislikeError]]:
    """Return the error classes ordered by exit code, for `--help` and the README."""
    return sorted(BlislikeError.__subclasses__(), key=lambda error: error.exit_code)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known names nearest to `name`, else all of them.

    Parameters
    ----------
    name : str
        The name that was not found.
    known : iterable of str
        The names that exist.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known: {', '.join(names)}" if names else "there are none"
