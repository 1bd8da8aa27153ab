"""What blocks and functions carry from pass to pass, each under a key of its own.

Marks stand on blocks and functions; what stands on loops are `directives`. A comment says what the
value is, and who writes and reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx

# --- blocks: attributes of a TE stage, which fusion keeps ------------------------------------

# Text, the role of the stage ("pad", "pack", "acc", "unpack"): a definition to its template.
STAGE = "blislike.stage"
# On a block whose axes were made of others: its indices are to be simplified.
AXES = "blislike.axes"
# Columns of zeros at either side of a "pad" stage: likewise.
LEFT = "blislike.left"
RIGHT = "blislike.right"
# Text, the note of a choice on the "unpack" stage: `passes.legalize` to `passes.schedule`.
CHOICE = "blislike.choice"

# --- root blocks: in a trace, too, so that one replayed from a database is finished ----------

# Text, the note of the choice whose template has scheduled the function: `apply_template` to
# `finish`, both of `passes.schedule`.
SCHEDULED = "blislike.scheduled"
# Text, JSON of the configuration that is to take the place of a plain product: `meta_schedule` to
# `finish`.
PLAIN = "blislike.plain"
# 1, left to the default rule: likewise.
DEFAULT = "blislike.default"
# Bytes of the register file: `apply_template` to `finish`, which makes an attribute of it for
# `lowering.lower`: functions with it are lowered.
REGISTER_BYTES = "blislike.register_bytes"
# Text, the name of the instruction set: as those bytes.
ISA = "blislike.isa"
# Of a function of any number of rows: the axis of them in each parameter, -1 for none.
ROW_AXES = "blislike.row_axes"
# Text, JSON of `OnCanvas`, of a function on a canvas: `passes.canvas` to `lowering.canvas` and the
# default rule.
CANVAS = "blislike.canvas"
# Of a kernel of attention: what it computes, as text.
ATTENTION = "blislike.attention"

# --- attributes of functions and modules -----------------------------------------------------

# Text, the note of the choice: `finish` to `passes.reporting`.
CHOSEN = "blislike.chosen"
# Between which numbers the constants lie that a function is given, by the names of its buffers:
# `passes.constant_ranges` to `lowering.ranges`.
RANGES = "blislike.ranges"
# Text, of a function that is to be scheduled or made yet: `passes.schedule.scheduled` and
# `passes.slabs` to `passes.schedule.lowered`, which finds in the plan how.
LATER = "blislike.later"
# True, of a kernel that checks no arguments: `passes.kernel_code` to `passes.tir_pipeline`.
UNCHECKED = "blislike.unchecked"
# Text, what the default rule made of a function, or why nothing: the rule to `passes.reporting`.
DEFAULT_RULE = "blislike.default_rule"
# Text, what cannot be computed and why: `onnx.impossible`, on a kernel that raises instead, to
# `passes.reporting`.
IMPOSSIBLE = "blislike.impossible"
# True for all functions that have gone through this package: `plugin`, for itself.
OURS = "blislike.ours"
# The axis of a concatenation: `passes.concat`, before fusion and after it.
CONCAT = "blislike.concat"
# Layers of quantized operands, or of signs, that stay in 32 bits, by their type, with reasons:
# `passes.quantized.to_integers` and `passes.binary.to_bits` to `passes.plan`.
LEFT_WIDE = "blislike.left_wide"
# Errors of stored weights by workload, in order of execution, and why weights of others are whole:
# `passes.stored_weights` to `passes.plan`.
STORED_ERRORS = "blislike.stored_errors"
WHOLE_WEIGHTS = "blislike.whole_weights"
# Operators of Relax between numbers and words of signs: `passes.binary`, from its beginning to
# `passes.legalize`. The first one is followed by what is compared.
CODES_OF_SIGNS = "blislike.codes_"
WORDS_OF_SIGNS = "blislike.words_of_signs"
# The operator of Relax of recurrent layers: `operators.recurrent` to `passes.recurrent`.
RECURRENT = "blislike.recurrent"
# That of depthwise convolutions of volumes: `operators.volume_convolution` to `passes.legalize`.
VOLUME_CONVOLUTION = "blislike.volume_convolution"
# Steps of k of a block of weights of few bits: `onnx.few_bits` to `passes.few_bits`.
FEW_BITS = "blislike.few_bits"
# JSON of a record without its times: `tuning.database`, from one process to another.
RECORD = "blislike.record"


def root_annotations(func: Any) -> Mapping[str, Any]:
    """Return the annotations of the root block of a PrimFunc; none for any other function."""
    body = getattr(func, "body", None)
    block = getattr(body, "block", None) if isinstance(func, tirx.PrimFunc) else None
    return {} if block is None else block.annotations


def is_ours(func: Any) -> bool:
    """Whether a function is to be finished."""
    return not root_annotations(func).keys().isdisjoint({SCHEDULED, PLAIN, DEFAULT})


def marked(mod: tvm.IRModule) -> tvm.IRModule:
    """Mark every PrimFunc as one of this package's, whose remainders are to be hidden."""
    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            result.update_func(gvar, func.with_attr(OURS, True))
    return result
