"""Python's compiled form of a stand-in's modules, for packages.

A guest compiles what has none at its first boot, and each program that starts meanwhile does it
again. A guest whose Python is another than this one ignores these files.
"""

from __future__ import annotations

import py_compile
import sys
import tempfile
from pathlib import Path, PurePosixPath

from lab.vendors.packages.model import File

_TAG = sys.implementation.cache_tag


def with_compiled(files: dict[str, File]) -> dict[str, File]:
    """These files of a package, and the compiled form of each module among them."""
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "compiled")
        for path in (path for path in files if path.endswith(".py")):
            source.write_bytes(files[path].content)
            # By the source's content: its time is that of the installation.
            mode = py_compile.PycInvalidationMode.CHECKED_HASH
            py_compile.compile(str(source), str(target), path, doraise=True, invalidation_mode=mode)
            at = PurePosixPath(path)
            name = f"{at.stem}.{_TAG}.pyc"
            made[str(at.parent / "__pycache__" / name)] = File(target.read_bytes())
    return files | made
