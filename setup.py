"""The list of packages, so that a new folder is one without being named anywhere."""

from setuptools import find_packages, setup

ROOMS_BESIDE = ("hardware", "cost_models", "microkernels", "schedules")

setup(
    packages=["tvm_blislike"]
    + [f"tvm_blislike.{name}" for name in find_packages("tvm_blislike")]
    + [f"tvm_blislike.{room}" for room in ROOMS_BESIDE]
    + [f"tvm_blislike.{room}.{name}" for room in ROOMS_BESIDE for name in find_packages(room)]
)
