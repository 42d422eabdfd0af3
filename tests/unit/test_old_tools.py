"""Scripts that run on Amazon Linux 2 use no option that its programs do not have.

The lab's guests of Amazon Linux 2 have Debian 12's programs, so no bake in the lab would show it.
bash itself is tried in test_provisioners.py, Python in test_xid_pythons.py, units in
test_unit_exposure.py.

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

# option → (first release, Amazon Linux 2's). What a line tries only where it exists is excused by
# `||` on it.
NEWER = {
    "systemctl --value": (r"systemctl\b[^|;&]*\s--value\b", "systemd 230", "219"),
    "systemctl revert": (r"systemctl\s+revert\b", "systemd 230", "219"),
    "systemctl --wait": (r"systemctl\b[^|;&]*\s--wait\b", "systemd 232", "219"),
    "systemd-run --wait or --pipe": (
        r"systemd-run\b[^|;&]*\s--(wait|pipe)\b",
        "systemd 232",
        "219",
    ),
    "journalctl --output-fields": (r"journalctl\b[^|;&]*--output-fields", "systemd 236", "219"),
    "journalctl --grep": (r"journalctl\b[^|;&]*(--grep|\s-g\s)", "systemd 237", "219"),
    "journalctl --no-hostname": (r"journalctl\b[^|;&]*--no-hostname", "systemd 230", "219"),
    "sha256sum --ignore-missing": (r"sha\d+sum\b[^|;&]*--ignore-missing", "coreutils 8.25", "8.22"),
    "ls --zero": (r"\bls\b[^|;&]*\s--zero\b", "coreutils 9.0", "8.22"),
    "date --resolution": (r"\bdate\b[^|;&]*--resolution", "coreutils 9.1", "8.22"),
    "basenc": (r"\bbasenc\b", "coreutils 8.31", "8.22"),
    "lsblk PATH": (r"\blsblk\b[^|;&]*\bPATH\b", "util-linux 2.33", "2.30"),
    "flock --fcntl": (r"\bflock\b[^|;&]*--fcntl", "util-linux 2.41", "2.30"),
    "tar --zstd": (r"\btar\b[^|;&]*--zstd", "tar 1.31", "1.26"),
    "tar --sort": (r"\btar\b[^|;&]*--sort\b", "tar 1.28", "1.26"),
    "openssl -pbkdf2": (
        r"\bopenssl\b[^|;&]*-pbkdf2",
        "openssl 1.1.1 (unconfirmed)",
        "1.0.2",
    ),
    "openssl -ed25519": (r"\bopenssl\b[^|;&]*ed25519", "openssl 1.1.1", "1.0.2"),
    "gpg --show-keys": (r"\bgpg\b[^|;&]*--show-keys?\b", "gnupg 2.2.8", "2.0.22"),
    "gpg --pinentry-mode": (r"\bgpg\b[^|;&]*--pinentry-mode", "gnupg 2.1", "2.0.22"),
    "grep --no-ignore-case": (r"\bgrep\b[^|;&]*--no-ignore-case", "grep 3.4", "2.20"),
    "sed --sandbox or --debug": (r"\bsed\b[^|;&]*--(debug|sandbox)\b", "sed 4.3", "4.2"),
    "bash wait -n": (r"\bwait\s+-n\b", "bash 4.3", "4.2"),
    "bash local -n": (r"\b(local|declare|typeset)\s+-[a-zA-Z]*n[a-zA-Z]*\s", "bash 4.3", "4.2"),
    "bash ${name@Q}": (r"\$\{\w+(\[[@*]\])?@[QEPAaUuLKk]\}", "bash 4.4", "4.2"),
    "bash mapfile -d": (r"\b(mapfile|readarray)\b[^|;&]*\s-[a-z]*d", "bash 4.4", "4.2"),
    "bash inherit_errexit": (r"\binherit_errexit\b", "bash 4.4", "4.2"),
    "bash EPOCHSECONDS": (r"\bEPOCH(SECONDS|REALTIME)\b", "bash 5.0", "4.2"),
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


@pytest.mark.parametrize("option", NEWER)
def test_no_script_of_an_image_uses_what_amazon_linux_2_lacks(option: str) -> None:
    pattern, since, has = NEWER[option]
    found = {
        f"{path.relative_to(ROOT)}: {line}"
        for path in scripts()
        for line in used(pattern, path.read_text(errors="replace"))
    }
    assert found == set(), f"{option} is {since}'s; Amazon Linux 2 has {has}"


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("systemctl --value", 'run("systemctl", "show", "--property=Result", "--value", unit)'),
        ("gpg --show-keys", "gpg --batch --show-keys $key"),
        ("bash local -n", "local -n into=$1"),
        ("bash ${name@Q}", 'echo "${words[@]@Q}"'),
        ("openssl -ed25519", "openssl genpkey -algorithm ed25519"),
    ],
)
def test_the_use_of_a_newer_option_is_found(option: str, line: str) -> None:
    assert used(NEWER[option][0], f"# {line}\n{line}\n") != []
