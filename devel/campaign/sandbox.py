"""Runs a recipe's provisioners one by one on a distribution's root filesystem, without an instance.

Each script runs in a container over an overlay: its lower folders are the root filesystem and what
the scripts before it changed, so that a script can run again and again from the same state.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiln import components
from kiln.base.paths import PROVISIONERS
from kiln.base.recipe import Recipe
from kiln.packer.folders import write_inputs
from lab import mirror
from lab.rootfs import bases
from lab.settings import Lab

_UPLOAD = "var/tmp/kiln"
# Where the scripts, the shims and the stubs are in the container.
_SCRIPTS, SHIMS, _STUBS = "/run/kiln-provisioners", "/run/kiln-shims", "/run/kiln-stubs"
# On an instance cloud-init has ended by then and systemd runs; here neither does.
_STUB_OF = {
    "cloud-init": "#!/bin/sh\n",
    "systemctl": "#!/bin/sh\n"
    'case "$1" in start | stop | restart | reboot | daemon-reload) exit 0 ;; esac\n'
    # It asks the running systemd for a unit's file.
    'if [ "$1" = cat ]; then\n'
    "    for folder in /etc /run /usr/local/lib /usr/lib /lib; do\n"
    '        [ ! -f "$folder/systemd/system/$2" ] || exec cat "$folder/systemd/system/$2"\n'
    "    done\n"
    "    exit 1\n"
    "fi\n"
    'exec /usr/bin/systemctl "$@"\n',
}
PATH = f"{_STUBS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# A script that hangs is ended: the slowest compiles NVIDIA's modules.
_PATIENCE = 1500


@dataclass(frozen=True)
class Done:
    """A script that has run: its exit status, its output, and the folder of its changes."""

    status: int
    text: str
    upper: Path


@dataclass
class Sandbox:
    """A recipe's machine between two of its scripts; `layers` are its folders, lowest first."""

    lab: Lab
    recipe: Recipe
    folder: Path
    layers: list[Path] = field(default_factory=list)

    def environment(self, name: str) -> dict[str, str]:
        """What `packer/shared/build.pkr.hcl` gives the script of a component, in the lab."""
        component = components.get(name)
        step = component.for_recipe(self.recipe)
        variables = {
            "KILN_DIR": f"/{_UPLOAD}",
            "KILN_DISTRO": self.recipe.distro.id,
            "KILN_FAMILY": self.recipe.distro.family,
            "KILN_PACKAGE_MANAGER": self.recipe.distro.package_manager,
            **step.env,
        }
        for download in step.downloads:
            variables[f"{download.env}_URL"] = download.url
            variables[f"{download.env}_SHA256"] = mirror.sha256(download.url)
            if download.version:
                variables[f"{download.env}_VERSION"] = download.version
        fingerprints = mirror.key_fingerprints()
        return variables | {variable: fingerprints[key] for variable, key in component.keys.items()}

    def mounted(self) -> contextlib.AbstractContextManager[tuple[Path, Path]]:
        """A disk over the layers: where it is mounted, and the folder of what changes on it."""
        return overlay(self.folder, self.layers)

    def run(
        self,
        name: str,
        shims: Path | None = None,
        more: Mapping[str, str] | None = None,
        beside: Callable[[Path], None] | None = None,
        over: threading.Event | None = None,
    ) -> Done:
        """Run a component's script from the present state; `shims` come first on its PATH.

        `beside` gets the folder of the changes and runs until the event `over` is set.
        """
        with self.mounted() as (root, upper):
            command = [
                *nspawn(root),
                f"--bind-ro={self.folder}/hosts:/etc/hosts",
                f"--bind-ro={self.folder}/resolv.conf:/etc/resolv.conf",
                f"--bind-ro={PROVISIONERS}:{_SCRIPTS}",
                f"--bind-ro={self.folder}/stubs:{_STUBS}",
                *([f"--bind={shims}:{SHIMS}"] if shims else []),
                "/usr/bin/env",
                f"PATH={SHIMS}:{PATH}" if shims else f"PATH={PATH}",
                *(f"{key}={text}" for key, text in self.environment(name).items()),
                *(f"{key}={text}" for key, text in (more or {}).items()),
                "/bin/bash",
                f"{_SCRIPTS}/{name}.sh",
            ]
            watching = threading.Thread(target=beside, args=(upper,)) if beside else None
            if watching:
                watching.start()
            try:
                done = subprocess.run(
                    command,
                    # /tmp is on the disk: what lies there is part of a checkpoint.
                    env={**os.environ, "SYSTEMD_NSPAWN_TMPFS_TMP": "0"},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    timeout=_PATIENCE,
                    check=False,
                )
            except subprocess.TimeoutExpired as late:
                output = late.stdout or b""
                text = output if isinstance(output, str) else output.decode(errors="replace")
                return Done(124, f"{text}\nended after {_PATIENCE} s", upper)
            finally:
                if watching and over:
                    over.set()
                    watching.join()
            return Done(done.returncode, done.stdout, upper)

    def commands(self) -> dict[str, str]:
        """Each program on the machine's PATH in its present state → its path."""
        programs = {name: f"{_STUBS}/{name}" for name in _STUB_OF}
        with self.mounted() as (root, upper):
            for folder in PATH.split(":")[1:]:
                for path in sorted((root / folder.lstrip("/")).glob("*")):
                    programs.setdefault(path.name, f"{folder}/{path.name}")
        forget(upper)
        return programs


