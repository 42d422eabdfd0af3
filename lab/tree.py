"""The Debian tree from which all root filesystems of guests are made."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from kiln.base.errors import operation_failed
from lab import aptsources, disks, distros, emulation, prune
from lab.packages import deb
from lab.shell import CommandError, run

Progress = Callable[[str], None]

# Folders whose files a guest edits in place. All others are replaced as a whole: hard links do.
_COPIED = ("etc", "var")
# dpkg's setting of paths to leave out, in the tree while mmdebstrap makes it.
_EXCLUDES = "/etc/dpkg/dpkg.cfg.d/kiln-lab-excludes"
# Part of mmdebstrap; needs dpkg-architecture on the host.
_EATMYDATA = Path("/usr/share/mmdebstrap/hooks/eatmydata")


def ensure(home: Path, arch: str, family: str, say: Progress) -> Path:
    """The tree for a family of distributions (al or debian) below `home`, made when missing."""
    common = _common(home, arch, say)
    tree = _of_family(common, family)
    prune.use(common, tree)
    return tree


def _common(home: Path, arch: str, say: Progress) -> Path:
    """The common Debian tree, made by mmdebstrap when it is missing."""
    archive = aptsources.host()
    recipe = distros.tree()
    options = _options(recipe["include"], recipe["exclude_paths"])
    inputs = json.dumps([archive.origin, archive.suite, options])
    tree = home / f"tree-{arch}-{hashlib.sha256(inputs.encode()).hexdigest()[:12]}"
    if tree.is_dir():
        return tree
    duration = "about eight minutes" if emulation.needed(arch) else "about half a minute"
    say(f"common {archive.origin} {archive.suite} {arch} tree: mmdebstrap, {duration}, once")
    making = home / f".making-{tree.name}"
    delete(making)
    command = [
        "mmdebstrap",
        f"--architectures={deb.architecture(emulation.machine(arch))}",
        *options,
        *_without_syncs(),
        archive.suite,
        str(making),
        *archive.lines(wide=False),
    ]
    log = home / "mmdebstrap.log"
    try:
        with log.open("w") as output:
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    except FileNotFoundError:
        raise operation_failed(
            "mmdebstrap is not installed", hint="apt-get install mmdebstrap"
        ) from None
    if done.returncode != 0:
        delete(making)
        messages = [line for line in log.read_text().splitlines() if line.startswith(("E:", "W:"))]
        reason = " / ".join(messages[-3:]) or "no output"
        raise operation_failed(
            f"mmdebstrap could not make the common tree: {reason}",
            hint=f"its output is in {log}",
        )
    making.rename(tree)
    return tree


def _options(include: Sequence[str], excluded: Sequence[str]) -> list[str]:
    """The options of mmdebstrap that decide what is in the tree.

    While mmdebstrap runs, the excluded paths are a setting of dpkg. As an option of mmdebstrap they
    would send each essential package through a filter in Python (mmtarfilter), which takes longer
    than unpacking the excluded files and deleting them.
    """
    settings = "".join(f"path-exclude={path}\\n" for path in excluded)
    folders = " ".join(shlex.quote(path.removesuffix("/*").lstrip("/")) for path in excluded)
    return [
        "--variant=minbase",
        # With the lists kept, apt-get update in a guest only checks whether they are current.
        "--skip=cleanup/apt/lists",
        "--mode=root",
        '--aptopt=APT::Install-Recommends "false"',
        '--aptopt=Acquire::Languages "none"',
        "--dpkgopt=force-unsafe-io",
        f"--extract-hook=printf '{settings}' > \"$1{_EXCLUDES}\"",
        # AMIs have no such setting: packages of a bake are installed completely.
        f'--customize-hook=rm "$1{_EXCLUDES}"',
        f'--customize-hook=cd "$1" && find {folders} -mindepth 1 -delete',
        f"--include={','.join(include)}",
    ]


def _without_syncs() -> list[str]:
    """The option that turns dpkg's fsync off, if this mmdebstrap has the hook.

    A tree that a crash interrupts is made again, so nothing is lost without fsync.
    """
    return [f"--hook-directory={_EATMYDATA}"] if _EATMYDATA.is_dir() else []


def _of_family(tree: Path, family: str) -> Path:
    """The tree for `family`: distributions with apt get one without the tools of the al family."""
    if family == "al":
        return tree
    without = tree.with_name(f"{tree.name}-{family}")
    if not without.is_dir():
        making = without.with_name(f".making-{without.name}")
        copy(tree, making)
        try:
            _apt(making, "purge", "--autoremove", *distros.tree()["al_only"])
        except CommandError as failure:
            shutil.rmtree(making, ignore_errors=True)
            raise operation_failed(f"cannot make the tree for {family}: {failure}") from None
        making.rename(without)
    return without


def delete(tree: Path) -> None:
    """Delete a tree, complete or not: a killed mmdebstrap leaves /dev mounted in it.

    Raises operation_failed when something stays mounted: deleting it would delete the host's files.
    """
    for point in disks.mounts(tree):
        run("umount", "--lazy", str(point), check=False)
    if left := disks.mounts(tree):
        raise operation_failed(f"{left[0]} cannot be unmounted", hint=f"umount {left[0]}")
    if tree.exists():
        shutil.rmtree(tree)


def copy(tree: Path, target: Path) -> None:
    """Copy a tree with hard links, except for the files that guests edit in place."""
    shutil.rmtree(target, ignore_errors=True)
    run("cp", "-al", str(tree), str(target))
    for name in _COPIED:
        shutil.rmtree(target / name)
        run("cp", "-a", str(tree / name), str(target / name))


def _apt(root: Path, *words: str) -> None:
    words_of_env = ("env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
    options = ("-qq", "-y", "-o", "DPkg::Options::=--force-unsafe-io")
    run("chroot", str(root), *words_of_env, "apt-get", *options, *words)
