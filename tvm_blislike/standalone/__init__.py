"""Models as one object file with a C header, without TVM's runtime."""

from tvm_blislike.standalone.build import compile, needs, require_places, write
from tvm_blislike.standalone.model import StandaloneModel

__all__ = ["StandaloneModel", "compile", "needs", "require_places", "write"]
