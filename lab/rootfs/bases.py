"""Root filesystems of the lab's guests.

mmdebstrap makes one Debian tree from the host's package mirror. A base is a hard-linked copy of
that tree with the identity of a distribution laid over it, so that a second distribution costs a
second. docs/lab-stand-ins.md says what is real in a base and what is not.

A base's folder is named after a digest of its inputs and never changes once made: AMIs are layers
above it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kiln.base.errors import operation_failed
from kiln.base.paths import is_compiled
from lab.base import folders, locks, settings
from lab.base.shell import CommandError, run
from lab.rootfs import aptsources, as_guest, distros, emulation, parents, prune, tree
from lab.rootfs.tree import Progress
from lab.vendors.mirror import ca, debian, keys

MARKER = "etc/kiln-lab-base"
_CA_IN_GUEST = "usr/local/share/ca-certificates/kiln-lab.crt"
_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
_RPM_KEYS = "etc/pki/rpm-gpg"
_STAGE = "/usr/lib/kiln-lab-cloud-init/cloud-init"
# Only Debian's cloud-init has this order: https://github.com/canonical/cloud-init systemd/*.tmpl
# Amazon's sets the host name after D-Bus is there, and ecs.service, a part of multi-user.target,
# waits for cloud-final.
_DEBIANS_ORDER = r"(?m)^(After=multi-user.target|Before=sysinit.target|DefaultDependencies=no)\n"


def ensure(distro_id: str, arch: str = "x86_64", progress: Progress | None = None) -> Path:
    """The root filesystem of a distribution, made when it is missing. Callers must not change it.

    `distro_id` may name a parent of a flavor: al2023+eks. `progress` gets one line per step.
    Raises KilnError for an unknown distribution, and operation_failed when mmdebstrap or the
    package mirror fails.
    """
    say = progress or (lambda _: None)
    distro_id, kind = parents.split(distro_id)
    spec = distros.spec(distro_id)
    imported = imported_link(distro_id, arch)
    if imported.is_dir():
        return imported.resolve()
    emulation.ensure(arch)
    home = bases_dir()
    folders.private(settings.current().root, home)
    with locks.alone(home / ".lock"):
        common = tree.path(home, arch, spec["family"])
        name = f"{distro_id}-{kind}" if kind else distro_id
        base = home / f"{name}-{arch}-{_digest(distro_id, kind, arch, common.name)}"
        if not base.is_dir():
            as_guest.call(_make, distro_id, kind, arch, base, say=say)
        prune.use(base, common)
    return base


def _make(distro_id: str, kind: str, arch: str, base: Path, say: Progress) -> Path:
    home, spec = base.parent, distros.spec(distro_id)
    common = tree.ensure(home, arch, spec["family"], say)
    say(f"{spec['name']} {kind}".rstrip() + ": creating the root filesystem")
    _identify(distro_id, kind, spec, arch, common, base)
    prune.use(base)
    for name in prune.prune(home):
        say(f"deleted {name}, which is no longer used")
    return base


def ids() -> list[str]:
    """The distributions the lab has guests for."""
    return distros.ids()


def bases_dir() -> Path:
    """Return the folder of root filesystems: shared by all labs of this machine."""
    return settings.current().shared / "bases"


def imported_link(distro_id: str, arch: str) -> Path:
    """The link that `lab.import` makes. When it exists, it points to the base."""
    return bases_dir() / f"{distro_id}-{arch}-imported"


def _digest(distro_id: str, kind: str, arch: str, common: str) -> str:
    """A digest of a base's inputs: tree, identity, the lab's CA, keys and packages."""
    from lab.vendors.packages import system

    total = hashlib.sha256()
    trusted = [ca.ensure().certificate.read_text()]
    trusted += [keys.ensure().fingerprint(name) for name in keys.DISTRIBUTIONS]
    own = parents.digest(kind, distro_id, emulation.machine(arch)) if kind else ""
    for part in (distro_id, kind, own, arch, common, *trusted, system.digest()):
        total.update(part.encode() + b"\0")
    files = [p for p in distros.FILES.rglob("*") if p.is_file() and not is_compiled(p)]
    for path in sorted([*files, Path(__file__)]):
        total.update(
            str(path.relative_to(distros.FILES.parent)).encode() + b"\0" + path.read_bytes()
        )
    return total.hexdigest()[:12]


def _identify(
    distro_id: str, kind: str, spec: dict[str, Any], arch: str, common: Path, base: Path
) -> None:
    """Lay a distribution's identity over a linked copy of the common tree, and what AWS adds."""
    making = base.with_name(f".making-{base.name}")
    tree.copy(common, making)
    try:
        _common(making, spec)
        for name in spec["trees"]:
            copy_tree(distros.FILES / name, making, _placeholders(spec, arch))
        for name, leads_to in spec.get("links", {}).items():
            link = making / name.lstrip("/")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(leads_to)
        if spec["family"] == "al":
            from lab.vendors.packages import system

            _as_amazon_linux(making, spec)
            if arch == "arm64":
                _with_lib64(making)
            system.install(distro_id, emulation.machine(arch), making)
            run("chroot", str(making), "rpm", "--import", f"/{_RPM_KEYS}/{spec['rpm_key']}")
            if kind:
                copy_tree(parents.folder(kind), making, _placeholders(spec, arch))
                parents.install(kind, distro_id, emulation.machine(arch), making)
        else:
            _as_debian_family(distro_id, making, spec, arch)
            if kind:
                copy_tree(parents.folder(kind), making, _placeholders(spec, arch))
                parents.install(kind, distro_id, emulation.machine(arch), making)
        _mark(making, distro_id, spec, arch)
        folders.put(making, base)
    except (CommandError, OSError) as failure:
        shutil.rmtree(making, ignore_errors=True)
        raise operation_failed(f"cannot make the {distro_id} base: {failure}") from None


