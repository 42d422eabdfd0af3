"""`lab.import`: a real root filesystem in the place of a stand-in base.

What is brought stays as it is, but for what a guest of the lab needs: the lab's CA, cloud-init
told to ask the Ec2 datasource, and no identity of the machine that the files come from.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from kiln.base.errors import KilnError, operation_failed
from lab import bases, distros, emulation
from lab.mirror import ca
from lab.shell import CommandError, run

# Without these a guest cannot boot, be reached or be provisioned. Any one of a line will do.
_NEEDED = {
    "systemd": ("usr/lib/systemd/systemd", "lib/systemd/systemd"),
    "an SSH server": ("usr/sbin/sshd",),
    "cloud-init": ("usr/bin/cloud-init",),
    "sudo": ("usr/bin/sudo",),
    "Python 3": ("usr/bin/python3",),
}
_AL_PACKAGES = (
    "system-release systemd openssh-server openssh-clients cloud-init sudo python3 iproute "
    "procps-ng curl ca-certificates gzip tar xz bzip2 kmod passwd rpm"
)
_CLOUD_INIT = """\
# AMI Kiln lab only.
datasource_list: [Ec2]
datasource: {Ec2: {strict_id: false, timeout: 5, max_wait: 30}}
network: {config: disabled}
"""


def import_rootfs(distro: str, rootfs: Path | None, mirror: str | None) -> Path:
    """Make `rootfs` (a folder or a tar archive), or what `mirror` has, the base of `distro`.

    It is the base for the processor that its own programs are for. Returns the folder that is the
    base from now on. Guests and AMIs that stand on the old base keep it. Raises KilnError when the
    files are another distribution than was said or lack what a guest needs (exit status 2), and
    when they cannot be unpacked or fetched, or their programs cannot run here (exit status 1).
    """
    if (rootfs is None) == (mirror is None):
        raise KilnError(
            "say where the root filesystem comes from",
            hint="either --rootfs FILE-OR-FOLDER or --mirror URL, not both",
        )
    spec = distros.spec(distro)
    if os.geteuid() != 0:
        raise operation_failed("importing a root filesystem takes root", hint="run with sudo")
    home = bases.bases_dir()
    home.mkdir(parents=True, exist_ok=True)
    making = home / f".importing-{distro}-{os.getpid()}"
    try:
        if rootfs is not None:
            if rootfs.is_dir():
                check(distro, spec, rootfs)  # before copying it
            _unpack(rootfs, making)
        else:
            _fetch(distro, spec, str(mirror), making)
        check(distro, spec, making)
        arch = _processor(making)
        emulation.ensure(arch)
        _adapt(distro, arch, making)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    link = bases.imported_link(distro, arch)
    final = link.with_name(f"{link.name}-{time.strftime('%Y%m%d%H%M%S')}")
    making.rename(final)
    fresh = link.with_name(f".{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(final.name)
    fresh.replace(link)
    return final


def check(distro: str, spec: dict[str, Any], root: Path) -> None:
    """KilnError unless a root filesystem is that distribution and a guest can be made of it."""
    file = root / "etc/os-release"
    try:
        # An absolute link would lead out of the root filesystem.
        text = (root / "usr/lib/os-release" if file.is_symlink() else file).read_text()
    except OSError:
        raise KilnError(
            f"this is no root filesystem: it has no {file.relative_to(root)}",
            hint="give the folder or archive whose top holds etc, usr and var",
        ) from None
    found = {
        key: value.strip("\"'")
        for key, _, value in (line.partition("=") for line in text.splitlines())
        if key
    }
    wanted = spec["os_release"]
    if any(found.get(key) != wanted[key] for key in ("ID", "VERSION_ID")):
        raise KilnError(
            f"this root filesystem is {found.get('ID', '?')} {found.get('VERSION_ID', '?')}, "
            f"but {distro} is {wanted['ID']} {wanted['VERSION_ID']}",
            hint="name the distribution it is, or bring the right one",
        )
    missing = [
        name for name, paths in _NEEDED.items() if not any(_is_there(root, p) for p in paths)
    ]
    if missing:
        raise KilnError(
            f"a guest cannot be made of this root filesystem: it lacks {', '.join(missing)}",
            hint="a container image lacks these; install them in it, or take a cloud image's files",
        )


def _processor(root: Path) -> str:
    """What its systemd is a program for. Raises KilnError for one that EC2 does not have."""
    return emulation.of(next(root / p for p in _NEEDED["systemd"] if _is_there(root, p)))


def _is_there(root: Path, path: str) -> bool:
    return os.path.lexists(root / path)


def _unpack(rootfs: Path, target: Path) -> None:
    if not rootfs.exists():
        raise KilnError(f"{rootfs}: no such file or folder")
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
            hint="it has to be a folder or a tar archive (plain, gzip, xz, zstd)",
        ) from None


def _fetch(distro: str, spec: dict[str, Any], mirror: str, target: Path) -> None:
    """Install a minimal system from a package mirror with the distribution's own tool."""
    if not mirror.startswith(("http://", "https://", "file://")):
        raise KilnError(f"{mirror!r} is no mirror", hint="give its URL: https://… or file://…")
    try:
        if spec["family"] == "al":
            _dnf(spec["os_release"]["VERSION_ID"], mirror, target)
        else:
            packages = [p for p in distros.tree()["include"] if p not in distros.tree()["al_only"]]
            suite = spec["os_release"]["VERSION_CODENAME"]
            components = "main universe" if spec["os_release"]["ID"] == "ubuntu" else "main"
            run("mmdebstrap", "--variant=minbase", "--mode=root",
                '--aptopt=APT::Install-Recommends "false"', f"--include={','.join(packages)}",
                suite, str(target), f"deb {mirror} {suite} {components}")  # fmt: skip
    except CommandError as failure:
        last = [line for line in str(failure).splitlines() if line.strip()][-3:]
        raise operation_failed(
            f"{mirror} did not give a {distro} system: {' / '.join(last)}",
            hint="is it a mirror of that distribution, reachable from here?",
        ) from None
    except FileNotFoundError as failure:
        raise operation_failed(f"{failure.filename} is not installed") from None


