"""The labs' cell, from outside: nothing of a lab is on this machine but its processes, its port and
its folder, and the root of a guest is nobody."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from kiln.base.paths import ROOT
from lab.base import settings
from lab.daemon import cell
from lab.machine import namespace

CALL = (
    "import sys; from pathlib import Path; from lab.daemon import cell; "
    "sys.exit(cell.call(Path(sys.argv[1]), sys.argv[2:]))"
)
SETTINGS = (
    *("kernel/dmesg_restrict", "kernel/core_pattern", "kernel/panic", "vm/max_map_count"),
    *("net/ipv4/ip_forward", "net/core/rmem_max", "fs/inotify/max_user_watches"),
)


def in_cell(root: Path, *command: str) -> list[str]:
    return [sys.executable, "-c", CALL, str(root), *command]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of labs; skips where there can be no cell."""
    if not shutil.which("pasta"):
        pytest.skip("passt is not installed: a build in the lab installs it")
    done = subprocess.run(in_cell(tmp_path, "true"), cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(done.stderr.decode().strip().splitlines()[-1])
    return tmp_path


def processes(text: str) -> list[int]:
    """The processes of this machine with that text in their command."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if text in file.read_bytes().decode(errors="replace"):
                found.append(int(file.parent.name))
    return found


def test_program_has_its_callers_status_output_and_signals(root: Path) -> None:
    done = subprocess.run(
        in_cell(root, "sh", "-c", "cat; exit 7"), cwd=ROOT, input=b"abc", capture_output=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (7, b"abc"), done.stderr
    waits = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(in_cell(root, "sh", "-c", waits), cwd=ROOT, stdout=-1) as caller:
        assert caller.stdout
        caller.stdout.readline()
        caller.send_signal(signal.SIGTERM)
        assert caller.wait(60) == 5


def test_program_that_cannot_start_says_why(root: Path) -> None:
    done = subprocess.run(in_cell(root, "/nowhere"), cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 127
    assert b"No such file or directory: '/nowhere'" in done.stderr


LAB = {"packer", "ssh", "lab"}


@pytest.mark.parametrize(
    ("words", "groups"),
    [
        ("build --name al2023-580.178.04-open-cuda13.0-base-arm64", {*LAB, "emulate_arm64"}),
        ("build --all", {*LAB, "emulate_arm64"}),
        ("verify --ami ami-1 --own-kernel", {*LAB, "own_kernel"}),
        ("lab.clean --all", set()),
    ],
)
def test_packages_are_installed_before_the_cell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, groups: set[str]
) -> None:
    """In it nobody can install anything. What takes a lab down installs nothing."""
    asked: list[str] = []
    monkeypatch.delenv(namespace.NET_CORE, raising=False)
    monkeypatch.setattr(sys, "argv", ["start.py", *words.split()])
    monkeypatch.setattr(cell.host, "can_run", lambda: None)
    monkeypatch.setattr(cell.needs, "ensure", lambda *groups, **_: asked.extend(groups))
    monkeypatch.setattr(cell.needs, "missing", lambda *groups: groups)
    monkeypatch.setattr(cell.program, "find_packer", lambda **_: asked.append("packer"))
    monkeypatch.setattr(cell, "call", lambda *_, **__: 0)
    monkeypatch.setenv("KILN_LAB_STATE", str(tmp_path))
    takes_down = words.startswith("lab.clean")
    with pytest.raises(SystemExit):
        cell.enter(start=not takes_down, used=takes_down)
    assert set(asked) == groups


def test_program_ends_with_a_killed_caller(root: Path) -> None:
    mark = uuid.uuid4().hex
    waits = f"echo ready; while :; do sleep 0.05; done # {mark}"
    with subprocess.Popen(in_cell(root, "sh", "-c", waits), cwd=ROOT, stdout=-1) as caller:
        assert caller.stdout
        caller.stdout.readline()
        caller.kill()
    deadline = time.monotonic() + 60
    while processes(mark) or processes(f"lab.daemon.cell\0{root}"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


# What root in a guest tries where it has got out of all but the cell. Each line that it prints is
# one that worked.
ESCAPES = r"""
if cat "$1/secret" 2>/dev/null; then echo "read the user's file"; fi
for file in "$1/secret" /etc/passwd /proc/sys/kernel/core_pattern /proc/sysrq-trigger /dev/kmsg
do if ( : >>"$file" ) 2>/dev/null; then echo "opened $file"; fi; done
if mknod "$1/disk" b 254 0 2>/dev/null; then echo "made a disk"; fi
if mount -t tmpfs none /etc 2>/dev/null && nsenter --target=1 --mount true 2>/dev/null
then echo "entered the cell"; fi
if kill -0 1 2>/dev/null; then echo "may end the cell"; fi
if ip link add kilnescape type dummy 2>/dev/null; then echo "made an interface"; fi
if date -s 2020-01-01 >/dev/null 2>&1; then echo "set the clock"; fi
if chroot /proc/1/root true 2>/dev/null; then echo "saw the cell's root"; fi
echo "tried as $(id -u)"
"""


def test_root_of_a_guest_is_nobody_outside(root: Path) -> None:
    inner = root / "open"
    inner.mkdir(mode=0o777)
    (inner / "secret").write_text("secret\n")
    (inner / "secret").chmod(0o600)
    # As for a guest, which has no id but its own.
    guest = [*namespace.program(), "unshare", "--user", "--map-root-user", "--setuid=0", "sh", "-c"]
    seconds = f"60.{uuid.uuid4().int}"
    with subprocess.Popen(
        in_cell(root, *guest, f"{ESCAPES}\nsleep {seconds}", "sh", str(inner)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
    ) as caller:
        assert caller.stdout
        assert caller.stdout.readline() == b"tried as 0\n"
        deadline = time.monotonic() + 60
        while not (found := processes(f"sleep\0{seconds}")):
            assert caller.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        status = Path(f"/proc/{found[0]}/status").read_text().splitlines()
        (uids,) = (line.split()[1:] for line in status if line.startswith("Uid:"))
        caller.kill()
    assert set(uids) == {str(cell.first_ids()[0])}


def machine_state(root: Path, index: int) -> dict[str, object]:
    """This machine's settings, interfaces, tables, mounts and files of /etc."""
    settings = {name: Path("/proc/sys", name) for name in SETTINGS}
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=False)
    return {
        "settings": {name: file.read_text() for name, file in settings.items() if file.exists()},
        "interfaces": [path.name for path in Path("/sys/class/net").glob(f"lab{index}*")],
        "tables": [line for line in tables.stdout.splitlines() if f"lab{index}" in line],
        "mounts": str(root) in Path("/proc/self/mounts").read_text(),
        "etc": sorted((str(path), path.lstat().st_mtime_ns) for path in Path("/etc").rglob("*")),
    }


