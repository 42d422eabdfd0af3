"""The three parsers: how each is started, fed and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from devel.processes import family
from kiln.base.paths import RUNTIME

PYTHON = "/usr/bin/python3"
_LIBRARY = RUNTIME / "opt" / "kiln" / "lib" / "gpu_xid"

# The original parser's steps for each line: read a line of `tail -F -n 1000`, search its repr for
# NVRM, print it, decode it strictly, open the log, append, close.
# source: aws-samples/aws-efa-nccl-baseami-pipeline, aws-hwaccel-event-parser.py (behaviour only)
_ORIGINAL = """
import platform, subprocess, sys
platform.platform()
source, target = sys.argv[1:]
tail = subprocess.Popen(
    ["tail", "-F", "-n", "1000", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE
)
while True:
    line = tail.stdout.readline()
    if "NVRM:" in str(line):
        log = open(target, "a")
        print(line.decode("utf8", errors="strict").strip())
        log.write(line.decode("utf8", errors="strict").strip())
        log.write(chr(10))
        log.close()
"""


@dataclass
class Contender:
    """A parser: its command, the file it writes, and the file it reads, if any."""

    name: str
    command: list[str]
    output: Path
    feed: Path | None = None  # the bench appends each line to this file
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.output.touch()
        self.process = subprocess.Popen(
            self.command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(1.5)

    def stop(self, signal: int = 15) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal)
            self.process.wait()
            self.process = None

    def pids(self) -> list[int]:
        """The process and all its descendants."""
        return family(self.process.pid) if self.process else []


def prepare(folder: Path) -> list[Contender]:
    """The three parsers, each with its own output file in `folder`."""
    library = folder / "lib" / "gpu_xid"
    shutil.copytree(_LIBRARY, library, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([PYTHON, "-m", "compileall", "-q", str(library)], check=True)
    conf = folder / "gpu-xid.json"
    conf.write_text(json.dumps({"max_bytes": 1 << 30}))
    start = (
        f"import sys; sys.path.insert(0, {str(folder / 'lib')!r}); "
        "from gpu_xid.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    ours, original, floor = (folder / f"{name}.log" for name in ("monitor", "original", "floor"))
    feed = folder / "dmesg"
    feed.touch()
    return [
        Contender(
            "monitor",
            [PYTHON, "-ISB", "-c", start, "monitor", "--config", str(conf), "--log", str(ours)],
            ours,
        ),
        Contender("original", [PYTHON, "-c", _ORIGINAL, str(feed), str(original)], original, feed),
        Contender(
            "floor",
            ["sh", "-c", f"dmesg --follow | grep --line-buffered NVRM >> {floor}"],
            floor,
        ),
    ]
