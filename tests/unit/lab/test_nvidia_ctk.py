"""The lab's nvidia-ctk writes what the real one was recorded to write: docs/lab-stand-ins.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.vendors.packages import model

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 or newer, as the lab's guests have")


class Ctk:
    """A version of nvidia-ctk, and the files that it is given."""

    def __init__(self, root: Path, version: str) -> None:
        path = "/usr/bin/nvidia-ctk"
        program = model.tree("container-toolkit-base", {"version": version})[path]
        self.program = root / "nvidia-ctk"
        self.program.write_bytes(program.content)
        self.config, self.drop_in = root / "config", root / "conf.d/99-nvidia.toml"

    def configure(
        self, runtime: str, before: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        if before is not None:
            self.config.write_text(before)
        options = [f"--runtime={runtime}", f"--config={self.config}"]
        options.append(f"--drop-in-config={self.drop_in}")
        command = [sys.executable, self.program, "--quiet", "runtime", "configure", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def toml(self, path: Path) -> Any:
        return tomllib.loads(path.read_text())


@pytest.fixture(params=["1.17.8", "1.20.0"])
def ctk(request: pytest.FixtureRequest, tmp_path: Path) -> Ctk:
    return Ctk(tmp_path, request.param)


def test_dockers_other_settings_stay(ctk: Ctk) -> None:
    assert ctk.configure("docker", '{"data-root": "/data"}').returncode == 0
    settings = json.loads(ctk.config.read_text())
    assert settings["data-root"] == "/data"
    assert settings["runtimes"]["nvidia"] == {"args": [], "path": "nvidia-container-runtime"}


def test_before_1_18_containerds_own_file_has_the_runtime(tmp_path: Path) -> None:
    ctk = Ctk(tmp_path, "1.17.8")
    assert ctk.configure("containerd").returncode == 0
    runtimes = ctk.toml(ctk.config)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
    assert runtimes["runtimes"]["nvidia"]["runtime_type"] == "io.containerd.runc.v2"
    assert not ctk.drop_in.exists()


def test_containerds_file_only_imports_the_drop_in_from_1_18_on(tmp_path: Path) -> None:
    newer = Ctk(tmp_path, "1.20.0")
    assert newer.configure("containerd").returncode == 0
    imports = [f"{newer.drop_in.parent}/*.toml"]
    assert newer.toml(newer.config) == {"version": 2, "imports": imports}
    assert "nvidia-container-runtime" in newer.drop_in.read_text()


@pytest.mark.parametrize("runtime", ["docker", "containerd"])
def test_a_broken_file_is_an_error_and_stays(ctk: Ctk, runtime: str) -> None:
    done = ctk.configure(runtime, "{broken")
    assert (done.returncode, ctk.config.read_text()) == (1, "{broken")
    assert "level=error" in done.stderr