def test_lab_up_and_down_leave_this_machine_as_it_was(root: Path) -> None:
    index = settings.current().index
    # Debian's users have none of the system's folders there.
    path = [each for each in os.environ["PATH"].split(":") if not each.endswith("sbin")]
    environment = {**os.environ, "KILN_LAB_STATE": str(root), "KILN_LAB_INDEX": str(index)}
    environment["PATH"] = ":".join(path)
    before = machine_state(root, index)
    invoke = {"cwd": ROOT, "env": environment, "capture_output": True}
    up = subprocess.run(["./invoke", "lab.up"], check=False, **invoke)
    assert up.returncode == 0, up.stderr
    with socket.create_connection(("127.0.0.1", 4599 + index), timeout=10):
        pass
    # Other cells come and go meanwhile.
    own = {f"kiln-lab-{process}" for process in processes(f"lab.daemon.cell\0{root}")}
    groups = [each for each, _, _ in os.walk("/sys/fs/cgroup") if Path(each).name in own]
    assert groups or os.geteuid(), "it has a control group"
    assert machine_state(root, index) == before
    down = subprocess.run(["./invoke", "lab.down"], check=False, **invoke)
    assert down.returncode == 0, down.stderr
    deadline = time.monotonic() + 30
    while (
        machine_state(root, index) != before
        or processes(str(root))
        or any(map(os.path.exists, groups))
    ):
        assert time.monotonic() < deadline, (machine_state(root, index), processes(str(root)))
        time.sleep(0.1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 4599 + index), timeout=10)
