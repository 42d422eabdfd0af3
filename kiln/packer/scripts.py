"""Syntax errors in provisioners, found by `bash -n` before anything is launched."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from kiln.base.findings import Finding
from kiln.base.overlay import provisioner_file, shown_script
from kiln.base.paths import PROVISIONERS

RULE = "shell-syntax"


def check_scripts(components: Iterable[str]) -> list[Finding]:
    """An error for each provisioner of these components, and each file of their library, that bash
    cannot parse. (This machine's bash: 4.2 of Amazon Linux 2 knows less.)"""
    files = [provisioner_file(name) for name in components]
    files += sorted((PROVISIONERS / "lib").glob("*.sh"))
    there = [(path, path.stat().st_mtime_ns) for path in files if path.is_file()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        errors = pool.map(_syntax_error, *zip(*there, strict=True))
    return [finding for finding in errors if finding]


@cache
def _syntax_error(path: Path, _changed: int) -> Finding | None:
    done = subprocess.run(
        ["bash", "-n", str(path)],
        env={**os.environ, "LC_ALL": "C"},  # no word about a locale
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    # bash reports an unclosed [[, but its exit status is 0.
    if done.returncode == 0 and not done.stderr.strip():
        return None
    messages = [line.removeprefix(f"{path}: ") for line in done.stderr.splitlines()]
    place = re.match(r"line (\d+): ", messages[0]) if messages else None
    words = ": ".join(re.sub(r"^line \d+: ", "", line) for line in messages)
    return Finding(
        "error",
        RULE,
        words or f"bash -n ended with status {done.returncode}",
        hint="bash names the line where it noticed; what is not closed may begin above it",
        file=shown_script(path),
        line=int(place[1]) if place else 1,
    )
