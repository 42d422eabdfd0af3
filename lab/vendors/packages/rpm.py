"""RPM packages, built by rpmbuild, many in one run because each start of rpmbuild takes 0.3 s."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.base.shell import run
from lab.vendors.packages.model import File, Package

_SCRIPTS = {"post": "%post", "preun": "%preun", "postun": "%postun", "posttrans": "%posttrans"}
_MACROS = {
    "_build_name_fmt": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
    # Stand-ins have nothing to strip, compress or byte-compile, and no dependencies to detect.
    "__os_install_post": "%{nil}",
    "_binary_payload": "w1.gzdio",
    # Builds are reproducible: the same input gives the same bytes.
    "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",
    "_buildhost": "kiln-lab",
    "_build_id_links": "none",
}
_ANY = "noarch"


def build(packages: Sequence[Package], target: Path) -> list[Path]:
    """Build all packages into `target`; returns their files. Raises CommandError."""
    target.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda batch: _build_batch(batch, target), batches(packages)))
    return sorted(target.glob("*.rpm"))


def batches(packages: Iterable[Package]) -> list[list[Package]]:
    """Split packages into groups that fit in one spec: no name twice, no path with two contents.

    All packages are for the same machine, or noarch.
    """
    groups: list[tuple[set[str], dict[str, File], list[Package]]] = []
    for package in packages:
        fitting = (batch for batch in groups if _fits(package, batch[0], batch[1]))
        batch = next(fitting, None)
        if batch is None:
            batch = (set(), {}, [])
            groups.append(batch)
        batch[0].add(package.name)
        batch[1].update(package.files)
        batch[2].append(package)
    return [members for _, _, members in groups]


def _fits(package: Package, names: set[str], files: dict[str, File]) -> bool:
    clash = any(files.get(path, file) != file for path, file in package.files.items())
    return package.name not in names and not clash


def _build_batch(packages: list[Package], target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kiln-rpm-") as folder:
        home = Path(folder)
        for package in packages:
            lay_out(package.files, home / "files")
        (home / "spec").write_text(_spec(packages, home / "files"))
        macros = {**_MACROS, "_topdir": folder, "_rpmdir": str(target), "_dbpath": f"{folder}/db"}
        defines = [
            word for name, value in macros.items() for word in ("--define", f"{name} {value}")
        ]
        arch = next((p.arch for p in packages if p.arch != _ANY), _ANY)
        command = ["rpmbuild", "-bb", "--quiet", f"--target={arch}-linux"]
        run("env", "SOURCE_DATE_EPOCH=1700000000", *command, *defines, str(home / "spec"))


def lay_out(files: dict[str, File], root: Path) -> None:
    """Write files below `root`, at the paths where they are installed."""
    root.mkdir(parents=True, exist_ok=True)
    for path, file in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.link is not None:
            if not target.is_symlink():
                target.symlink_to(file.link)
        else:
            target.write_bytes(file.content)
            target.chmod(file.mode)


def _spec(packages: list[Package], files: Path) -> str:
    """A spec whose subpackages are the packages; its main package is not built."""
    lines = [
        "Name: kiln-lab-batch",
        "Version: 1",
        "Release: 1",
        "Summary: batch",
        "License: MIT",
        "AutoReqProv: no",
        "%description",
        "batch",
    ]
    for package in packages:
        lines += _section(package)
    # rpmbuild empties the build root before %install.
    lines += ["%install", f"rm -rf %{{buildroot}}; mv {files} %{{buildroot}}"]
    return "\n".join(lines) + "\n"


def _section(package: Package) -> list[str]:
    name = f"-n {package.name}"
    lines = [
        f"%package {name}",
        f"Version: {package.version}",
        f"Release: {package.release}",
        f"Summary: {package.summary}",
        "AutoReqProv: no",
    ]
    if package.arch == _ANY:
        lines.append("BuildArch: noarch")
    if package.epoch:
        lines.append(f"Epoch: {package.epoch}")
    for tag in ("requires", "provides", "conflicts", "obsoletes"):
        lines += [f"{tag.capitalize()}: {value}" for value in getattr(package, tag)]
    lines += [f"%description {name}", package.summary]
    for when, script in package.scripts.items():
        lines += [f"{_SCRIPTS[when]} {name}", script.replace("%", "%%")]
    lines += [f"%files {name}"]
    for path, file in package.files.items():
        attributes = "" if file.link is not None else f"%attr({file.mode:o},root,root) "
        if path in package.config:
            attributes += "%config(noreplace) "
        lines.append(f"{attributes}{path}")
    return lines


def index(folder: Path) -> None:
    """Write reproducible repodata with createrepo_c."""
    shutil.rmtree(folder / "repodata", ignore_errors=True)
    run("createrepo_c", "--quiet", "--no-database", "--revision=1", "--set-timestamp-to-revision",
        "--compatibility", str(folder))  # fmt: skip
