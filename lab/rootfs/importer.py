"""`lab.import`: use a real root filesystem as a base instead of a stand-in.

It is changed only as far as a guest of the lab requires: the lab's CA is trusted, cloud-init uses
the Ec2 datasource, and the identity of the machine that the files come from is removed.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kiln.base.errors import KilnError, operation_failed
from lab.base import folders, settings
from lab.base.shell import CommandError, run
from lab.rootfs import as_guest, bases, distros, emulation, tree
from lab.rootfs.tree import Progress
from lab.vendors.mirror import ca

# What a guest needs to boot, be reached and be provisioned: one of the paths of each line.
_NEEDED = {
    "systemd": ("usr/lib/systemd/systemd", "lib/systemd/systemd"),
    "an SSH server": ("usr/sbin/sshd",),
    "cloud-init": ("usr/bin/cloud-init",),
    "sudo": ("usr/bin/sudo",),
    "Python 3": ("usr/bin/python3",),
    "a package tool": ("usr/bin/apt-get", "usr/bin/dnf", "usr/bin/yum"),
}
AL_PACKAGES = (
    *("system-release", "systemd", "openssh-server", "openssh-clients", "cloud-init", "sudo"),
    *("python3", "iproute", "procps-ng", "curl", "ca-certificates", "gzip", "tar", "xz", "bzip2"),
    # Amazon Linux 2023's yum requires its dnf.
    *("kmod", "passwd", "rpm", "yum"),
)
_CLOUD_INIT = """\
# AMI Kiln lab only.
datasource_list: [Ec2]
datasource: {Ec2: {strict_id: false, timeout: 5, max_wait: 30}}
network: {config: disabled}
# No udev runs in a guest, so cloud-init cannot tell it of a device that is plugged in.
updates: {network: {when: [boot-new-instance]}}
"""
# What the lab's own bases have of a guest's machine: its PCI devices, settings of its kernel, and a
# journal without the kernel log.
_OF_A_GUEST = (
    "etc/systemd/journald.conf.d",
    "etc/systemd/system.conf.d",
    "etc/systemd/system/kiln-gpu-boot.service.d",
    "etc/systemd/system/kiln-gpu-select.service.d",
    "etc/systemd/system/systemd-sysctl.service.d",
    "usr/lib/kiln-lab-pci",
    "usr/lib/kiln-lab-sysctl",
)
# Certificates that programs trust, and the folder of the administrator's own.
_TRUST = {
    "etc/ssl/certs/ca-certificates.crt": "usr/local/share/ca-certificates/kiln-lab.crt",
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": "etc/pki/ca-trust/source/anchors/"
    "kiln-lab.pem",
}
# The folders in which something is changed.
_TOUCHED = (
    *("etc", "etc/ssh", "etc/ssh/sshd_config.d", "etc/cloud/cloud.cfg.d"),
    *("var/lib", "var/lib/dbus"),
    *(str(Path(name).parent) for pair in _TRUST.items() for name in pair),
)


def deb_packages() -> list[str]:
    """Return the packages that mmdebstrap installs for a guest. In Ubuntu apt is none of the
    packages of `minbase`."""
    all_ = distros.tree()
    return ["apt", *(name for name in all_["include"] if name not in all_["al_only"])]


def import_rootfs(distro: str, rootfs: Path | None, mirror: str | None) -> Path:
    """Make `rootfs` (a folder or a tar archive), or a system from `mirror`, the base of `distro`.

    It becomes the base for the processor that its programs are built for. Returns the folder of
    the new base; guests and AMIs of the old base keep that one. Raises KilnError when the files are
    another distribution or lack what a guest needs (exit status 2), and operation_failed when they
    cannot be unpacked or fetched, or this machine cannot run their programs (exit status 1).
    """
    if (rootfs is None) == (mirror is None):
        raise KilnError("specify either --rootfs FILE-OR-FOLDER or --mirror URL")
    if rootfs and not rootfs.exists():
        raise KilnError(f"{rootfs}: no such file or folder")
    return install(
        distro, None, partial(_fill, distro, rootfs, mirror), "everything: imported with lab.import"
    )


def _fill(distro: str, rootfs: Path | None, mirror: str | None, making: Path) -> None:
    spec = distros.spec(distro)
    if rootfs is not None:
        if rootfs.is_dir():
            # Before copying it.
            check(distro, spec, rootfs)
            _processor(rootfs)
        _unpack(rootfs, making)
    else:
        _fetch(distro, spec, str(mirror), making)


def install(distro: str, link: Path | None, fill: Callable[[Path], None], real: str) -> Path:
    """Make a base of the files that `fill` puts into a folder; returns its folder.

    `link` will lead to it (default: that of imported bases, for the processor of the files).
    `real` says for the marker file where they came from. Raises as `import_rootfs` does.
    """
    folders.private(settings.current().root, bases.bases_dir())
    return as_guest.call(_install, distro, link, fill, real, say=lambda _: None)


def _install(
    distro: str, link: Path | None, fill: Callable[[Path], None], real: str, say: Progress
) -> Path:
    home = bases.bases_dir()
    making = home / f".importing-{distro}-{os.getpid()}"
    try:
        fill(making)
        check(distro, distros.spec(distro), making)
        arch = _processor(making)
        emulation.ensure(arch)
        adapt(distro, arch, making, real)
    except BaseException:
        tree.delete(making)  # a tool that was killed may have left /dev mounted in it
        raise
    link = link or bases.imported_link(distro, arch)
    final = link.with_name(f"{link.name}-{time.strftime('%Y%m%d%H%M%S')}")
    folders.put(making, final)
    fresh = link.with_name(f".{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(final.name)
    fresh.replace(link)
    return final


def check(distro: str, spec: dict[str, Any], root: Path) -> None:
    """Raise KilnError unless a root filesystem is that distribution and fit for a guest."""
    file = root / "etc/os-release"
    try:
        # An absolute link would be followed on the host.
        text = (root / "usr/lib/os-release" if file.is_symlink() else file).read_text()
    except OSError:
        raise KilnError(
            f"this is not a root filesystem: it has no {file.relative_to(root)}",
            hint="give a folder or archive with etc, usr and var at its top",
        ) from None
    os_release = {
        key: value.strip("\"'")
        for key, _, value in (line.partition("=") for line in text.splitlines())
        if key
    }
    wanted = spec["os_release"]
    if any(os_release.get(key) != wanted[key] for key in ("ID", "VERSION_ID")):
        raise KilnError(
            f"this root filesystem is {os_release.get('ID', '?')} "
            f"{os_release.get('VERSION_ID', '?')}, "
            f"but {distro} is {wanted['ID']} {wanted['VERSION_ID']}",
            hint="give the distribution of these files, or other files",
        )
    missing = [name for name, paths in _NEEDED.items() if not any(_exists(root, p) for p in paths)]
    if missing:
        raise KilnError(
            f"a guest cannot be made of this root filesystem: it lacks {', '.join(missing)}",
            hint="container images lack these: install them, or use the files of a cloud image",
        )


def _processor(root: Path) -> str:
    """The processor that its systemd is built for. Raises KilnError when EC2 does not have it."""
    return emulation.arch_of(next(root / p for p in _NEEDED["systemd"] if _exists(root, p)))


def _require_inside(root: Path, folder: str) -> None:
    """Refuse files in which a folder is a link that leads out of them, to this machine's."""
    found = (root / folder).resolve()
    if not found.is_relative_to(root.resolve()):
        raise KilnError(
            f"this root filesystem has a link to {found} in the place of {folder}",
            hint="an absolute link leads to this machine's files: make it a relative one",
        )


