"""From a model in fp32 to one in 8 bits, by ONNX Runtime's quantizer, and what that costs."""

from .quantizer import Options, Quantized, quantize

__all__ = ["Options", "Quantized", "quantize"]
