"""Which files the linters see: shell and Python by suffix and by shebang."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from devel import scripts

FILES = {
    "a.sh": "echo\n",
    "c.py": "pass\n",
    "bin/env-bash": "#!/usr/bin/env bash\n",
    "bin/posix": "#!/bin/sh -e\n",
    "bin/isolated": "#!/usr/bin/python3 -ISB\n",
    "fish": "#!/usr/bin/fish\n",
    "page.md": "# /bin/sh is what a script begins with\n",
    "picture": "\x00\x01",
}
OF = {
    "shell": ["a.sh", "bin/env-bash", "bin/posix"],
    "python": ["bin/isolated", "c.py"],
}


@pytest.mark.parametrize("language", OF)
def test_linter_sees_scripts_of_its_language(
    tmp_path: Path, language: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, text in {**FILES, "ignored.sh": "echo\n", ".gitignore": "ignored.sh\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "link.sh").symlink_to("a.sh")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    files = scripts.committed(tmp_path)
    assert scripts.of_language(language, files, tmp_path) == OF[language]
    paths = [str(tmp_path / name) for name in files]
    assert scripts.main(language, "printf", "%s\n", "--", *paths) == 0
    assert capfd.readouterr().out.split() == [str(tmp_path / name) for name in OF[language]]
    assert scripts.main(language, "false", "--", *paths) == 1
    assert scripts.main(language, "false", "--", str(tmp_path / "fish")) == 0