def _common(root: Path, spec: dict[str, Any]) -> None:
    """Apply what all bases share: no identity of a machine, the lab's CA, masked units."""
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    replace(root / "etc/machine-id", "")
    (root / "var/lib/dbus/machine-id").unlink(missing_ok=True)
    for name in ("etc/hostname", "etc/resolv.conf"):
        (root / name).unlink(missing_ok=True)
    for leftover in (root / "etc/cloud/cloud.cfg.d").iterdir():
        if leftover.name != "05_logging.cfg":
            leftover.unlink()
    certificate = ca.ensure().certificate.read_text()
    replace(root / _CA_IN_GUEST, certificate)
    replace(root / _BUNDLE, (root / _BUNDLE).read_text() + certificate)
    for unit in distros.tree()["mask"]:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    _short_stages(root)
    if spec["stand_in"]:
        text = "".join(f'{key}="{value}"\n' for key, value in spec["os_release"].items())
        replace(root / "usr/lib/os-release", text)
        replace(root / "etc/os-release", text)
        (root / "etc/debian_version").unlink(missing_ok=True)


def _short_stages(root: Path) -> None:
    """Let cloud-init's units start `basefiles`' program, where they start cloud-init as it does.

    From 24.3 on cloud-init itself has one process for all stages, and other units.
    """
    for unit in ("cloud-init", "cloud-config", "cloud-final"):
        name = f"{unit}.service"
        text = (root / "usr/lib/systemd/system" / name).read_text()
        line = r"^ExecStart=/usr/bin/cloud-init ((?:init|modules --mode=).*)$"
        started = re.findall(line, text, re.MULTILINE)
        if len(started) == 1:
            drop_in = f"[Service]\nExecStart=\nExecStart={_STAGE} {started[0]}\n"
            note = f"# AMI Kiln lab only: see {_STAGE}\n"
            replace(root / f"etc/systemd/system/{name}.d/lab-stage.conf", note + drop_in)


def _as_amazon_linux(root: Path, spec: dict[str, Any]) -> None:
    """Remove apt and dpkg, and hide the commands that packages of Amazon Linux must install."""
    replace(root / "etc/system-release", spec["system_release"] + "\n")
    replace(root / _RPM_KEYS / spec["rpm_key"], keys.ensure().public("amazon-linux").decode())
    # Where cloud-init looks for its helpers on this family: the one that prints the host keys.
    (root / "usr/libexec/cloud-init").symlink_to("../lib/cloud-init")
    for unit in ("cloud-init", "cloud-final"):
        path = root / f"usr/lib/systemd/system/{unit}.service"
        replace(path, re.sub(_DEBIANS_ORDER, "", path.read_text()))
    # Ubuntu's socket would start sshd before cloud-init has made the host keys.
    run("chroot", str(root), "systemctl", "--quiet", "disable", "ssh.socket")
    run("chroot", str(root), "systemctl", "--quiet", "enable", "ssh.service")
    for tool in sorted((root / "usr/bin").glob("apt*")) + sorted((root / "usr/bin").glob("dpkg*")):
        tool.unlink()
    (root / "usr/lib/kiln-lab").mkdir(parents=True, exist_ok=True)
    for path, hidden in distros.tree()["hide"].items():
        command = root / path.lstrip("/")
        hidden_command = root / hidden.lstrip("/") if hidden else None
        if hidden_command and command.is_symlink():
            hidden_command.symlink_to(Path(path).parent / command.readlink())
        elif hidden_command and command.exists():
            hidden_command.hardlink_to(command)
        command.unlink(missing_ok=True)
    for leftover in ("etc/apt", "var/lib/apt", "var/cache/apt"):
        shutil.rmtree(root / leftover)
    run("chroot", str(root), "groupadd", "--system", "wheel")


def _with_lib64(root: Path) -> None:
    """Make the loader and the compiler search /usr/lib64, where Amazon Linux has its libraries.

    On x86_64 Debian's search it by default.
    """
    replace(root / "etc/ld.so.conf.d/kiln-lab-lib64.conf", "/usr/lib64\n")
    for version in (root / "usr/lib/gcc").glob("aarch64-linux-gnu/[0-9]*"):
        replace(version / "specs", "*link:\n+ -L/usr/lib64\n\n")


