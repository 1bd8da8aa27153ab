"""Models for C and C++ without TVM's runtime: a folder with libraries, or one object file."""

from tvm_blislike.standalone.build import compile, needs, require_places, write
from tvm_blislike.standalone.model import StandaloneModel
from tvm_blislike.standalone.package import Package, package, require_package

__all__ = [
    "Package",
    "StandaloneModel",
    "compile",
    "needs",
    "package",
    "require_package",
    "require_places",
    "write",
]
