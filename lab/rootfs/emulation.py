"""Guests for another processor: the kernel runs each of their programs with qemu-user.

Arm64 packages run unchanged on an x86_64 machine, many times slower than on their own processor.
The kernel is the host's; qemu-user translates the system calls.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from pathlib import Path

from kiln.base.errors import KilnError, operation_failed
from kiln.base.vocabulary import ARCH_OF_UNAME, UNAME_ARCH
from lab.base.shell import CommandError, run

# EC2's name of a processor → e_machine in an ELF header.
_ELF = {"x86_64": 62, "arm64": 183}
_BINFMT = Path("/proc/sys/fs/binfmt_misc")
# Debian's path: under this name qemu expects the program's own argv[0] as an argument.
_PRESERVING = Path("/usr/libexec/qemu-binfmt")


def machine(arch: str) -> str:
    """The `uname -m` name of EC2's x86_64 or arm64."""
    return UNAME_ARCH[arch]


def host_arch() -> str:
    """This machine's processor by EC2's name."""
    return ARCH_OF_UNAME.get(platform.machine(), platform.machine())


def needed(arch: str) -> bool:
    """Return True if this machine must emulate `arch`."""
    return arch != host_arch()


def by(arch: str) -> str | None:
    """Return how this machine emulates `arch`, as a phrase; None when it need not."""
    return f"qemu-user on {host_arch()}" if needed(arch) else None


def arch_of(program: Path) -> str:
    """The processor that a program is built for, by EC2's name. Raises KilnError for any other."""
    with contextlib.suppress(OSError):
        with program.open("rb") as file:
            header = file.read(20)
        arch = {number: arch for arch, number in _ELF.items()}.get(
            int.from_bytes(header[18:20], "little")
        )
        if header.startswith(b"\x7fELF") and arch:
            return arch
    raise KilnError(f"{program} is not a program for {' or '.join(_ELF)}")


def ensure(arch: str) -> None:
    """Configure the kernel to run `arch`'s programs with qemu-user, unless they run natively.

    The setting is the cell's own, which takes Linux 6.7. Raises operation_failed when the kernel
    or a container does not allow it, or qemu-user is missing.
    """
    if not needed(arch) or _is_set(arch):
        return
    interpreter = _interpreter(arch)
    try:
        register = _BINFMT / "register"
        if not register.exists():
            run("mount", "-t", "binfmt_misc", "binfmt_misc", str(_BINFMT))
        with contextlib.suppress(FileExistsError):  # another build was faster
            register.write_text(rule(arch, interpreter))
    except (CommandError, OSError) as failure:
        raise operation_failed(
            f"the lab cannot run {arch} guests on this {host_arch()} machine: its kernel rejects "
            f"the binfmt_misc setting ({failure})",
            hint=f"build the {arch} rows on an {arch} host, or in AWS: ./invoke build --target aws",
        ) from None


def rule(arch: str, interpreter: Path) -> str:
    """The line for binfmt_misc's `register`: ELF, 64 bit, little-endian, of that processor.

    Flags: F opens qemu now, because guests do not have it; C applies the setuid bit of the program,
    which sudo needs; P keeps the name that the program was called by.
    Source: the kernel's Documentation/admin-guide/binfmt-misc.rst; ELF-64 header, System V ABI.
    """
    ident = bytes([0x7F, *b"ELF", 2, 1, 1]) + bytes(9)
    # Executables and shared objects (ET_EXEC and ET_DYN differ in one bit), of any OS ABI.
    magic = ident + (2).to_bytes(2, "little") + _ELF[arch].to_bytes(2, "little")
    mask = b"\xff" * 7 + b"\0" + b"\xff" * 8 + b"\xfe\xff\xff\xff"
    flags = "FPC" if interpreter.parent == _PRESERVING else "FC"
    return f":{_name(arch)}:M::{_escaped(magic)}:{_escaped(mask)}:{interpreter}:{flags}"


def _name(arch: str) -> str:
    return f"kiln-{machine(arch)}"


def _escaped(text: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text)


def _is_set(arch: str) -> bool:
    with contextlib.suppress(OSError):
        return (_BINFMT / _name(arch)).read_text().startswith("enabled")
    return False


def _interpreter(arch: str) -> Path:
    """The statically linked qemu-user: a guest does not have the host's shared libraries."""
    preserving = _PRESERVING / f"{machine(arch)}-binfmt-P"
    if preserving.exists():
        return preserving
    static = shutil.which(f"qemu-{machine(arch)}-static")
    if static:
        return Path(os.path.realpath(static))
    raise operation_failed(
        f"the lab cannot run {arch} guests on this {host_arch()} machine without qemu-user",
        hint="apt-get install qemu-user-static arch-test",
    )
