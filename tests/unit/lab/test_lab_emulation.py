"""The kernel's setting for programs of another processor is shared by all builds of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.rootfs import emulation


class Kernel:
    """binfmt_misc: a file to register with, and a file for each setting."""

    def __init__(self, folder: Path) -> None:
        self.entry, self.removals, self.refuses = folder / "kiln-aarch64", 0, False
        (folder / "register").touch()

    def write(self, path: Path, text: str) -> None:
        if path.name == "register":
            if self.refuses:
                raise PermissionError(1, "Operation not permitted")
            if self.entry.exists():
                raise FileExistsError(17, "File exists")
            self.entry.write_bytes(b"enabled\n")
        elif text == "-1":
            self.removals += 1
            self.entry.unlink()
        else:
            self.entry.write_bytes({"0": b"disabled\n", "1": b"enabled\n"}[text])

    def runs_arm64(self) -> bool:
        return self.entry.exists() and self.entry.read_bytes() == b"enabled\n"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel(tmp_path)
    monkeypatch.setattr(emulation, "_BINFMT", tmp_path)
    monkeypatch.setattr(emulation, "host_arch", lambda: "x86_64")
    monkeypatch.setattr(emulation, "_interpreter", lambda arch: Path("/usr/bin/qemu"))

    def write_text(path: Path, text: str) -> None:
        made.write(path, text)

    monkeypatch.setattr(Path, "write_text", write_text)
    return made


def test_the_setting_of_a_build_that_was_faster_is_never_removed(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(arch: str) -> Path:
        kernel.entry.write_bytes(b"enabled\n")
        return Path("/usr/bin/qemu")

    monkeypatch.setattr(emulation, "_interpreter", meanwhile)
    emulation.ensure("arm64")
    assert kernel.removals == 0
    assert kernel.runs_arm64()


def test_a_setting_that_somebody_switched_off_is_switched_on(kernel: Kernel) -> None:
    kernel.entry.write_bytes(b"disabled\n")
    emulation.ensure("arm64")
    assert kernel.runs_arm64()
