"""Telemetry for running instances: one self-contained installer script.

`templates/telemetry/bundle.sh` does the work on the machine. This module packs its files into it:
the event monitor from `runtime/` and the agent's configuration for
each range of agent versions that needs a different one.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kiln import facts
from kiln.base.errors import KilnError
from kiln.base.overlay import shown_path
from kiln.base.paths import RUNTIME, TEMPLATES, lock_file
from kiln.base.vocabulary import UNAME_OF_DEB
from kiln.facts.lock_file import restore
from kiln.telemetry import Telemetry, agent_files
from kiln.telemetry.facts import telemetry_facts, version_parts

_SKIPPED_PARTS = {"__pycache__"}
_BASE64_WIDTH = 76
_PACKAGE = re.compile(r"/amazon-cloudwatch-agent\.(?:rpm|deb)$")
# The folders of its URL: distribution, Debian's word for `uname -m`, version.
_FOLDERS = re.compile(r"/([a-z_]+)/(amd64|arm64)/([^/]+)/[^/]+$")


@dataclass(frozen=True)
class AgentPackage:
    """The agent's package for one system: `distro` is `ID VERSION_ID` (`ubuntu 22.04`), `machine`
    is `uname -m`."""

    distro: str
    machine: str
    url: str
    sha256: str


def agent_packages(files: Mapping[str, str]) -> list[AgentPackage]:
    """The agent's newest package for each system of the bundle, among files of amis.lock.yaml by
    URL → SHA-256. Raises KilnError (exit status 2) for a URL that does not say whose it is.
    """
    newest: dict[tuple[str, str], tuple[tuple[int, ...], AgentPackage]] = {}
    for url, sha256 in files.items():
        if not _PACKAGE.search(url):
            continue
        if not (match := _FOLDERS.search(url)):
            raise KilnError(
                f"{shown_path(lock_file())}: {url} does not name the distribution and the "
                "processor of the agent's package",
                hint=restore(),
            )
        folder, machine, version = match.groups()
        for entry in telemetry_facts()["bundle"]["distros"].values():
            if entry["folder"] != folder:
                continue
            package = AgentPackage(
                f"{entry['id']} {entry['version']}", UNAME_OF_DEB[machine], url, sha256
            )
            candidate = (version_parts(version), package)
            key = (package.distro, package.machine)
            newest[key] = max(newest.get(key, candidate), candidate, key=lambda pair: pair[0])
    return [package for _, package in newest.values()]


def write_bundle(out: Path, settings: Telemetry, packages: Iterable[AgentPackage] = ()) -> str:
    """Write the installer to `out`, executable; returns its SHA-256.

    The same input gives the same bytes. Raises KilnError (exit status 2) if `runtime/` is
    incomplete, or if a package is for a system that the bundle does not support.
    """
    text = bundle_script(settings, packages)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="ascii")
    out.chmod(0o755)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def bundle_script(settings: Telemetry, packages: Iterable[AgentPackage] = ()) -> str:
    """The installer's text. Raises KilnError (exit status 2) as `write_bundle` does."""
    payload = _tar(_members(settings, list(packages)))
    encoded = base64.b64encode(payload).decode("ascii")
    lines = [encoded[i : i + _BASE64_WIDTH] for i in range(0, len(encoded), _BASE64_WIDTH)]
    template = (TEMPLATES / "telemetry" / "bundle.sh").read_text(encoding="ascii")
    return template.replace("@PAYLOAD_SHA256@", hashlib.sha256(payload).hexdigest()).replace(
        "@PAYLOAD@", "\n".join(lines)
    )


def runtime_files(root: Path = RUNTIME) -> dict[str, Path]:
    """Path on the machine (no leading slash) → file, for the files of `root` in the bundle."""
    patterns = telemetry_facts()["bundle"]["files"]
    return {
        str(path.relative_to(root)): path
        for pattern in patterns
        for path in sorted(root.glob(pattern))
        if path.is_file() and not _SKIPPED_PARTS & set(path.parts)
    }


def _members(settings: Telemetry, packages: list[AgentPackage]) -> Iterator[tuple[str, bytes, int]]:
    files = runtime_files()
    if "etc/systemd/system/kiln-xid.service" not in files:
        raise KilnError(
            "runtime/ has no etc/systemd/system/kiln-xid.service to bundle",
            hint="is the checkout complete? `git status runtime` shows what is missing",
        )
    for target, path in files.items():
        yield f"files/{target}", path.read_bytes(), _mode(path)
    for oldest in _agent_steps():
        # The machine brings its own driver; files that need one stay in kiln.d until it is there.
        for target, text in agent_files(settings, driver="any", agent_version=oldest).items():
            yield f"agent/{oldest}/{target}", text.encode(), 0o644
    distros = [
        (entry["id"], entry["version"], package_kind(name))
        for name, entry in telemetry_facts()["bundle"]["distros"].items()
    ]
    yield "distros.tsv", _table(distros), 0o644
    systems = {f"{distro} {number}" for distro, number, _ in distros}
    for package in packages:
        if package.distro not in systems:
            raise KilnError(
                f"the bundle refuses {package.distro}, so it needs no agent package for it",
                hint=f"known: {', '.join(sorted(systems))}",
            )
    rows = [(p.distro, p.machine, p.url, p.sha256) for p in packages]
    yield "packages.tsv", _table(sorted(rows)), 0o644


def package_kind(name: str) -> str:
    """The kind of agent package that a distribution takes."""
    return "deb" if facts.distro(name)["package_manager"] == "apt" else "rpm"


def _agent_steps() -> list[str]:
    """The agent versions at which the configuration changes, oldest supported first."""
    since: dict[str, str] = telemetry_facts()["agent"]["since"]
    oldest = version_parts(since["nvidia_gpu"])
    return sorted(
        {step for step in since.values() if version_parts(step) >= oldest}, key=version_parts
    )


def _table(rows: Iterable[tuple[str, ...]]) -> bytes:
    return "".join("\t".join(row) + "\n" for row in rows).encode("ascii")


def _mode(path: Path) -> int:
    return 0o755 if path.stat().st_mode & 0o100 else 0o644


def _tar(members: Iterable[tuple[str, bytes, int]]) -> bytes:
    """A reproducible tar.gz: sorted, without times or owners."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content, mode in sorted(members):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), compresslevel=9, mtime=0)
