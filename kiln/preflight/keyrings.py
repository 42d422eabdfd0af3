"""Keyrings that hold pinned keys only, and signatures checked by them."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kiln.components.package_repositories import Repository
from kiln.preflight.fetch import Fetcher


class NotSignedError(Exception):
    """A file is not signed by a pinned key, or the key file does not hold one; the reason."""


def make_keyring(repository: Repository, fetcher: Fetcher, keyring: Path) -> Path:
    """Write a keyring with those of the repository's keys whose fingerprints are pinned.

    They come from this machine, or from the vendor's key file or keyring package.
    Raises NotSignedError if none of them is there, and what Fetcher.get raises.
    """
    file = Path(repository.key_file) if repository.key_file else None
    if file is None or not file.is_file():
        file = fetcher.get(repository.key_url).path
    with tempfile.TemporaryDirectory(prefix="kiln-keys-") as folder:
        home = Path(folder)
        for part in _key_files(file, home / "package"):
            _gpg(home, "--import", str(part))
        fingerprints = _fingerprints(home)
        pinned = [entry for entry in repository.fingerprints if entry in fingerprints]
        if not pinned:
            held = ", ".join(sorted(fingerprints)) or "no key"
            raise NotSignedError(
                f"the key file holds {held}; pinned: {', '.join(repository.fingerprints)}"
            )
        keyring.unlink(missing_ok=True)
        _gpg(home, "--output", str(keyring), "--export", *pinned)
    return keyring


def armored(keyring: Path) -> str:
    """All keys of a keyring as ASCII, as rpm takes them."""
    with tempfile.TemporaryDirectory(prefix="kiln-keys-") as folder:
        home = Path(folder)
        _gpg(home, "--import", str(keyring))
        return _gpg(home, "--armor", "--export")


def check_signature(keyring: Path, *files: Path) -> None:
    """Check a file with its signature inside, or a detached signature and its file.

    A file may have more signatures, by keys that are not pinned: Debian's Release files have one
    for each release. Raises NotSignedError, with gpgv's own words, if no key of the keyring has
    signed it or a signature is bad.
    """
    command = ["gpgv", "--status-fd", "1", "--keyring", str(keyring.absolute()), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    words = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("[GNUPG:] ")]
    if "VALIDSIG" not in words or "BADSIG" in words:
        lines = [line.removeprefix("gpgv: ").strip() for line in done.stderr.splitlines()]
        reasons = "; ".join(
            line for line in lines if line and not line.startswith("Signature made")
        )
        raise NotSignedError(f"no valid signature by a pinned key: {reasons[:300]}")


def _key_files(file: Path, folder: Path) -> Sequence[Path]:
    """The file itself, or the keyrings in it if it is a Debian package."""
    if file.read_bytes()[:8] != b"!<arch>\n":
        return [file]
    command = ["dpkg-deb", "-x", str(file), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["dpkg-deb failed"])[-1]
        raise NotSignedError(f"the keyring package cannot be unpacked: {reason[:300]}")
    return sorted(folder.glob("usr/share/keyrings/*.gpg"))


def _fingerprints(home: Path) -> set[str]:
    """The fingerprints of the primary keys in a GnuPG home."""
    primary = False
    prints = set()
    for line in _gpg(home, "--with-colons", "--list-keys").splitlines():
        fields = line.split(":")
        if fields[0] in {"pub", "sub"}:
            primary = fields[0] == "pub"
        elif fields[0] == "fpr" and primary:
            prints.add(fields[9])
    return prints


def _gpg(home: Path, *words: str) -> str:
    # No agent: it would stay behind, and public keys need none.
    command = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--no-autostart", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
