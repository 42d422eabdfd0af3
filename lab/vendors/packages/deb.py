"""Debian packages and their index."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from lab.vendors.packages.model import File, Package

_SCRIPTS = {"post": "postinst", "preun": "prerm", "postun": "postrm"}
_ARCH = {"noarch": "all", "x86_64": "amd64", "aarch64": "arm64"}
_EPOCH = 1700000000


def build(packages: Iterable[Package], target: Path) -> list[Path]:
    """Build all packages into `target`; returns their files."""
    target.mkdir(parents=True, exist_ok=True)
    return [_build(package, target) for package in packages]


def version(package: Package) -> str:
    """Version with epoch and revision, as dpkg writes it."""
    epoch = f"{package.epoch}:" if package.epoch else ""
    return f"{epoch}{package.version}{f'-{package.release}' if package.release else ''}"


def architecture(arch: str) -> str:
    """The Debian name of `uname -m`'s machine."""
    return _ARCH[arch]


def control(package: Package) -> str:
    """The control file."""
    fields = {
        "Package": package.name,
        "Version": version(package),
        "Architecture": _ARCH[package.arch],
        "Maintainer": "AMI Kiln lab <lab@invalid>",
        "Section": "misc",
        "Priority": "optional",
        "Depends": ", ".join(package.requires),
        "Provides": ", ".join(package.provides),
        "Conflicts": ", ".join(package.conflicts),
        "Replaces": ", ".join(package.obsoletes),
        "Description": package.summary,
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)


def _build(package: Package, target: Path) -> Path:
    scripts = {
        f"./{_SCRIPTS[when]}": File(f"#!/bin/sh\nset -e\n{text}".encode(), 0o755)
        for when, text in package.scripts.items()
    }
    metadata = {"./control": File(control(package).encode()), **scripts}
    if package.config:
        metadata["./conffiles"] = File("".join(f"{path}\n" for path in package.config).encode())
    data = {f".{path}": file for path, file in package.files.items()}
    plain = version(package).split(":", 1)[-1]
    path = target / f"{package.name}_{plain}_{_ARCH[package.arch]}.deb"
    path.write_bytes(
        _ar(
            {
                "debian-binary": b"2.0\n",
                "control.tar.gz": tar_gz(metadata),
                "data.tar.gz": tar_gz(data),
            }
        )
    )
    return path


def tar_gz(files: dict[str, File]) -> bytes:
    """A reproducible .tar.gz of files and their parent folders."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1, mtime=_EPOCH) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for folder in _folders(files):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, _EPOCH
            archive.addfile(entry)
        for path, file in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.mtime = _EPOCH
            if file.link is not None:
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, file.link, 0o777
                archive.addfile(entry)
            else:
                entry.mode, entry.size = file.mode, len(file.content)
                archive.addfile(entry, io.BytesIO(file.content))
    return buffer.getvalue()


def _folders(files: Iterable[str]) -> list[str]:
    folders = {
        str(parent)
        for path in files
        for parent in Path(path).parents
        if str(parent) not in (".", "/")
    }
    dotted = any(path.startswith("./") for path in files)
    return sorted(f"./{folder}" if dotted else folder for folder in folders)


def _ar(members: dict[str, bytes]) -> bytes:
    """An `ar` archive: a 60-byte header before each member, padded to an even length."""
    packed = b"!<arch>\n"
    for name, content in members.items():
        packed += f"{name:<16}{_EPOCH:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        packed += content + b"\n" * (len(content) % 2)
    return packed


def index(packages: Iterable[Package], folder: Path, prefix: str = "") -> str:
    """The Packages file of packages in `folder`; `prefix` is put before their file names."""
    stanzas = []
    for package in packages:
        plain = version(package).split(":", 1)[-1]
        name = f"{package.name}_{plain}_{_ARCH[package.arch]}.deb"
        content = (folder / name).read_bytes()
        stanzas.append(
            f"{control(package)}Filename: {prefix}{name}\nSize: {len(content)}\n"
            f"SHA256: {hashlib.sha256(content).hexdigest()}\n"
        )
    return "\n".join(stanzas)


def release(files: dict[str, bytes], **fields: str) -> str:
    """The Release file for index files, path → content."""
    lines = [f"{name}: {value}" for name, value in fields.items()]
    lines += ["Date: Tue, 14 Nov 2023 22:13:20 UTC", "SHA256:"]
    lines += [
        f" {hashlib.sha256(content).hexdigest()} {len(content)} {path}"
        for path, content in sorted(files.items())
    ]
    return "\n".join(lines) + "\n"