def _dnf(release: str, mirror: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kiln-import-") as folder:
        # Debian's rpm keeps its database in $HOME; in the new system it has to be in its place.
        (Path(folder) / ".rpmmacros").write_text("%_dbpath /var/lib/rpm\n")
        target.mkdir()
        run("env", f"HOME={folder}", "dnf", "-y", "-q", f"--installroot={target}",
            f"--releasever={release}", f"--repofrompath=kiln-import,{mirror}",
            "--repo=kiln-import", "--setopt=install_weak_deps=False", "--nogpgcheck",
            "--setopt=retries=2", "--setopt=timeout=20",
            "install", *_AL_PACKAGES.split())  # fmt: skip


def _adapt(distro: str, arch: str, root: Path) -> None:
    """The few things that make it a guest of the lab."""
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    bases.replace(root / "etc/machine-id", "")
    for name in ("etc/hostname", "etc/resolv.conf", "var/lib/dbus/machine-id"):
        (root / name).unlink(missing_ok=True)
    shutil.rmtree(root / "var/lib/cloud", ignore_errors=True)
    bases.replace(root / "etc/cloud/cloud.cfg.d/99_kiln_lab.cfg", _CLOUD_INIT)
    certificate = ca.ensure().certificate.read_text()
    anchors = root / "etc/pki/ca-trust/source/anchors"
    if anchors.is_dir():
        bases.replace(anchors / "kiln-lab.pem", certificate)
        run("chroot", str(root), "update-ca-trust")
    else:
        bases.replace(root / "usr/local/share/ca-certificates/kiln-lab.crt", certificate)
        run("chroot", str(root), "update-ca-certificates")
    # Servers before 8.2 know no Include, and take ssh-rsa anyway.
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
        "real": ["everything: imported with lab.import"],
        "stands_in_for": emulated,
        "lab_only": [
            "SSH accepts ssh-rsa",
            "the lab's CA is trusted",
            "cloud-init asks Ec2 only",
            *changes,
        ],
    }
    bases.replace(root / bases.MARKER, json.dumps(marker, indent=2) + "\n")
