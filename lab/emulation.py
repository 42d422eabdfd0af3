"""Guests of another processor: the kernel hands each of their programs to qemu-user.

Real arm64 packages run so on an x86_64 machine, many times slower than on their own processor. The
kernel stays the host's; what it is asked is translated.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from pathlib import Path

from kiln.base.errors import KilnError, operation_failed
from lab.shell import CommandError, run

# What EC2 and the kernel call a processor, and its number in an ELF header (e_machine).
_MACHINES = {"x86_64": "x86_64", "arm64": "aarch64"}
_ELF = {"x86_64": 62, "arm64": 183}
_BINFMT = Path("/proc/sys/fs/binfmt_misc")
# As Debian's package has it: by this name qemu knows that it gets the program's own first argument.
_PRESERVING = Path("/usr/libexec/qemu-binfmt")


def machine(arch: str) -> str:
    """`uname -m`'s word for EC2's x86_64 or arm64."""
    return _MACHINES[arch]


def here() -> str:
    """This machine's processor, as EC2 calls it."""
    found = {name: arch for arch, name in _MACHINES.items()}
    return found.get(platform.machine(), platform.machine())


def needed(arch: str) -> bool:
    """Do guests of `arch` run on another processor's here?"""
    return arch != here()


def by(arch: str) -> str | None:
    """What runs `arch`'s programs here in its stead, in a few words; None where nothing has to."""
    return f"qemu-user on {here()}" if needed(arch) else None


def of(program: Path) -> str:
    """The processor that a program is for, as EC2 calls it; KilnError for any other."""
    with contextlib.suppress(OSError):
        with program.open("rb") as file:
            header = file.read(20)
        found = {number: arch for arch, number in _ELF.items()}.get(
            int.from_bytes(header[18:20], "little")
        )
        if header.startswith(b"\x7fELF") and found:
            return found
    raise KilnError(f"{program} is no program for {' or '.join(_ELF)}")


def ensure(arch: str) -> None:
    """Tell the kernel to run `arch`'s programs with qemu-user; nothing on a machine of that kind.

    The setting is the host's, and is gone when the host starts anew. Raises KilnError (exit
    status 1) where the kernel or its container does not allow it, or qemu-user is missing.
    """
    if not needed(arch) or _is_set(arch):
        return
    interpreter = _interpreter(arch)
    try:
        if not (_BINFMT / "register").exists():
            run("mount", "-t", "binfmt_misc", "binfmt_misc", str(_BINFMT))
        forget(arch)
        (_BINFMT / "register").write_text(rule(arch, interpreter))
    except (CommandError, OSError) as failure:
        if _is_set(arch):  # by another build, in this moment
            return
        raise operation_failed(
            f"the lab cannot run {arch} guests on this {here()} machine: its kernel takes no "
            f"binfmt_misc setting ({failure})",
            hint=f"build the {arch} rows on such a machine, or in AWS: ./invoke build --target aws",
        ) from None


def forget(arch: str) -> bool:
    """Take the setting back; False when there was none."""
    entry = _BINFMT / _name(arch)
    if not entry.exists():
        return False
    entry.write_text("-1")
    return True


def forget_all() -> list[str]:
    """Take back what `ensure` set, for every processor; what that was."""
    return [f"{_BINFMT / _name(arch)}" for arch in _MACHINES if forget(arch)]


def rule(arch: str, interpreter: Path) -> str:
    """The line that binfmt_misc's `register` takes: ELF, 64 bit, little-endian, of that processor.

    Flags: F opens qemu now, for it is not to be found in a guest; C lets sudo be root (a setuid
    program's owner counts, not qemu's); P keeps the name a program was called by.
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
    """qemu-user without shared libraries of its own, which a guest would not have."""
    named = _PRESERVING / f"{machine(arch)}-binfmt-P"
    if named.exists():
        return named
    found = shutil.which(f"qemu-{machine(arch)}-static")
    if found:
        return Path(os.path.realpath(found))
    raise operation_failed(
        f"the lab cannot run {arch} guests on this {here()} machine without qemu-user",
        hint="apt-get install qemu-user-static arch-test",
    )
