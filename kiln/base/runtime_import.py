"""Imports packages that ship on the AMI, so that image and pipeline run the same code."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from kiln.base.paths import RUNTIME

LIBRARY = RUNTIME / "opt" / "kiln" / "lib"


def runtime_module(name: str) -> ModuleType:
    """A package or module of `runtime/opt/kiln/lib`, such as `gpu_mig.placement`.

    sys.path does not change. Raises ImportError if there is no package of that name.
    """
    for package in ("gpu_common", name.split(".", maxsplit=1)[0]):
        if package not in sys.modules:
            _load(package)
    return importlib.import_module(name)


def _load(package: str) -> None:
    init = LIBRARY / package / "__init__.py"
    spec = importlib.util.spec_from_file_location(
        package, init, submodule_search_locations=[str(init.parent)]
    )
    if not init.is_file() or spec is None or spec.loader is None:
        raise ImportError(f"runtime/opt/kiln/lib has no package {package}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
