"""What several unit tests share."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def signed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A file, its detached signature, the key's file (armoured, binary), its fingerprint, and
    another key's file."""
    home = tmp_path_factory.mktemp("gnupg")
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", ""]
    names = ("file", "signature", "key", "binary", "other")
    paths = {name: str(home / name) for name in names}
    Path(paths["file"]).write_text("the installer")
    for name in ("vendor", "other"):
        subprocess.run([*gpg, "--quick-generate-key", name, "ed25519", "sign"], check=True)
    for name, target in (("vendor", "key"), ("other", "other")):
        subprocess.run([*gpg, "--armor", "--output", paths[target], "--export", name], check=True)
    subprocess.run([*gpg, "--output", paths["binary"], "--export", "vendor"], check=True)
    sign = [*gpg, "--local-user", "vendor", "--output", paths["signature"], "--detach-sign"]
    subprocess.run([*sign, paths["file"]], check=True)
    listed = subprocess.run(
        [*gpg, "--with-colons", "--list-keys", "vendor"], capture_output=True, text=True, check=True
    )
    fingerprint = re.search(r"^fpr:+([0-9A-F]{40}):", listed.stdout, re.MULTILINE)
    assert fingerprint
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)
    return {**paths, "fingerprint": fingerprint.group(1)}
