"""A folder that stands in for the build instance, with the provisioners' library."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from kiln.base.paths import PROVISIONERS


class Machine:
    """A folder that stands in for the build instance; commands in `bin` come first."""

    def __init__(self, root: Path, family: str = "debian") -> None:
        self.root, self.bin, self.etc = root, root / "bin", root / "etc-kiln"
        self.kiln = root / "kiln"
        # Another bash than the system's, such as the 4.2 of Amazon Linux 2.
        self.interpreter = os.environ.get("KILN_TEST_BASH", "bash")
        (self.kiln / "lib").mkdir(parents=True)
        for path in (PROVISIONERS / "lib").iterdir():
            (self.kiln / "lib" / path.name).symlink_to(path)
        self.bin.mkdir()
        # Between two tries, and what would change the machine that tests.
        for name in ("sleep", "systemctl"):
            self.command(name, "")
        self.environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "KILN_DIR": str(self.kiln),
            "KILN_ETC": str(self.etc),
            "KILN_ROOT": str(root / "image"),
            "KILN_DISTRO": "ubuntu2204" if family == "debian" else "al2023",
            "KILN_FAMILY": family,
            "KILN_PACKAGE_MANAGER": "apt" if family == "debian" else "dnf",
            "KILN_COMPONENT": "sample",
        }

    def command(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def rpm(self, *versions: str, first: str = "") -> None:
        """`rpm -q --qf FORMAT NAME…` knows all packages in these versions, unless `first` ends."""
        (self.bin / "rpm.versions").write_text(" ".join(versions))
        self.command(
            "rpm",
            f"{first}\nshift 2; format=$1; shift\n"
            "for name; do for version in $(<$0.versions); do\n"
            "line=${format//'%{NAME}'/$name}; line=${line//'%{EPOCHNUM}'/0}\n"
            "line=${line//'%{VERSION}-%{RELEASE}'/$version}\n"
            'printf "$line"\ndone; done',
        )

    def bash(self, code: str, **more: str) -> subprocess.CompletedProcess[str]:
        # gpg starts an agent for each new keyring, which ends when the keyring's folder is gone:
        # also where the script could not remove it.
        with tempfile.TemporaryDirectory(prefix="kiln-unit-") as folder:
            return subprocess.run(
                [self.interpreter, "-c", f'source "$KILN_DIR/lib/kiln.sh"\n{code}'],
                env={**self.environment, "TMPDIR": folder, **more},
                capture_output=True,
                text=True,
                check=False,
            )

    def works(self, code: str, **more: str) -> subprocess.CompletedProcess[str]:
        done = self.bash(code, **more)
        assert done.returncode == 0, done.stderr
        return done

    def stops(self, code: str, **more: str) -> str:
        """The error of code that must end with status 1."""
        done = self.bash(code, **more)
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        return done.stderr

    def log(self, name: str) -> list[str]:
        """The lines that a command of `bin` wrote to its log."""
        path = self.bin / f"{name}.log"
        return path.read_text().splitlines() if path.exists() else []


class Script(Machine):
    """A machine with the kernel 6.1.1-1.amzn2023.x86_64 and its headers, where one script runs."""

    kernel = "6.1.1-1.amzn2023.x86_64"

    def __init__(self, root: Path) -> None:
        super().__init__(root, "amazon")
        plant(
            root / "image",
            {f"boot/vmlinuz-{self.kernel}": "", f"usr/src/kernels/{self.kernel}/Makefile": ""},
        )
        self.command("systemd-detect-virt", "")
        self.command("uname", '[[ $1 == -m ]] && echo x86_64 || echo "6.1.1-1.amzn2023.x86_64"')

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.interpreter, str(PROVISIONERS / script)],
            env={**self.environment, "TMPDIR": str(self.root), **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


def plant(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


def serve(machine: Machine, content: str) -> str:
    """A curl that answers with `content`; its sha256."""
    machine.command(
        "curl", f'while [[ $1 != --output ]]; do shift; done; printf %s "{content}" > "$2"'
    )
    done = subprocess.run(["sha256sum"], input=content, capture_output=True, text=True, check=True)
    return done.stdout.split()[0]


def signed_files(home: Path) -> dict[str, str]:
    """A file, its detached signature, the key's file (armoured, binary), its fingerprint, and
    another key's file."""
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
