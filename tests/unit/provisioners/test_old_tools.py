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

from kiln.base.paths import ROOT

# Amazon Linux 2's release of a program → option: its use, and the first release that has it. What a
# line tries only where it exists is excused by `||` on it.
NEWER = {
    "systemd 219": {
        r"systemctl\b[^|;&]*\s--value\b": "230",
        r"systemctl\s+revert\b": "230",
        r"systemctl\b[^|;&]*\s--wait\b": "232",
        r"systemd-run\b[^|;&]*\s--(wait|pipe)\b": "232",
        r"journalctl\b[^|;&]*--output-fields": "236",
        r"journalctl\b[^|;&]*(--grep|\s-g\s)": "237",
        r"journalctl\b[^|;&]*--no-hostname": "230",
    },
    "coreutils 8.22": {
        r"sha\d+sum\b[^|;&]*--ignore-missing": "8.25",
        r"\bls\b[^|;&]*\s--zero\b": "9.0",
        r"\bdate\b[^|;&]*--resolution": "9.1",
        r"\bbasenc\b": "8.31",
    },
    "util-linux 2.30": {
        r"\blsblk\b[^|;&]*\bPATH\b": "2.33",
        r"\bflock\b[^|;&]*--fcntl": "2.41",
    },
    "tar 1.26": {r"\btar\b[^|;&]*--zstd": "1.31", r"\btar\b[^|;&]*--sort\b": "1.28"},
    "openssl 1.0.2": {
        r"\bopenssl\b[^|;&]*-pbkdf2": "1.1.1 (unconfirmed)",
        r"\bopenssl\b[^|;&]*ed25519": "1.1.1",
    },
    "gnupg 2.0.22": {
        r"\bgpg\b[^|;&]*--show-keys?\b": "2.2.8",
        r"\bgpg\b[^|;&]*--pinentry-mode": "2.1",
    },
    "grep 2.20": {r"\bgrep\b[^|;&]*--no-ignore-case": "3.4"},
    "sed 4.2": {r"\bsed\b[^|;&]*--(debug|sandbox)\b": "4.3"},
    "bash 4.2": {
        r"\bwait\s+-n\b": "4.3",
        r"\b(local|declare|typeset)\s+-[a-zA-Z]*n[a-zA-Z]*\s": "4.3",
        r"\$\{\w+(\[[@*]\])?@[QEPAaUuLKk]\}": "4.4",
        r"\b(mapfile|readarray)\b[^|;&]*\s-[a-z]*d": "4.4",
        r"\binherit_errexit\b": "4.4",
        r"\bEPOCH(SECONDS|REALTIME)\b": "5.0",
    },
}


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
