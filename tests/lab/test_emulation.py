"""Programs of another processor run on this machine, as guests need them to."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from kiln.base.errors import KilnError
from lab.rootfs import emulation

OTHER = "arm64" if emulation.host_arch() == "x86_64" else "x86_64"
# geteuid, and exit with what it gave. Linux's numbers: asm-generic/unistd.h (arm64), x86-64 ABI.
CODE = {
    "arm64": bytes.fromhex("e81580d2 010000d4 a80b80d2 010000d4"),
    "x86_64": bytes.fromhex("b86b000000 0f05 89c7 b83c000000 0f05"),
}
MACHINE = {"arm64": 183, "x86_64": 62}
NOBODY = 65534

needs_qemu = pytest.mark.skipif(
    os.geteuid() != 0
    or not shutil.which(f"qemu-{emulation.machine(OTHER)}-static")
    or "binfmt_misc" not in Path("/proc/filesystems").read_text(),
    reason="takes root, binfmt_misc, and qemu-user-static, which a build of such a row installs",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root filesystem that holds one program, and no qemu."""
    code, start = CODE[OTHER], 0x400000
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01".ljust(16, b"\0"),
        *(2, MACHINE[OTHER], 1, start + 120, 64, 0, 0, 64, 56, 1, 64, 0, 0),
    )
    size = 120 + len(code)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, start, start, size, size, 0x10000)
    program = tmp_path / "who"
    program.write_bytes(header + segment + code)
    program.chmod(0o755)
    tmp_path.chmod(0o755)
    return tmp_path


def who(root: Path) -> int:
    """The effective user (its last eight bits) of the program when nobody runs it."""
    command = ["chroot", f"--userspec={NOBODY}:{NOBODY}", str(root), "/who"]
    return subprocess.run(command, check=False).returncode


@pytest.mark.all
@needs_qemu
def test_a_program_runs_where_no_qemu_is_to_be_found(root: Path) -> None:
    emulation.ensure(OTHER)
    assert who(root) == NOBODY % 256


@pytest.mark.all
@needs_qemu
def test_sudo_can_be_root_for_a_setuid_program_is_its_owners(root: Path) -> None:
    emulation.ensure(OTHER)
    (root / "who").chmod(0o4755)
    assert who(root) == 0


def test_without_qemu_the_message_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "_name", lambda arch: "kiln-test-none")
    monkeypatch.setattr(emulation, "_PRESERVING", Path("/nowhere"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(KilnError, match=f"cannot run {OTHER} guests") as raised:
        emulation.ensure(OTHER)
    assert "qemu-user-static" in raised.value.hint
    assert raised.value.exit_status == 1
