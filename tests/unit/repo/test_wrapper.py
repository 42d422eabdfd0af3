"""`./invoke` starts under macOS's bash 3.2, and without GNU programs that macOS lacks."""

from __future__ import annotations

import re

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
