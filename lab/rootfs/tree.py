"""The Debian tree from which all root filesystems of guests are made."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from kiln.base.errors import KilnError, operation_failed
from lab.base import folders
from lab.base.shell import CommandError, run
from lab.rootfs import aptsources, distros, emulation, mmdebstrap, prune

Progress = Callable[[str], None]

# Folders whose files a guest edits in place. All others are replaced as a whole: hard links do.
_COPIED = ("etc", "var")
# dpkg's setting of paths to leave out, in the tree while mmdebstrap makes it.
_EXCLUDES = "/etc/dpkg/dpkg.cfg.d/kiln-lab-excludes"
# Wraps dpkg in the tree so that it waits for no disk. Comes with mmdebstrap; needs
# dpkg-architecture on the host, and breaks a tree of Ubuntu (mmdebstrap 1.4.3): it reads only
# SHA256 of what apt-get prints, which is SHA512 there.
_EATMYDATA = Path("/usr/share/mmdebstrap/hooks/eatmydata/extract.sh")
# Debian's byte-compiler of Python packages, and where it waits while mmdebstrap makes the tree:
# a package's postinst calls it only where it is found.
_PY3COMPILE = ("/usr/bin/py3compile", "/usr/lib/kiln-lab-py3compile")
_SSH = "/etc/ssh"
_HOST_KEYS = " ".join(f"ssh_host_{kind}_key" for kind in ("rsa", "ecdsa", "ed25519"))
_PYTHON_MODULES, _PYTHONS_OWN = "/usr/lib/python3/dist-packages", "/usr/share/python3"


def ensure(home: Path, arch: str, family: str, say: Progress) -> Path:
    """The tree for a family of distributions (al or debian) below `home`, made when missing."""
    common = _common(home, arch, say)
    tree = _add_family(common, family)
    prune.use(common, tree)
    return tree


def path(home: Path, arch: str, family: str) -> Path:
    """The place of a family's tree, made or not."""
    tree = _place(home, arch, aptsources.host())
    return tree if family == "al" else tree.with_name(f"{tree.name}-{family}")


def _options() -> list[str]:
    recipe = distros.tree()
    return mmdebstrap_options(recipe["include"], recipe["exclude_paths"])


def _place(home: Path, arch: str, archive: aptsources.Archive) -> Path:
    inputs = json.dumps(["2", archive.origin, archive.suite, *mmdebstrap.OPTIONS, _options()])
    return home / f"tree-{arch}-{hashlib.sha256(inputs.encode()).hexdigest()[:12]}"


def _common(home: Path, arch: str, say: Progress) -> Path:
    """The common Debian tree, made by mmdebstrap when it is missing."""
    archive = aptsources.host()
    tree = _place(home, arch, archive)
    if tree.is_dir():
        return tree
    duration = "about eight minutes" if emulation.needed(arch) else "about half a minute"
    distribution = f"{archive.origin} {archive.suite} {arch}"
    say(f"downloading the {distribution} packages for guests: {duration}, once")
    making = home / f".making-{tree.name}"
    with mmdebstrap.alone(home, say) as lock:
        delete(making)
        try:
            how = [*_options(), *(without_syncs() if archive.origin == "debian" else ())]
            mmdebstrap.make(archive, arch, how, making, home / "mmdebstrap.log", lock)
        except KilnError:
            delete(making)
            raise
        folders.put(making, tree)
    return tree


def mmdebstrap_options(include: Sequence[str], excluded: Sequence[str]) -> list[str]:
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
        "--dpkgopt=force-unsafe-io",
        f"--extract-hook=printf '{settings}' > \"$1{_EXCLUDES}\"",
        f"--extract-hook={_divert('add', _PY3COMPILE)}",
        f"--customize-hook={_divert('remove', _PY3COMPILE)}",
        # openssh-server's postinst makes the host keys that are missing, for seconds, and a base
        # has none: its guests make their own.
        f'--extract-hook=mkdir -p "$1{_SSH}" && cd "$1{_SSH}" && touch {_HOST_KEYS}',
        f'--customize-hook=cd "$1{_SSH}" && rm {_HOST_KEYS}',
        f'--customize-hook=chroot "$1" {compile_modules()}',
        # EC2's images have no such setting: a bake installs packages completely.
        f'--customize-hook=rm "$1{_EXCLUDES}"',
        f'--customize-hook=cd "$1" && find {folders} -mindepth 1 -delete',
        f"--include={','.join(include)}",
    ]


