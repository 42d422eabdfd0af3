"""Shell and Python files, chosen by suffix or by shebang: for the linters, and for pre-commit.

`python -m devel.scripts shell COMMAND… -- FILE…` runs COMMAND on those of FILE that are shell
scripts (`python`: Python). What ships or is a stand-in has its program's name, without a suffix,
and often no executable bit, so pre-commit's own types do not see it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from kiln.base.paths import ROOT

_SUFFIXES = {"shell": (".sh", ".bash"), "python": (".py",)}
_INTERPRETERS = {
    "shell": re.compile(rb"#!\s*\S*/(env\s+)?(sh|bash|dash)\b"),
    "python": re.compile(rb"#!\s*\S*/(env\s+)?python"),
}


def files_in_language(language: str, files: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return those of `files` (paths below `root`) that are written in `shell` or `python`."""
    return [file for file in files if _is(language, root / file)]


def committed(root: Path = ROOT) -> list[str]:
    """The files of the checkout, also those that are new, without those that git ignores."""
    command = ["git", "-c", f"safe.directory={root}", "ls-files", "-zco", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True)
    # A name need not be UTF-8.
    return sorted({file for file in os.fsdecode(listed.stdout).split("\0") if file})


def _is(language: str, path: Path) -> bool:
    if path.is_symlink() or not path.is_file() or path.suffix == ".j2":
        return False
    if path.suffix in _SUFFIXES[language]:
        return True
    with path.open("rb") as file:
        return _INTERPRETERS[language].match(file.readline(128)) is not None


def main(language: str, *words: str) -> int:
    """Run the command before `--` on the files after it; its exit status, 0 without a file."""
    end = words.index("--")
    files = files_in_language(language, words[end + 1 :])
    return subprocess.run([*words[:end], *files], check=False).returncode if files else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
