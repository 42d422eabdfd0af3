"""Runs a function as the root of guests, whose files root filesystems are.

`python -m lab.rootfs.as_guest` is the process that does it.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import ROOT
from lab.machine import namespace

Progress = Callable[[str], None]


def call(function: Callable[..., Path], *arguments: object, say: Progress) -> Path:
    """Run a module's function in a process of its own; its result.

    Its argument `say` gets one line per step. Raises the function's KilnError.
    """
    command = [*namespace.program(), sys.executable, "-m", "lab.rootfs.as_guest"]
    with tempfile.TemporaryFile() as what:
        pickle.dump((function, arguments), what)
        what.seek(0)
        with subprocess.Popen(command, cwd=ROOT, stdin=what, stdout=subprocess.PIPE) as maker:
            for line in maker.stdout or ():
                kind, *texts = json.loads(line)
                if kind == "made":
                    return Path(texts[0])
                if kind == "failed":
                    raise KilnError(texts[0], hint=texts[1], exit_status=int(texts[2]))
                say(texts[0])
    raise operation_failed(f"making a root filesystem ended with status {maker.returncode}")


def _tell(*words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    function, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301 - from `call`
    try:
        _tell("made", str(function(*arguments, say=lambda text: _tell("say", text))))
    except KilnError as error:
        _tell("failed", error.message, error.hint, error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)