def _divert(action: str, program: tuple[str, str]) -> str:
    """A hook's command that puts a program aside (`add`) or back (`remove`)."""
    path, aside = program
    return f'chroot "$1" dpkg-divert --quiet --local --rename --divert {aside} --{action} {path}'


def compile_modules(modules: str = _PYTHON_MODULES, own: str = _PYTHONS_OWN) -> str:
    """The command, in the tree, that byte-compiles what Debian's Python packages brought.

    `modules` is the folder of their modules, `own` that of Debian's tools for Python.

    Each of about thirty packages would start py3compile by itself, on the core that installs them.
    The folder for top-level modules is made first: two that find it missing would both make it.
    """
    script = (
        f"mkdir -p {modules}/__pycache__ && "
        f"find {own} {modules} -maxdepth 1 ! -name __pycache__ "
        f"! -path {modules} ! -path '{own}/*' -print0 "
        f"| sort -z | xargs -0 -r -n 24 -P 2 py3compile"
    )
    return f"sh -c {shlex.quote(script)}"


def without_syncs(hook: Path = _EATMYDATA) -> list[str]:
    """The options that make dpkg wait for no disk, where this mmdebstrap has such a hook.

    A tree that is cut off by a crash is made again, and a whole one goes to disk at once
    (`folders.put`).
    mmdebstrap's own second half of the hook would end with a sync of all disks of this machine.
    """
    if not hook.is_file():
        return []
    undo = (
        'rm "$1"/usr/bin/dpkg "$1"/usr/bin/eatmydata "$1"/usr/lib/*/libeatmydata.so* && '
        'chroot "$1" dpkg-divert --quiet --local --rename --remove /usr/bin/dpkg'
    )
    return [f"--extract-hook={hook}", f"--customize-hook={undo}"]


def _add_family(tree: Path, family: str) -> Path:
    """The tree for `family`: distributions with apt get one without the tools of the al family."""
    if family == "al":
        return tree
    without = tree.with_name(f"{tree.name}-{family}")
    if not without.is_dir():
        making = without.with_name(f".making-{without.name}")
        copy(tree, making)
        try:
            apt(making, "purge", "--autoremove", *distros.tree()["al_only"])
        except CommandError as failure:
            shutil.rmtree(making, ignore_errors=True)
            raise operation_failed(f"cannot make the tree for {family}: {failure}") from None
        folders.put(making, without)
    return without


def delete(tree: Path) -> bool:
    """Delete a tree, complete or not; False if there is none.

    It is renamed first, so that after an interruption nobody takes a part of it for the whole; the
    next call for the same tree deletes that part too.
    """
    part = tree.with_name(f".removing-{tree.name}")
    there = [path for path in (part, tree) if path.exists()]
    for path in there:
        if path == tree:
            tree.rename(part)
        shutil.rmtree(part)
    return bool(there)


def copy(tree: Path, target: Path) -> None:
    """Copy a tree with hard links, except for the files that guests edit in place."""
    shutil.rmtree(target, ignore_errors=True)
    run("cp", "-al", str(tree), str(target))
    for name in _COPIED:
        shutil.rmtree(target / name)
        run("cp", "-a", str(tree / name), str(target / name))


def apt(root: Path, *words: str) -> None:
    """Run apt-get in a tree. Raises CommandError."""
    words_of_env = ("env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
    options = ("-qq", "-y", "-o", "DPkg::Options::=--force-unsafe-io")
    run("chroot", str(root), *words_of_env, "apt-get", *options, *words)


def apt_with_names(root: Path, *words: str) -> None:
    """Run apt-get in a tree that has no resolver yet, and leave no lists or archives behind.

    The lists are read again when they are as old as the tree. Raises CommandError.
    """
    resolver = root / "etc/resolv.conf"
    resolver.write_text(Path("/etc/resolv.conf").read_text())
    try:
        try:
            apt(root, *words)
        except CommandError:
            apt(root, "update")
            apt(root, *words)
        apt(root, "clean")
    finally:
        resolver.unlink()
