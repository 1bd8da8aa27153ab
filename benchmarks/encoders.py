"""Transformer encoders quantized dynamically, side by side with other engines and with fp32.

    python benchmarks/encoders.py                       MiniLM-L6 and BERT-base, 1 and 2 threads
    python benchmarks/encoders.py -m minilm_l6 -t 1     one of them

Models (`encoder_models.py`) have random weights and sequences of 128 tokens, none of them masked;
ONNX Runtime's quantizer makes their products with weights ones of 8 bits, whose data are quantized
as they come. How they are measured, and what is printed: see `integer_models.py`. Errors are large
and alike for all engines: a step more or less of one layer is amplified by those behind it.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
from encoder_models import ENCODERS, Encoder, save, save_quantized
from integer_models import FOLDER, compare, in_a_process, measured


def files(name: str) -> tuple[Path, Path]:
    """Return the quantized model and the one in fp32, which are made where they are missing."""
    floats, integers = (FOLDER / f"{name}{suffix}.onnx" for suffix in ("_f32", "_dynamic"))
    if not integers.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        save_quantized(save(ENCODERS[name], floats), integers)
    return integers, floats


def tokens(encoder: Encoder) -> dict[str, np.ndarray]:
    """Return seeded tokens, of which none is masked."""
    shape = (1, encoder.seq)
    ids = np.random.default_rng(encoder.seq).integers(0, encoder.vocabulary, shape)
    return {"input_ids": ids, "attention_mask": np.ones(shape, np.int64)}


def main() -> None:
    """Compare, or, in a process of its own, measure one model."""
    if sys.argv[1:2] == ["--times"]:
        name, threads = sys.argv[2:]
        print(json.dumps(measured(*files(name), int(threads), tokens(ENCODERS[name]))))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", action="append", choices=list(ENCODERS), metavar="NAME")
    parser.add_argument("-t", "--threads", action="append", type=int, metavar="N")
    options = parser.parse_args()
    names = options.model or ENCODERS
    compare(((name, partial(in_a_process, __file__, name)) for name in names), options.threads)


if __name__ == "__main__":
    main()
