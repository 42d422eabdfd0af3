"""The nvidia-smi stand-in in a folder of a test."""

from __future__ import annotations

from pathlib import Path

from lab.vendors.standins.nvidia_smi import install


def lay_down(root: Path) -> None:
    """Write the stand-in's files below a root filesystem."""
    for path, file in install.payload().items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(file.mode)
