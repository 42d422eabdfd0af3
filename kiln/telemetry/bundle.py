"""Telemetry for running instances: one self-contained installer script.

templates/telemetry/installer.sh does the work on the machine. This module packs its files: the
event monitor from runtime/ and the agent's configuration for each
range of agent versions that needs a different one.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
import tarfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from kiln import facts
from kiln.base.paths import RUNTIME, TEMPLATES
from kiln.base.templates import render
from kiln.base.versions import at_least, key
from kiln.base.vocabulary import UNAME_OF_DEB
from kiln.telemetry.agent import agent_files
from kiln.telemetry.settings import Telemetry, telemetry_facts

# The agent's package: distribution, Debian's word for `uname -m`, version.
_PACKAGE = re.compile(r"/([a-z_]+)/(amd64|arm64)/([^/]+)/amazon-cloudwatch-agent\.(?:rpm|deb)$")
Row = tuple[str, ...]


def agent_packages(files: Mapping[str, str]) -> list[Row]:
    """The agent's newest package for each system of the bundle, among files of amis.lock.yaml by
    URL → SHA-256: `ID VERSION_ID` (`ubuntu 22.04`), `uname -m`, URL, SHA-256."""
    newest: dict[tuple[str, str], tuple[tuple[int, ...], str, str]] = {}
    for url, sha256 in files.items():
        if not (match := _PACKAGE.search(url)):
            continue
        folder, arch, version = match.groups()
        for entry in telemetry_facts()["bundle"]["distros"].values():
            if entry["folder"] == folder:
                system = (f"{entry['id']} {entry['version']}", UNAME_OF_DEB[arch])
                package = (key(version), url, sha256)
                newest[system] = max(newest.get(system, package), package)
    return [(*system, url, sha256) for system, (_, url, sha256) in newest.items()]


def write_bundle(out: Path, settings: Telemetry, packages: Iterable[Row] = ()) -> str:
    """Write the installer to `out`, executable; return its SHA-256."""
    text = bundle_script(settings, packages)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="ascii")
    out.chmod(0o755)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def bundle_script(settings: Telemetry, packages: Iterable[Row] = ()) -> str:
    """The installer's text. The same input gives the same bytes."""
    payload = _tar(_members(settings, packages))
    return render(
        "telemetry/bundle.sh.j2",
        installer=(TEMPLATES / "telemetry" / "installer.sh").read_text(encoding="ascii"),
        sha256=hashlib.sha256(payload).hexdigest(),
        payload=textwrap.fill(base64.b64encode(payload).decode("ascii"), 76),
    )


def runtime_files(root: Path = RUNTIME) -> dict[str, Path]:
    """Path on the machine (no leading slash) → file, for the files of `root` in the bundle."""
    return {
        str(path.relative_to(root)): path
        for pattern in telemetry_facts()["bundle"]["files"]
        for path in sorted(root.glob(pattern))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _members(settings: Telemetry, packages: Iterable[Row]) -> Iterator[tuple[str, bytes, int]]:
    """The files of the payload: name, content and mode."""
    for target, path in runtime_files().items():
        mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
        yield f"files/{target}", path.read_bytes(), mode
    # The agent versions at which the configuration changes.
    since = telemetry_facts()["agent"]["since"]
    for step in {step for step in since.values() if at_least(step, since["nvidia_gpu"])}:
        # The machine brings its own driver; files that need one stay in kiln.d until it is there.
        for target, text in agent_files(settings, driver="any", agent_version=step).items():
            yield f"agent/{step}/{target}", text.encode(), 0o644
    distros = telemetry_facts()["bundle"]["distros"]
    kinds = {name: facts.distro(name)["package_manager"] == "apt" for name in distros}
    systems = [
        (entry["id"], entry["version"], "deb" if kinds[name] else "rpm")
        for name, entry in distros.items()
    ]
    yield "distros.tsv", _table(systems), 0o644
    yield "packages.tsv", _table(sorted(packages)), 0o644


def _table(rows: Iterable[Row]) -> bytes:
    return "".join("\t".join(row) + "\n" for row in rows).encode("ascii")


def _tar(members: Iterable[tuple[str, bytes, int]]) -> bytes:
    """A reproducible tar.gz: sorted, without times or owners."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content, mode in sorted(members):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), compresslevel=9, mtime=0)
