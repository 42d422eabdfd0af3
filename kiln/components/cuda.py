"""CUDA and the libraries on top of it."""

from __future__ import annotations

from kiln.base import versions
from kiln.components.component import Component, download

CUDA = Component(
    name="cuda",
    what="CUDA toolkit",
    needs="cuda",
    version="CUDA_VERSION",
    packages={"CUDA_PACKAGES": "cuda"},
    environment=lambda recipe: {"CUDA_SERIES": versions.series(recipe.cuda or "")},
)

CUDNN = Component(
    name="cudnn",
    what="cuDNN for that CUDA",
    needs="cudnn",
    built_for="cuda",
    version="CUDNN_VERSION",
    packages={"CUDNN_PACKAGES": "cudnn"},
)

NCCL = Component(
    name="nccl",
    what="NCCL packages for that CUDA",
    needs="nccl",
    built_for="cuda",
    version="NCCL_VERSION",
    packages={"NCCL_PACKAGES": "nccl"},
)

NCCL_TESTS = Component(
    name="nccl-tests",
    what="NVIDIA's nccl-tests in /opt/nccl-tests, built with the image's CUDA, NCCL and Open MPI",
    needs="nccl",
    built_for="cuda",
    packages={"NCCL_TESTS_OS_PACKAGES": "nccl-tests"},
    # The newest release that builds with the recipe's CUDA.
    downloads=lambda recipe: download(recipe, "NCCL_TESTS", recipe.cuda or ""),
)

GDRCOPY = Component(
    name="gdrcopy",
    what="GDRCopy library and kernel module",
    needs="gdrcopy",
    version="GDRCOPY_VERSION",
    urls=("GDRCOPY",),
)
