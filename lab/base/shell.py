"""Runs the host's tools; errors contain the tool's output."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


class CommandError(RuntimeError):
    """A tool of the host failed. The text is its command and output."""


def run(*command: str, text: str | None = None, check: bool = True) -> str:
    """Run a command; returns its standard output.

    Raises CommandError with the command and its standard error, unless `check` is false.
    """
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise CommandError(
            f"{' '.join(command)}: exit status {done.returncode}: "
            f"{(done.stderr or done.stdout).strip()}"
        )
    return done.stdout


def batch(tool: Sequence[str], lines: Sequence[str]) -> None:
    """Pass many commands to one process of a tool that reads them (`ip -batch -`, `nft -f -`)."""
    run(*tool, text="\n".join(lines) + "\n")