def _exists(root: Path, path: str) -> bool:
    return os.path.lexists(root / path)


def _unpack(rootfs: Path, target: Path) -> None:
    try:
        if rootfs.is_dir():
            run("cp", "-a", "--reflink=auto", f"{rootfs}/.", str(target))
        else:
            target.mkdir()
            run("tar", "--extract", f"--file={rootfs}", f"--directory={target}",
                "--numeric-owner", "--preserve-permissions", "--xattrs", "--acls")  # fmt: skip
    except CommandError as failure:
        raise operation_failed(
            f"{rootfs} cannot be unpacked: {failure}",
            hint="it must be a folder or a tar archive (plain, gzip, xz, zstd)",
        ) from None


def _fetch(distro: str, spec: dict[str, Any], mirror: str, target: Path) -> None:
    """Install a minimal system from a package mirror with the distribution's own tool."""
    if not mirror.startswith(("http://", "https://", "file://")):
        raise KilnError(
            f"{mirror!r} is not a URL", hint="give the mirror's URL: https://… or file://…"
        )
    if spec["family"] == "al":
        raise KilnError(
            "a mirror of Amazon Linux cannot be imported: its packages' signatures are not checked",
            hint="give --rootfs, or build with --vendors real, which checks them",
        )
    try:
        suite = spec["os_release"]["VERSION_CODENAME"]
        components = "main universe" if spec["os_release"]["ID"] == "ubuntu" else "main"
        run("mmdebstrap", "--variant=minbase", "--mode=root",
            '--aptopt=APT::Install-Recommends "false"', f"--include={','.join(deb_packages())}",
            suite, str(target), f"deb {mirror} {suite} {components}")  # fmt: skip
    except CommandError as failure:
        last = [line for line in str(failure).splitlines() if line.strip()][-3:]
        raise operation_failed(
            f"no {distro} system could be installed from {mirror}: {' / '.join(last)}",
            hint="is it a mirror of that distribution, reachable from here?",
        ) from None
    except FileNotFoundError as failure:
        raise operation_failed(f"{failure.filename} is not installed") from None


