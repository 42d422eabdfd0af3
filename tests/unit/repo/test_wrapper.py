"""`./invoke` starts under macOS's bash 3.2, and without GNU programs that macOS lacks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.base.paths import ROOT

# What came after bash 3.2 (CHANGES in bash's sources), and programs of util-linux.
NEWER = {
    "exec {fd}>": r"\{\w+\}[<>]",
    "mapfile": r"\b(mapfile|readarray|coproc)\b",
    "declare -A": r"\b(declare|local|typeset) -\w*[Agn]",
    "${x^^}": r"\$\{\w+(\^|,|@)",
    "|&": r"\|&|&>>|;;&|;&",
    "flock": r"(^|[;&|]\s*|\s{4,})(flock|setsid|timeout|tac)\s",
}


@pytest.mark.parametrize("script", ["invoke", "setup/venv.sh"])
@pytest.mark.parametrize("construct", NEWER)
def test_wrapper_needs_nothing_after_bash_3_2(script: str, construct: str) -> None:
    lines = (ROOT / script).read_text(encoding="utf-8").splitlines()
    code = [line for line in lines if not line.lstrip().startswith("#")]
    assert [line for line in code if re.search(NEWER[construct], line)] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming nobody without /proc needs root")
@pytest.mark.skipif(
    not (ROOT / "invoke").stat().st_mode & 0o005
    or Path(sys.executable).resolve().is_relative_to("/root"),
    reason="nobody cannot read this checkout or its Python",
)
@pytest.mark.parametrize("command", ["list", "mig.plan --instance-type p4d.24xlarge 1g.5gb"])
def test_wrapper_runs_as_nobody_without_proc(command: str) -> None:
    script = (
        'mount -t tmpfs none /proc && mount --bind "$1" /mnt && cd /mnt && '
        f"exec setpriv --reuid 65534 --regid 65534 --clear-groups env -i PATH=/usr/bin:/bin "
        f"./invoke {command}"
    )
    unshared = ["unshare", "-m", "bash", "-c", script, "-", str(ROOT)]
    done = subprocess.run(unshared, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
