"""The Packer program: found, or fetched, and asked what needs no build."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kiln.base import needs, processes
from kiln.base.account import mirrored
from kiln.base.errors import KilnError, operation_failed
from kiln.base.versions import at_least, below, newest, same
from kiln.facts.tables import http_reason, table

FOLDER_1_6 = "packer-1.6"
# For the rehearsal of `--target aws` on a machine without a network.
TESTS_ALLOW_1_6 = "KILN_TESTS_ALLOW_PACKER_1_6_IN_AWS"
_INSTALL_PAGE = "https://developer.hashicorp.com/packer/install"
# HashiCorp's words for this machine's processor.
_PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
# Seconds to connect, and between two pieces of an answer.
_TIMEOUT = (10, 30)

# The values that `validate` uses for variables without a default.
EXAMPLE_VARIABLES: dict[str, Any] = {
    "source_ami": "ami-00000000000000000",
    "ssh_source_cidrs": ["192.0.2.1/32"],
}


@dataclass(frozen=True)
class Packer:
    """A Packer binary. `plugin`: the version of its amazon plugin, empty if it has none that fits
    or the builders are compiled in; `plugin_folder`: where that is, if not in Packer's own place.
    """

    path: Path
    version: str
    plugin: str = ""
    plugin_folder: Path | None = None

    @property
    def has_plugins(self) -> bool:
        """Return True if it loads builders as plugins, and reads the whole folder."""
        return at_least(self.version, table("packer")["minimum"])

    @property
    def template(self) -> str:
        """The path that it reads, relative to an AMI's folder."""
        return "." if self.has_plugins else FOLDER_1_6

    def environment(self, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables (default: the process's own) with those for Packer added: no call to
        HashiCorp's version check, no colors, and the plugin's folder.
        """
        own = {"CHECKPOINT_DISABLE": "1", "NO_COLOR": "1"}
        if self.plugin_folder:
            own["PACKER_PLUGIN_PATH"] = str(self.plugin_folder)
        return {**(os.environ if variables is None else variables), **own}

    def __str__(self) -> str:
        plugin = f", plugin amazon {self.plugin or 'not installed'}" if self.has_plugins else ""
        return f"Packer {self.version} ({self.path}){plugin}"


def find_packer(
    *, in_aws: bool = False, install: bool = True, say: Callable[[str], None] = lambda text: None
) -> Packer:
    """Return the Packer that `KILN_PACKER` names, or the first on PATH that fits.

    Debian 12's 1.6.6 fits the lab only, and is installed there if there is none. Newer ones need
    the amazon plugin. What is missing for AWS, the plugin for any target, and Packer where apt-get
    has none, is fetched into the cache. Nothing is installed or fetched if `install` is false.
    """
    minimum, lab = table("packer")["minimum"], table("packer")["lab"]
    for_lab = not in_aws or bool(os.environ.get(TESTS_ALLOW_1_6))
    named = os.environ.get("KILN_PACKER")
    if for_lab and not named and not [*_cache().glob("packer_*.zip")]:
        with suppress(KilnError):
            needs.ensure("packer", install=install, say=say)
    refused = []
    for path in [Path(named).absolute()] if named else on_path("packer"):
        version = _version_of(path)
        if version is None:
            refused.append(f"{path} is not HashiCorp's Packer")
        elif below(version, minimum) and not (for_lab and same(version, lab)):
            refused.append(f"Packer {version} at {path} is too old")
        else:
            return _with_plugin(Packer(path, version), install, say)
    if named:
        raise operation_failed(
            refused[0],
            hint=f"let KILN_PACKER name {minimum} or newer ({_INSTALL_PAGE}), or unset it",
        )
    for reason in refused:
        say(reason)
    path = _fetched("packer", _cache(), install, say)
    version = table("packer")["releases"]["packer"]["version"]
    return _with_plugin(Packer(path, version), install, say)


def command(
    packer: Packer,
    verb: str,
    *,
    variables: Mapping[str, Any] | None = None,
    var_files: Sequence[Path] = (),
    flags: Sequence[str] = (),
) -> list[str]:
    """Return the command line of `packer build` or `packer validate` in an AMI's folder.

    Lists, maps and booleans in `variables` are written in Packer's syntax.
    """
    argv = [str(packer.path), verb, *flags]
    argv += [f"-var-file={path}" for path in var_files]
    for name, value in (variables or {}).items():
        argv += ["-var", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return [*argv, packer.template]


def ask_packer(
    packer: Packer, argv: Sequence[str], folder: Path | None = None, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a Packer command that builds nothing in `folder` (default: the current one)."""
    # Packer's wrapper process writes its log to TMPDIR, and only it removes it.
    with tempfile.TemporaryDirectory(prefix="kiln-packer-", dir="/tmp") as scratch:
        environment = packer.environment({**os.environ, "TMPDIR": scratch})
        return processes.run(argv, cwd=folder, env=environment, timeout=timeout)


def on_path(name: str) -> list[Path]:
    """Return each program of that name once."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = (shutil.which(name, path=folder or os.curdir) for folder in folders)
    return [Path(path) for path in dict.fromkeys(found) if path]


def _version_of(path: Path) -> str | None:
    """Return the version of HashiCorp's Packer; None if the binary is something else."""
    try:
        done = ask_packer(Packer(path, "0"), [str(path), "version"], timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"^Packer v(\d+\.\d+\.\d+)", done.stdout, re.MULTILINE)
    return match[1] if match else None


def _with_plugin(packer: Packer, install: bool, say: Callable[[str], None]) -> Packer:
    """Return Packer with the newest plugin on this machine that fits, or with the pinned one."""
    if not packer.has_plugins:
        return packer
    done = ask_packer(packer, [str(packer.path), "plugins", "installed"])
    found = re.findall(r"packer-plugin-amazon_v(\d+\.\d+\.\d+)_", done.stdout)
    wanted = table("packer")["plugin"]
    floor, ceiling = wanted["floor"], wanted["ceiling"]
    if plugin := newest(v for v in found if at_least(v, floor) and below(v, ceiling)):
        return replace(packer, plugin=plugin)
    folder = _cache() / "plugins"
    binary = _fetched("plugin", folder / table("packer")["plugin"]["source"], install, say)
    # From 1.11 on Packer loads no plugin without this.
    checksum = _sha256(binary.read_bytes()).encode()
    _put(binary.with_name(f"{binary.name}_SHA256SUM"), checksum)
    version = table("packer")["releases"]["plugin"]["version"]
    return replace(packer, plugin=version, plugin_folder=folder)


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "ami-kiln", "packer")


def _fetched(name: str, folder: Path, install: bool, say: Callable[[str], None]) -> Path:
    """Return the program of a pinned release in `folder`, as its archive of the pinned hash has it.

    Archive and program are compared at each call: others may have written to the cache since.
    """
    release = table("packer")["releases"][name]
    kind = f"{platform.system().lower()}_{_PROCESSORS.get(platform.machine(), platform.machine())}"
    values = {"version": release["version"], "platform": kind}
    url = mirrored(release["url"].format(**values))
    file, sha256 = release["file"].format(**values), release["sha256"].get(kind)
    archive = _cache() / urlsplit(url).path.rpartition("/")[2]
    problem = ""
    if sha256 is None:
        problem = f"no hash of it is known for {kind}"
    elif not archive.is_file() or _sha256(archive.read_bytes()) != sha256:
        problem = "--no-install was given"
        if install:
            say(f"fetching {url}")
            problem = _fetch(url, sha256, archive)
    if problem:
        facts = table("packer")
        raise operation_failed(
            f"{archive.name} is needed, and {problem}",
            hint=f"install Packer {facts['minimum']} or newer with its amazon plugin "
            f"{facts['plugin']['floor']} ({_INSTALL_PAGE}), or put {url} at {archive}",
        )
    program = folder / (f"{file}-{release['version']}" if name == "packer" else file)
    with zipfile.ZipFile(archive) as zipped:
        _put(program, zipped.read(file), mode=0o755)
    return program


def _fetch(url: str, sha256: str, archive: Path) -> str:
    """Keep the archive if it has the hash. Return why not, or nothing."""
    import requests

    try:
        answer = requests.get(url, timeout=_TIMEOUT)
        answer.raise_for_status()
    except requests.RequestException as error:
        return f"{urlsplit(url).netloc} does not answer: {http_reason(error)}"
    found = _sha256(answer.content)
    if found != sha256:
        return f"{url} has sha256 {found}, expected {sha256}"
    _put(archive, answer.content)
    return ""


def _put(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file unless it has the content; a Packer that runs finds it whole."""
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder, "fresh")
        fresh.write_bytes(content)
        fresh.chmod(mode)
        fresh.replace(path)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
