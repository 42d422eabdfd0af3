"""Scripts that run on Amazon Linux 2 use no option that its programs do not have.

The lab's guests of Amazon Linux 2 have Debian 12's programs, so no bake in the lab would show it.
bash itself is tried in test_library.py, where KILN_TEST_BASH names one.

The first release that has an option was read in the program's own news: NEWS of systemd, coreutils,
tar, sed, grep, GnuPG, bash and OpenSSL as Debian 12 has them in /usr/share/doc, and for util-linux
https://github.com/util-linux/util-linux/tree/v2.38.1/Documentation/releases. What was not found
there is `unconfirmed`. Amazon Linux 2's release is by
https://docs.aws.amazon.com/linux/al2023/release-notes/vercmp-AL2-AL2023.9.html
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from kiln.base.paths import ROOT

NEWER: dict[str, dict[str, str]] = yaml.safe_load(
    Path(__file__).with_name("newer_options.yaml").read_text()
)


def scripts() -> list[Path]:
    """Everything that is run on a machine: at the bake, on the image, by the checks."""
    found = [path for folder in ("provisioners", "runtime") for path in (ROOT / folder).rglob("*")]
    files = [path for path in found if path.is_file() and "__pycache__" not in path.parts]
    return [*files, ROOT / "tests/ami/collect.py", ROOT / "templates/telemetry/installer.sh"]


def used(pattern: str, text: str) -> list[str]:
    """The lines of a program that use it; a call of Python's is one as well."""
    lines = [re.sub(r'["\'],\s*["\']', " ", line) for line in text.splitlines()]
    return [
        line.strip()
        for line in lines
        if re.search(pattern, line) and not line.lstrip().startswith("#") and "||" not in line
    ]


@pytest.mark.parametrize("program", NEWER)
def test_image_scripts_use_no_newer_option(program: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {line} (since {since})"
        for path in scripts()
        for pattern, since in NEWER[program].items()
        for line in used(pattern, path.read_text(errors="replace"))
    }
    assert found == set(), f"Amazon Linux 2 has {program}"


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("systemd 219", 'run("systemctl", "show", "--property=Result", "--value", unit)'),
        ("gnupg 2.0.22", "gpg --batch --show-keys $key"),
        ("bash 4.2", 'echo "${words[@]@Q}"'),
    ],
)
def test_newer_option_is_found(program: str, line: str) -> None:
    assert any(used(pattern, f"# {line}\n{line}\n") for pattern in NEWER[program])
