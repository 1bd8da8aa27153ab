"""A C program around a standalone object: arrays in one file, results in another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tvm_blislike import standalone
from tvm_blislike.export.link import find_builder, run_tool

_PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "OBJECT.h"

static void* room(size_t bytes) { return aligned_alloc(64, (bytes + 127) / 64 * 64); }

int main(int argc, char** argv) {
  size_t in[] = IN_SIZES, out[] = OUT_SIZES;
  const void* inputs[IN_COUNT];
  void* outputs[OUT_COUNT];
  size_t shift = argc > 3 ? atoi(argv[3]) : 0;
  FILE* file = fopen(argv[1], "rb");
  for (int i = 0; i < IN_COUNT; i++) {
    char* memory = (char*)room(in[i] + shift) + shift;
    if (fread(memory, 1, in[i], file) != in[i]) return 3;
    inputs[i] = memory;
  }
  for (int i = 0; i < OUT_COUNT; i++) outputs[i] = room(out[i]);
  /* Guarded: what lies behind the workspace stays as it is. */
  unsigned char* workspace = room(MODEL_WORKSPACE_BYTES + 64);
  memset(workspace + MODEL_WORKSPACE_BYTES, 0x5a, 64);
  /* Twice: nothing is kept between calls. */
  for (int i = 0; i < 2; i++) {
    memset(workspace, 0xff, MODEL_WORKSPACE_BYTES);
    if (model_run_arrays(inputs, outputs, workspace)) {
      fprintf(stderr, "%s\\n", model_error());
      return 1;
    }
  }
  for (int i = 0; i < 64; i++) if (workspace[MODEL_WORKSPACE_BYTES + i] != 0x5a) return 4;
  file = fopen(argv[2], "wb");
  for (int i = 0; i < OUT_COUNT; i++) fwrite(outputs[i], 1, out[i], file);
  return fclose(file);
}
"""


def build(model: standalone.StandaloneModel, folder: Path) -> Path:
    """Write the object of a model named "model" and a program that calls it; return the program."""
    header = standalone.write(model, folder / "net.o")
    sizes = [[str(_bytes(spec)) for spec in specs] for specs in (model.inputs, model.outputs)]
    text = _PROGRAM.replace("OBJECT", header.stem)
    for side, values in zip(("IN", "OUT"), sizes, strict=True):
        text = text.replace(f"{side}_SIZES", f"{{{', '.join(values)}}}")
        text = text.replace(f"{side}_COUNT", str(len(values)))
    (folder / "use.c").write_text(text)
    command = [*find_builder(model.core.target_config()), "-O1", "-Wall", "-Werror"]
    command += [f"-I{folder}", str(folder / "use.c"), str(folder / "net.o"), "-lm"]
    run_tool([*command, "-o", str(folder / "use")], "build use.c")
    return folder / "use"


def results(
    model: standalone.StandaloneModel,
    inputs: Sequence[np.ndarray],
    folder: Path,
    run: Callable[..., object],
) -> Mapping[str, np.ndarray]:
    """Run the program of `build` by `run(program, *arguments)`; return the outputs by name."""
    program = build(model, folder)
    (folder / "in").write_bytes(b"".join(array.tobytes() for array in inputs))
    run(program, folder / "in", folder / "out")
    content, found = (folder / "out").read_bytes(), {}
    for spec in model.outputs:
        part, content = content[: _bytes(spec)], content[_bytes(spec) :]
        found[spec.name] = np.frombuffer(part, spec.dtype).reshape(spec.shape)
    assert not content
    return found


def _bytes(spec: object) -> int:
    return int(np.prod(spec.shape, dtype=np.int64)) * np.dtype(spec.dtype).itemsize