def adapt(distro: str, arch: str, root: Path, real: str) -> None:
    """Make the few changes that a guest of the lab needs; runs no program of the files."""
    folders_of_files = [
        path.parent.relative_to(distros.FILES / "common")
        for name in _OF_A_GUEST
        for path in (distros.FILES / "common" / name).rglob("*")
    ]
    for folder in (*_TOUCHED, *dict.fromkeys(map(str, folders_of_files))):
        _require_inside(root, folder)
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    bases.replace(root / "etc/machine-id", "")
    for name in ("etc/hostname", "etc/resolv.conf", "var/lib/dbus/machine-id"):
        (root / name).unlink(missing_ok=True)
    shutil.rmtree(root / "var/lib/cloud", ignore_errors=True)
    bases.replace(root / "etc/cloud/cloud.cfg.d/99_kiln_lab.cfg", _CLOUD_INIT)
    for name in _OF_A_GUEST:
        bases.copy_tree(distros.FILES / "common" / name, root / name, {})
    # The distribution's own tool makes the bundle anew from the anchors, with this one.
    certificate = ca.ensure().certificate.read_text()
    for bundle, anchor in _TRUST.items():
        if (root / bundle).is_file():
            bases.replace(root / anchor, certificate)
            text = (root / bundle).read_text(encoding="utf-8")
            bases.replace(root / bundle, f"{text.rstrip()}\n{certificate}")
    # OpenSSH before 8.2 has no Include, and accepts ssh-rsa by default.
    if "sshd_config.d" in (root / "etc/ssh/sshd_config").read_text():
        bases.replace(
            root / "etc/ssh/sshd_config.d/10-kiln-lab.conf",
            (distros.FILES / "common/etc/ssh/sshd_config.d/10-kiln-lab.conf").read_text(),
        )
    emulated, changes = bases.for_processor(root, arch)
    marker = {
        "what": "AMI Kiln lab base: a guest for rehearsals, never to be shipped",
        "distro": distro,
        "stand_in": False,
        "real": [real],
        "stands_in_for": emulated,
        "lab_only": [
            "SSH accepts ssh-rsa",
            "the lab's CA is trusted",
            "cloud-init asks Ec2 only, and does not watch for devices",
            "PCI devices are the instance type's, unless a real driver is installed",
            "settings of the kernel are files of the guest",
            *changes,
        ],
    }
    bases.replace(root / bases.MARKER, json.dumps(marker, indent=2) + "\n")
