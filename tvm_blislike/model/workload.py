"""What is computed: the frozen description of one GEMM or convolution."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from tvm_blislike.hardware import dtype_bits
from tvm_blislike.model.types import FLOAT32, Types

_KINDS: dict[str, type[Workload]] = {}


class Workload(ABC):
    """Base of all workloads: hashable, printable, and JSON in one line.

    A subclass is a frozen dataclass of numbers, texts and tuples of them; `from_json` knows it by
    its kind.
    """

    kind: ClassVar[str]
    types: Types
    # (n, c, h, w) of the input and of the result where these are images, which have layouts.
    images: tuple[tuple[int, int, int, int], ...] = ()
    # Sizes of the window that slides over an image.
    taps: Mapping[str, int] = MappingProxyType({})
    is_depthwise = False

    def __init_subclass__(cls) -> None:
        _KINDS[cls.kind] = cls

    @property
    @abstractmethod
    def operands(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the operands by name, images in NCHW: the data first, then what is packed."""

    @property
    @abstractmethod
    def result_shape(self) -> tuple[int, ...]:
        """Shape of the result, an image in NCHW."""

    @property
    @abstractmethod
    def macs(self) -> int:
        """Multiply-accumulate operations."""

    @property
    @abstractmethod
    def extents(self) -> dict[str, int]:
        """Extents of the result ("pixels", "channels", "row") and of a sum ("depth")."""

    @property
    def packs_once(self) -> bool:
        """Whether what is packed is known at compile time."""
        return True

    @property
    def operand_types(self) -> tuple[str, ...]:
        """Data types of the operands: all but the first have that of B."""
        return (self.types.a, *[self.types.b] * (len(self.operands) - 1))

    @property
    def bytes_moved(self) -> tuple[int, ...]:
        """Bytes of each operand and of the result."""
        shapes = (*self.operands.values(), self.result_shape)
        dtypes = (*self.operand_types, self.types.out)
        return tuple(
            math.prod(shape) * dtype_bits(dtype) // 8
            for shape, dtype in zip(shapes, dtypes, strict=True)
        )

    def to_json(self) -> str:
        """Return this workload as one line of JSON with sorted keys."""
        return json.dumps({"kind": self.kind, **dataclasses.asdict(self)}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Workload:
        """Return the workload that `to_json` wrote.

        Raises
        ------
        ValueError
            When `text` names no known kind of workload or lacks a field.
        """
        fields = json.loads(text)
        kind = fields.pop("kind", None)
        # Records of before operands had types of their own.
        uniform = fields.pop("dtype", None)
        types = Types(**fields.pop("types", {})) if uniform is None else Types.of(uniform)
        if kind not in _KINDS:
            raise ValueError(f"unknown workload kind {kind!r}; known: {', '.join(sorted(_KINDS))}")
        return _KINDS[kind](
            **{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}, types=types
        )


@dataclass(frozen=True)
class GemmWorkload(Workload):
    """C[b, m, n] = A[b, m, k] x B[b, k, n].

    Parameters
    ----------
    m, n, k : int
        Sizes of one product.
    batch : int
        Number of independent products.
    types : Types
        Data types of A, B, the sums and C.
    constant_b : bool
        B is known at compile time and shared by the whole batch, so it is packed once.
    """

    kind: ClassVar[str] = "gemm"
    m: int
    n: int
    k: int
    batch: int = 1
    types: Types = FLOAT32
    constant_b: bool = True

    @property
    def operands(self) -> dict[str, tuple[int, ...]]:
        """A and B: matrices, or batches of them."""
        batch = (self.batch,) if self.batch > 1 else ()
        of_b = () if self.constant_b else batch
        return {"a": (*batch, self.m, self.k), "b": (*of_b, self.k, self.n)}

    @property
    def result_shape(self) -> tuple[int, ...]:
        """(m, n), of a batch (batch, m, n)."""
        return (self.batch, self.m, self.n) if self.batch > 1 else (self.m, self.n)

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations."""
        return self.batch * self.m * self.n * self.k

    @property
    def extents(self) -> dict[str, int]:
        """As of a convolution of one tap."""
        pixels = self.batch * self.m
        return {"pixels": pixels, "channels": self.n, "depth": self.k, "row": self.m}

    @property
    def packs_once(self) -> bool:
        """Whether B is known at compile time."""
        return self.constant_b

    def __str__(self) -> str:
        batch = f"{self.batch}x" if self.batch > 1 else ""
        return f"gemm {batch}{self.m}x{self.n}x{self.k}{_type_of(self)}"


@dataclass(frozen=True)
class Conv2dWorkload(Workload):
    """A 2-D convolution (cross-correlation, as in ONNX Conv).

    Parameters
    ----------
    n, ci, h, w : int
        Input batch, channels, height and width.
    co, kh, kw : int
        Output channels and kernel size.
    stride, dilation : tuple of int
        (vertical, horizontal).
    padding : tuple of int
        (top, left, bottom, right).
    groups : int
        Channel groups; `groups == ci` is a depthwise convolution.
    types : Types
        Data types of input, kernel, sums and output.
    """

    kind: ClassVar[str] = "conv2d"
    n: int
    ci: int
    h: int
    w: int
    co: int
    kh: int
    kw: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    types: Types = FLOAT32

    @property
    def od(self) -> int:
        """Output images: as many as input images, of a volume its output slices."""
        return self.n

    @property
    def kd(self) -> int:
        """Input images that an output image is summed over."""
        return 1

    @property
    def depth_padding(self) -> tuple[int, int]:
        """Images of zeros in front of those of a batch, and behind."""
        return 0, 0

    def image_met(self, image: Any, _tap: Any) -> Any:
        """Return which input image an output image is summed over at a slice of the kernel."""
        return image

    @functools.cached_property
    def oh(self) -> int:
        """Output height."""
        return self._out(self.h, self.padding[0] + self.padding[2], self.kh, 0)

    @functools.cached_property
    def ow(self) -> int:
        """Output width."""
        return self._out(self.w, self.padding[1] + self.padding[3], self.kw, 1)

    @property
    def macs(self) -> int:
        """Multiply-accumulate operations, those on padding included."""
        taps = self.kd * self.kh * self.kw
        return self.od * self.co * self.oh * self.ow * taps * self.ci // self.groups

    @property
    def images(self) -> tuple[tuple[int, int, int, int], ...]:
        """Sizes (n, c, h, w) of the input and of the result."""
        return (self.n, self.ci, self.h, self.w), (self.od, self.co, self.oh, self.ow)

    @property
    def operands(self) -> dict[str, tuple[int, ...]]:
        """The image NCHW and the weights OIHW."""
        weights = (self.co, self.ci // self.groups, self.kh, self.kw)
        return {"data": self.images[0], "weights": weights}

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The image NCHW."""
        return self.images[1]

    @property
    def extents(self) -> dict[str, int]:
        """See `Workload.extents`."""
        depth = self.ci // self.groups * self.kd * self.kh * self.kw
        pixels = self.od * self.oh * self.ow
        return {"pixels": pixels, "channels": self.co, "depth": depth, "row": self.ow}

    @property
    def taps(self) -> dict[str, int]:
        """Sizes of the window, and its step along a row."""
        return {"kh": self.kh, "kw": self.kw, "stride": self.stride[1]}

    @property
    def is_depthwise(self) -> bool:
        """One input channel per group (multiplier `co // ci` may exceed one)."""
        return self.groups == self.ci and self.groups > 1

    def _out(self, size: int, padding: int, kernel: int, axis: int) -> int:
        reach = self.dilation[axis] * (kernel - 1) + 1
        return (size + padding - reach) // self.stride[axis] + 1

    def __str__(self) -> str:
        parts = [f"conv {self.n}x{self.ci}x{self.h}x{self.w} {self.kh}x{self.kw} -> {self.co}"]
        parts += [f"s{self.stride[0]}"] if self.stride != (1, 1) else []
        parts += [f"p{','.join(map(str, self.padding))}"] if any(self.padding) else []
        parts += [f"d{self.dilation[0]}"] if self.dilation != (1, 1) else []
        parts += [f"g{self.groups}"] if self.groups > 1 else []
        return " ".join(parts) + _type_of(self)


@dataclass(frozen=True)
class Conv3dWorkload(Conv2dWorkload):
    """A depthwise convolution of one volume, whose slices are the images of a batch.

    Parameters
    ----------
    depth_taps : int
        Slices of the kernel.
    depth_stride, depth_dilation : int
        Steps along the depth, between outputs and between slices of the kernel.
    depth_padding : tuple of int
        Slices of zeros (in front, behind).
    """

    kind: ClassVar[str] = "conv3d"
    depth_taps: int = 1
    depth_stride: int = 1
    depth_padding: tuple[int, int] = (0, 0)
    depth_dilation: int = 1

    @property
    def od(self) -> int:
        """Output slices."""
        reach = self.depth_dilation * (self.depth_taps - 1) + 1
        return (self.n + sum(self.depth_padding) - reach) // self.depth_stride + 1

    @property
    def kd(self) -> int:
        """Slices of the kernel."""
        return self.depth_taps

    def image_met(self, image: Any, tap: Any) -> Any:
        """See `Conv2dWorkload.image_met`; one of zeros may have a number that no slice has."""
        return image * self.depth_stride + tap * self.depth_dilation - self.depth_padding[0]

    @property
    def operands(self) -> dict[str, tuple[int, ...]]:
        """The slices NCHW and the weights OIDHW."""
        weights = (self.co, self.ci // self.groups, self.kd, self.kh, self.kw)
        return {"data": self.images[0], "weights": weights}

    @property
    def taps(self) -> dict[str, int]:
        """Sizes of the window, and its step along a row."""
        return {"kd": self.kd, **super().taps}

    def __str__(self) -> str:
        stride, padding = self.depth_stride, self.depth_padding
        parts = [f"depth {self.kd}"]
        parts += [f"s{stride}"] if stride > 1 else []
        parts += [f"p{padding[0]},{padding[1]}"] if any(padding) else []
        parts += [f"d{self.depth_dilation}"] if self.depth_dilation > 1 else []
        return f"{super().__str__()} {' '.join(parts)}"


def _type_of(workload: Workload) -> str:
    """Name the data types unless they are the usual ones."""
    return "" if workload.types == FLOAT32 else f" {workload.types}"
