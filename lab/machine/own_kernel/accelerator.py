"""The accelerator of qemu on this machine: KVM where it works, else TCG, which emulates."""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

# The boot sector of a machine that ends at once: it writes 16 to port 0xf4, where a device of
# qemu's makes an exit status of it (2 * 16 + 1), and halts.
_SECTOR = b"\xb0\x10\xe6\xf4\xf4".ljust(510, b"\0") + b"\x55\xaa"
_ENDED = 33
_SECONDS = 10


@cache
def options() -> tuple[str, ...]:
    """qemu's options for accelerator and processor.

    /dev/kvm alone says little: inside another virtual machine it may be there and start no
    processor, or one on which a 64-bit kernel stops without a word. So a machine of one sector is
    started with it, on the least processor that KVM has for such kernels, whole (`enforce`).
    """
    kvm = ("-accel", "kvm", "-cpu")
    if os.access("/dev/kvm", os.R_OK | os.W_OK) and _works((*kvm, "kvm64,enforce")):
        return (*kvm, "host")
    return ("-accel", "tcg,thread=multi", "-cpu", "max")


def name() -> str:
    """KVM or TCG."""
    return options()[1].partition(",")[0].upper()


def _works(accelerated: tuple[str, ...]) -> bool:
    with tempfile.TemporaryDirectory(prefix="kiln-kvm-") as folder:
        sector = Path(folder, "sector")
        sector.write_bytes(_SECTOR)
        command = [
            *("qemu-system-x86_64", *accelerated, "-machine", "pc", "-m", "64"),
            *("-nodefaults", "-no-user-config", "-display", "none"),
            *("-device", "isa-debug-exit,iobase=0xf4,iosize=1"),
            *("-drive", f"if=ide,format=raw,readonly=off,snapshot=on,file={sector}"),
        ]
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            return False
    return done.returncode == _ENDED