@contextlib.contextmanager
def sandbox(lab: Lab, recipe: Recipe) -> Iterator[Sandbox]:
    """A recipe's machine as it is when its first script begins; the lab must be up."""
    # Short: the paths of all layers go into one mount option.
    with tempfile.TemporaryDirectory(prefix="kc-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        hosts = "".join(f"{lab.gateway} {host}\n" for host in mirror.vendor_hosts())
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        (folder / "resolv.conf").write_text(f"nameserver {lab.gateway}\n")
        (folder / "stubs").mkdir()
        for stub, text in _STUB_OF.items():
            (folder / "stubs" / stub).write_text(text)
            (folder / "stubs" / stub).chmod(0o755)
        mirror.prepare(recipe)
        first = folder / "upload"
        upload = first / _UPLOAD
        inputs = write_inputs(recipe, folder / "inputs")
        for part in ("runtime", "runtime-variants"):
            shutil.copytree(folder / "inputs" / part, upload / part, symlinks=True)
        ignore = shutil.ignore_patterns("__pycache__")  # other processes are writing it
        shutil.copytree(PROVISIONERS / "lib", upload / "lib", ignore=ignore, symlinks=True)
        shutil.copytree(inputs / "files", upload / "files", symlinks=True)
        base = bases.ensure(recipe.distro.id, recipe.arch)
        yield Sandbox(lab, recipe, folder, [base, first])


@contextlib.contextmanager
def overlay(folder: Path, layers: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """A disk over layers, lowest first: where it is mounted, and the folder of its changes."""
    home = Path(tempfile.mkdtemp(dir=folder))
    for part in ("upper", "work", "root"):
        (home / part).mkdir()
    lower = ":".join(map(str, reversed(layers)))
    options = f"lowerdir={lower},upperdir={home}/upper,workdir={home}/work"
    mount = ["mount", "-t", "overlay", "kiln-campaign", "-o", options, f"{home}/root"]
    subprocess.run(mount, check=True)
    try:
        yield home / "root", home / "upper"
    finally:
        subprocess.run(["umount", "--lazy", f"{home}/root"], check=True)
        shutil.rmtree(home / "work", ignore_errors=True)


def nspawn(root: Path) -> list[str]:
    """The command that runs a program in a container over that disk; its options may follow."""
    return [
        "systemd-nspawn",
        f"--directory={root}",
        "--as-pid2",
        "--pipe",
        "--quiet",
        "--register=no",
        "--keep-unit",
        "--settings=no",
        "--resolv-conf=off",
        "--timezone=off",
    ]


def forget(upper: Path) -> None:
    """Delete the changes of a run."""
    shutil.rmtree(upper.parent, ignore_errors=True)


def words(name: str) -> set[str]:
    """Every word of a component's script and of the library that may be a program."""
    files = [PROVISIONERS / f"{name}.sh", *sorted((PROVISIONERS / "lib").glob("*.sh"))]
    code = "".join(re.sub(r"^ *#.*$", "", path.read_text(), flags=re.MULTILINE) for path in files)
    return set(re.findall(r"[a-z][a-z0-9_.+-]+", code))


def asked_for(name: str) -> set[str]:
    """The programs that a script looks for before it calls them: their absence must be seen."""
    files = [PROVISIONERS / f"{name}.sh", *sorted((PROVISIONERS / "lib").glob("*.sh"))]
    code = "".join(path.read_text() for path in files)
    return set(re.findall(r"(?:command -v|type|hash) ([\w.-]+)", code))
