"""The lab's own OpenPGP keys, one for each vendor key.

A guest gets their fingerprints like the vendors' (`signing_keys` of the build), so that it runs
the same signature checks. The secret keys stay in the state folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.base import locks, settings
from lab.base.shell import run

# The names in kiln/facts/knowledge/keys.yaml, and two for the distributions' repositories.
VENDORS = (
    "nvidia-cuda-rpm",
    "nvidia-cuda-deb",
    "nvidia-container-toolkit",
    "efa",
    "cloudwatch-agent",
    "fsx-lustre",
)
DISTRIBUTIONS = ("amazon-linux", "ubuntu")


@dataclass(frozen=True)
class Keyring:
    """A GnuPG home with a signing key for each name."""

    home: Path

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one process sign at a time, and end gpg-agent afterwards.

        Ending the agent while another process signs would break that signature.
        """
        with locks.alone(self.home / ".lock"):
            try:
                yield
            finally:
                run("gpgconf", "--homedir", str(self.home), "--kill", "all", check=False)

    def _gpg(self, *arguments: str, text: str | None = None) -> str:
        quiet = ("--batch", "--yes", "--quiet", "--no-tty", "--pinentry-mode=loopback")
        return run("gpg", "--homedir", str(self.home), *quiet, *arguments, text=text)

    def _write(self, target: Path, *arguments: str) -> None:
        """Have gpg write a file, which is there when it is whole. The caller is `_alone`."""
        making = target.with_name(f".{target.name}.making")
        self._gpg("-o", str(making), *arguments)
        making.replace(target)

    def fingerprint(self, name: str) -> str:
        """The key's fingerprint, 40 hex digits."""
        return (self.home / f"{name}.fpr").read_text().strip()

    def public(self, name: str) -> bytes:
        """The public key, ASCII-armoured as vendors publish it."""
        return (self.home / f"{name}.asc").read_bytes()

    def binary(self, name: str) -> bytes:
        """The public key, binary, for apt's /usr/share/keyrings."""
        return (self.home / f"{name}.gpg").read_bytes()

    def sign_detached(self, name: str, file: Path, *, armor: bool = False) -> Path:
        """Write a signature `<file>.sig` (armoured: `.asc`); returns its path."""
        signature = file.with_name(file.name + (".asc" if armor else ".sig"))
        options = ["--armor"] if armor else []
        key = self.fingerprint(name)
        with self._alone():
            self._write(signature, *options, "-u", key, "-b", str(file))
        return signature

    def sign_inline(self, name: str, text: str) -> str:
        """The text with an inline signature, as in InRelease."""
        with self._alone():
            return self._gpg("-u", self.fingerprint(name), "--clearsign", text=text)

    def sign_rpms(self, name: str, files: list[Path]) -> None:
        """Sign RPM headers with the real rpmsign."""
        if files:
            defines = {
                "__gpg": "/usr/bin/gpg",
                "_gpg_name": self.fingerprint(name),
                "_gpg_path": str(self.home),
            }
            words = [w for key, value in defines.items() for w in ("--define", f"{key} {value}")]
            with self._alone():
                run("rpmsign", *words, "--addsign", *map(str, files))

    def make_missing(self) -> None:
        """Make the missing keys."""
        with self._alone():
            for name in (*VENDORS, *DISTRIBUTIONS):
                if not (self.home / f"{name}.gpg").exists():
                    self.make(name)

    def make(self, name: str) -> None:
        owner = f"{name} (AMI Kiln lab stand-in)"
        self._gpg("--passphrase", "", "--quick-gen-key", owner, "rsa2048", "sign", "never")
        listing = self._gpg("--with-colons", "--list-keys", owner)
        fingerprint = next(
            line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:")
        )
        (self.home / f"{name}.fpr").write_text(fingerprint + "\n")
        self._write(self.home / f"{name}.asc", "--armor", "--export", fingerprint)
        # Written last: when it exists, the key is complete.
        self._write(self.home / f"{name}.gpg", "--export", fingerprint)


def ensure(state: Path | None = None) -> Keyring:
    """The keyring below `state` (default: what all labs share), made when it is missing."""
    home = (state or settings.current().shared) / "keys"
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    keyring = Keyring(home)
    if not all((home / f"{name}.gpg").exists() for name in (*VENDORS, *DISTRIBUTIONS)):
        keyring.make_missing()
    return keyring