def _as_debian_family(distro_id: str, root: Path, spec: dict[str, Any], arch: str) -> None:
    """Configure apt: the host's archive for ordinary packages, the lab's for stand-ins."""
    from lab.vendors.packages import system

    archive = aptsources.host()
    if not spec["stand_in"] and archive.origin != "debian":
        raise operation_failed(
            f"{spec['name']} needs a Debian mirror, and this machine uses {archive.origin}'s",
            hint="import it: ./invoke lab.import --distro debian12 --mirror URL",
        )
    for leftover in (root / "etc/apt/sources.list.d").iterdir():
        leftover.unlink()
    replace(root / "etc/apt/apt.conf.d/90kiln-lab", aptsources.settings())
    lines = archive.lines(wide=not spec["stand_in"])
    replace(root / "etc/apt/sources.list", "\n".join(lines) + "\n")
    if spec["stand_in"]:
        machine = emulation.machine(arch)
        keyring = "/usr/share/keyrings/kiln-lab-archive.gpg"
        (root / keyring.lstrip("/")).write_bytes(keys.ensure().binary("ubuntu"))
        line = f"deb [signed-by={keyring}] {debian.HOST}/{distro_id}/{machine}/ /\n"
        replace(root / "etc/apt/sources.list.d/kiln-lab.list", line)
        system.install_kernel(distro_id, machine, root)
        # Where a release's own package of dkms leads to.
        (root / "usr/lib/kiln-lab").mkdir(parents=True, exist_ok=True)
        (root / "usr/lib/kiln-lab/dkms").hardlink_to(root / "usr/sbin/dkms")
    if spec.get("boot_loader") and arch == "x86_64":
        _install_boot_loader(root, spec["boot_loader"])


def _install_boot_loader(root: Path, packages: Sequence[str]) -> None:
    """Install the boot loader's packages, with the base's own program in place of grub-probe.

    The real one looks for the disk of a folder, and a guest's root is not a disk.
    """
    probe = "/usr/sbin/grub-probe"
    divert = ("dpkg-divert", "--quiet", "--local", "--divert", f"{probe}.distrib", "--add", probe)
    run("chroot", str(root), *divert)
    tree.apt_with_names(root, "install", "--no-install-recommends", *packages)


def for_processor(root: Path, arch: str) -> tuple[list[str], list[str]]:
    """Prepare a guest for an emulated processor; do nothing when the processor is the host's.

    Returns what is emulated and what was changed for it, both as text for the marker file.
    """
    if not emulation.needed(arch):
        return [], []
    copy_tree(distros.FILES / "emulated", root, {})
    return (
        [f"{arch} processors ({emulation.by(arch)})"],
        ["services without LoadCredential= and PrivateNetwork="],
    )


def _mark(root: Path, distro_id: str, spec: dict[str, Any], arch: str) -> None:
    """Write the marker file, which says what is real in this base and what is not."""
    stand_in = spec["stand_in"]
    emulated, changes = for_processor(root, arch)
    own = [spec["name"], "its kernel packages", "its package repositories"] if stand_in else []
    marker = {
        "what": "AMI Kiln lab base: a guest for rehearsals, never to be shipped",
        "distro": distro_id,
        "stand_in": stand_in,
        "real": ["systemd", "sshd", "cloud-init", "userland of the host's Debian or Ubuntu mirror"],
        "stands_in_for": [*own, *emulated],
        "lab_only": [
            "SSH accepts ssh-rsa",
            "the lab's CA is trusted",
            "boot units masked",
            "cloud-init's stages are forks of one process",
            "settings of the machine's kernel are stored, without effect",
            *changes,
        ],
    }
    replace(root / MARKER, json.dumps(marker, indent=2) + "\n")
    if not stand_in:
        motd = "AMI Kiln lab: real Debian 12 packages. Lab-only changes: /etc/kiln-lab-base\n"
        replace(root / "etc/motd", motd)


def _placeholders(spec: dict[str, Any], arch: str) -> dict[str, str]:
    return {
        "@name@": spec["name"],
        "@ssh_user@": spec["ssh_user"],
        "@cloud_init_distro@": spec["cloud_init_distro"],
        "@groups@": ", ".join(spec["groups"]),
        "@arch@": emulation.machine(arch),
        "@root_uuid@": distros.root()["uuid"],
        "@root_partuuid@": distros.root()["partuuid"],
    }


def copy_tree(source: Path, root: Path, placeholders: dict[str, str]) -> None:
    """Copy a tree of files and fill in placeholders; programs and scripts are executable."""
    for path in sorted(source.rglob("*")):
        if path.name == ".keep":
            (root / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() or path.name == ".keep" or is_compiled(path):
            continue
        text = path.read_text()
        for name, value in placeholders.items():
            text = text.replace(name, value)
        executable = path.parent.name in ("bin", "sbin") or text.startswith("#!")
        replace(root / path.relative_to(source), text, mode=0o755 if executable else 0o644)


def replace(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace a file instead of writing into it: it may be hard-linked into other bases."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(mode)
