"""A machine that cannot run guests (an old kernel, no id of its own): the lab refuses it with the
reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kiln.base.errors import KilnError
from lab.base import settings
from lab.base.shell import CommandError
from lab.daemon import host
from lab.machine import namespace

# What a kernel lacks → how it answers. Before 5.12 there is no mount_setattr(2):
# https://man7.org/linux/man-pages/man2/mount_setattr.2.html. Before 5.19 an overlay takes no layer
# with mapped owners ("idmapped layers are currently not supported", EINVAL): torvalds/linux,
# fs/overlayfs/super.c, v5.15.
# Why there is no new user namespace: https://man7.org/linux/man-pages/man2/unshare.2.html
_NO_NAMESPACE = "if name == 'unshare' and given[0] == namespace._CLONE_NEWUSER: fail = "
OLDER = {
    "before 5.12": (
        "if name == 'syscall' and given[0] == namespace._MOUNT_SETATTR: fail = 'ENOSYS'",
        "Function not implemented",
    ),
    "before 5.19": (
        "if name == 'mount' and given[2] == b'overlay': fail = 'EINVAL'",
        "Invalid argument",
    ),
    "no namespaces": (f"{_NO_NAMESPACE}'ENOSPC'", "user.max_user_namespaces"),
    "in a chroot": (f"{_NO_NAMESPACE}'EPERM'", "in a chroot the kernel makes none"),
}
PROGRAM = """\
import ctypes, errno, sys
sys.path.insert(0, {folder!r})
import namespace
libc = namespace._libc
class Old:
    def __getattr__(self, name):
        def call(*given):
            fail = None
            {older}
            if fail is None:
                return getattr(libc, name)(*given)
            ctypes.set_errno(getattr(errno, fail))
            return -1
        return call
namespace._libc = Old()
sys.exit(namespace.main(sys.argv[1:]))
"""


def refused_by(older: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KilnError:
    program = tmp_path / "old_kernel.py"
    folder = str(Path(namespace.__file__).parent)
    program.write_text(PROGRAM.format(folder=folder, older=older))
    lab = settings.Lab(54, tmp_path)
    lab.instances.mkdir(parents=True)
    host.can_map_owners(lab)  # this machine's kernel can
    monkeypatch.setattr(host.namespace, "__file__", str(program))
    with pytest.raises(KilnError) as refused:
        host.can_map_owners(lab)
    return refused.value


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it mounts")
@pytest.mark.parametrize("older", OLDER)
def test_kernel_that_cannot_map_owners_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: str
) -> None:
    condition, reason = OLDER[older]
    assert reason in refused_by(condition, tmp_path, monkeypatch).message


@pytest.mark.parametrize("id_", [None, "uninitialized\n"])
def test_machine_without_id_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id_: str | None
) -> None:
    """As in a container image that never booted; systemd-nspawn would say "No medium found"."""
    host.require_id()  # this machine has one
    monkeypatch.setattr(host, "MACHINE_ID", tmp_path / "machine-id")
    if id_ is not None:
        (tmp_path / "machine-id").write_text(id_)
    with pytest.raises(KilnError, match="machine-id holds no id") as refused:
        host.require_id()
    assert refused.value.hint == "systemd-machine-id-setup writes one"


def test_machine_without_bridges_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*command: str, check: bool = True) -> str:
        raise CommandError("RTNETLINK answers: Operation not permitted")

    monkeypatch.setattr(host, "can_map_owners", lambda lab: None)
    monkeypatch.setattr(host, "require_id", lambda: None)
    monkeypatch.setattr(host.bridge, "require_free_network", lambda lab: None)
    monkeypatch.setattr(host, "run", refuse)
    with pytest.raises(KilnError, match=r"cannot make a bridge.*not permitted") as refused:
        host.probe(settings.Lab(54, tmp_path))
    assert "--privileged" in refused.value.hint
