"""The cell: the user, network, process and mount namespaces in which all labs of a folder live.

Outside, only its processes, the ports of its labs and its folder are seen. Its root is the user who
started it, without any right outside. 65,536 further ids, which belong to nobody on this machine,
are those of guests. The cell ends with the last program in it, and the kernel with it all that a
lab has made: guests, mounts, bridges, tables.

    python -m lab.daemon.cell FOLDER        makes the cell of this folder, and serves `call`
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kiln.base import needs
from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import ROOT
from kiln.cli.output import log
from kiln.packer import program
from lab.base import folders, locks
from lab.base.settings import current
from lab.base.shell import CommandError, run
from lab.daemon import host
from lab.machine import cgroups
from lab.machine.namespace import CGROUPS, NET_CORE, check, libc, map_ids, mount

# The descriptor of the lab's port outside, which waits for `listen`; empty if another program has
# the port.
PORT = "KILN_LAB_PORT_FD"
SERVER = ("-m", "lab.daemon.server")
# The socket of `call`, and the file with the first process, as this machine numbers it.
_SOCKET, PROCESS = ".cell", ".cell.pid"
# Where no account's ids are: https://systemd.io/UIDS-GIDS/ has none from here to 0x7fffffff.
_ROOTS_IDS = 0x70000000
_IDS = 1 << 16
_LONGEST = 1 << 21
# <linux/sched.h>, <sys/prctl.h>, <sys/mount.h>
_NEWNS, _NEWNET = 0x00020000, 0x40000000
_NEW_OTHERS = 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000  # cgroup … pid
_PDEATHSIG, _MS_BIND, _MS_PLAIN, _MS_SHARED = 1, 0x1000, 0xE, 0x104000
_START_TIMEOUT = 30
_PASTA = (
    "pasta --foreground --quiet --config-net --ipv4-only --no-map-gw --netns-only --no-netns-quit "
    "--mtu 1500 -t none -u none -T none -U none"
)
# The group of packages that a word with this end needs.
_GROUPS = {"--own-kernel": "own_kernel", "real": "preflight", "--mirror": "lab_import"}
_GROUPS |= dict.fromkeys(("arm64", "--all", "nightly"), "emulate_arm64")


def is_inside() -> bool:
    """Return True if this process is in a cell."""
    return NET_CORE in os.environ


def enter(*, start: bool = False, used: bool = False) -> None:
    """Run this ./invoke again in the cell, and end with its exit status.

    Does nothing in a cell, in a program that is no ./invoke, and, unless `start`, while there is no
    cell; with `used` one starts if there was one before. Raises operation_failed if there can be
    none.
    """
    words = sys.argv
    if is_inside() or Path(words[0]).name != "start.py":
        return
    lab = current()
    start = start or (used and lab.root.exists())
    if not start and not is_there(lab.root):
        return
    groups: list[str] = []
    if start and not used:
        host.can_run()
        # In the cell nobody can install anything.
        also = {_GROUPS[end] for end in _GROUPS if any(word.endswith(end) for word in words)}
        groups = ["ssh", "lab", *sorted(also)]
    # Also without a group: it adds to PATH the system's folders, which a user's may lack.
    needs.ensure(*groups, install="--no-install" not in words, say=log)
    if groups and needs.missing("packer"):
        program.find_packer(install="--no-install" not in words, say=log)
    sys.stdout.flush()
    command = [sys.executable, "-S", *words]
    raise SystemExit(call(lab.root, command, port=lab.port))


def call(root: Path, command: Sequence[str], *, port: int = 0) -> int:
    """Run a program in the cell of a folder, which is made if there is none; its exit status.

    It has this one's environment, folder, inputs and outputs, and gets its signals. `port` of
    127.0.0.1 is the lab's outside.
    """
    folders.private(root)
    environment = {**os.environ, "KILN_LAB_STATE": str(root), "KILN_CWD": str(Path.cwd())}
    request = {"command": command, "environment": environment, "folder": str(ROOT), "port": port}
    with contextlib.ExitStack() as stack:
        with locks.alone(root / ".cell.lock"):
            channel = stack.enter_context(_connect(root) or _make(root))
            given = [0, 1, 2]
            if outer := _bind(port) if port else None:
                given.append(stack.enter_context(outer).fileno())
            socket.send_fds(channel, [json.dumps(request).encode()], given)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH):
            signal.signal(number, lambda number, _: channel.send(bytes([number])))
        status = channel.recv(16)
        with contextlib.suppress(ConnectionError):
            channel.recv(1)  # until the cell has ended, if that was its last program
    if not status:
        raise operation_failed("the lab's cell has ended", hint=f"see {root / '.cell.log'}")
    return int(status)


def is_there(root: Path) -> bool:
    """Return True if the folder has a cell."""
    with _connect(root) or contextlib.nullcontext() as found:
        return found is not None


def _connect(root: Path) -> socket.socket | None:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(OSError), _short(root) as path:
        channel.connect(path)
        return channel
    channel.close()
    return None


@contextlib.contextmanager
def _short(root: Path) -> Iterator[str]:
    """The socket's path: it has 107 bytes at most."""
    folder = os.open(root, os.O_PATH)
    try:
        yield f"/proc/self/fd/{folder}/{_SOCKET}"
    finally:
        os.close(folder)


def _bind(port: int) -> socket.socket | None:
    """The port outside; None if a cell, or another program, has it."""
    outer = socket.socket()
    outer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.suppress(OSError):
        outer.bind(("127.0.0.1", port))
        return outer
    outer.close()
    return None


def _make(root: Path) -> socket.socket:
    """Start the cell's first process, and wait until it serves."""
    log = root / ".cell.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_delegated(), sys.executable, "-m", "lab.daemon.cell", str(root)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_TIMEOUT
    while process.poll() is None and time.monotonic() < deadline:
        if channel := _connect(root):
            return channel
        time.sleep(0.02)
    lines = log.read_text(errors="replace").strip().splitlines() or ["it does not answer"]
    raise operation_failed(f"the lab's cell did not start: {lines[-1]}", hint=f"see {log}")


def _delegated() -> list[str]:
    """The beginning of a command that runs the rest in a control group of the user's own."""
    if os.geteuid() == 0 or os.access(_control_group(), os.W_OK):
        return []
    return ["systemd-run", "--user", "--scope", "--quiet", "-p", "Delegate=yes", "--"]


def _control_group() -> Path:
    """This process's group of version 2."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    top = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), CGROUPS)
    own = re.search(r"^0::(.*)", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    return top / (own[1] if own else "").lstrip("/")


def first_ids() -> list[int]:
    """The first of the user and group ids of guests on this machine."""
    if os.geteuid() == 0:
        return [_ROOTS_IDS, _ROOTS_IDS]
    name = pwd.getpwuid(os.geteuid()).pw_name
    listed = [run("getsubids", *kind, name, check=False).split() for kind in ((), ("-g",))]
    if any(len(words) < 4 or int(words[3]) < _IDS for words in listed):
        raise operation_failed(
            f"{name} has no range of 65,536 subordinate ids in /etc/subuid and /etc/subgid",
            hint=f"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}",
        )
    return [int(words[2]) for words in listed]


def main(root: Path) -> int:
    """Make the cell of a folder; serve until its last program ends."""
    ids, settings = first_ids(), {}
    for path in Path("/proc/sys/net/core").iterdir():
        with contextlib.suppress(OSError):
            settings[path.name] = path.read_text()
    os.environ[NET_CORE] = json.dumps(settings)
    group = None
    if os.geteuid() == 0:
        group = _control_group() / f"kiln-lab-{os.getpid()}"
        group.mkdir()
    ready, go = os.pipe(), os.pipe()
    first = os.fork()
    if first == 0:
        if group:
            (group / "cgroup.procs").write_text("0")
        libc.prctl(_PDEATHSIG, signal.SIGKILL)
        check(libc.unshare(_NEWNS | _NEW_OTHERS), "unshare")
        os.write(ready[1], b"1")
        os.read(go[0], 1)
        os._exit(_inside(root))
    os.read(ready[0], 1)
    for kind, start in zip(("uid", "gid"), ids, strict=True):
        own = os.geteuid() if kind == "uid" else os.getegid()
        entries = [(0, own, 1), (1, start, _IDS)]
        if group:
            if owner := getattr(ROOT.stat(), f"st_{kind}"):
                entries.append((_IDS + 1, owner, 1))  # for `sudo ./invoke` in a user's checkout
            map_ids(first, kind, entries)
        else:
            numbers = [str(number) for entry in entries for number in entry]
            run(f"new{kind}map", str(first), *numbers)
    os.write(go[1], b"1")
    status = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    if group:
        cgroups.remove(group)
    return status


def _inside(root: Path) -> int:
    """Start the first process of the process namespace, and the way out of its network."""
    ready, has_route = os.pipe(), _has_route()
    first = os.fork()
    if first == 0:
        libc.prctl(_PDEATHSIG, signal.SIGKILL)
        check(libc.unshare(_NEWNET | _NEWNS), "unshare")
        mount("", "/", "", _MS_SHARED)
        mount("proc", "/proc", "proc", _MS_PLAIN)
        mount("sysfs", "/sys", "sysfs", _MS_PLAIN)
        mount("cgroup2", CGROUPS, "cgroup2", _MS_PLAIN)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for kind in ("all", "default"):
            Path(f"/proc/sys/net/ipv6/conf/{kind}/disable_ipv6").write_text("1")
        run("ip", "link", "set", "lo", "up")
        os.write(ready[1], b"1")
        deadline = time.monotonic() + _START_TIMEOUT / 3
        while has_route and not _has_route() and time.monotonic() < deadline:
            time.sleep(0.01)
        os._exit(_Server(root).serve())
    os.read(ready[0], 1)
    # pasta gives up the right to open the namespace of a process; here it has a name.
    named = root / ".cell.log"
    mount(f"/proc/{first}/ns/net", named, "", _MS_BIND)
    (root / PROCESS).write_text(str(first))
    subprocess.Popen(_way_out(named))  # the kernel ends it
    while (ended := os.wait())[0] != first:
        pass
    return os.waitstatus_to_exitcode(ended[1])


def _has_route() -> bool:
    return "\t00000000\t" in Path("/proc/net/route").read_text()


def _way_out(network: Path) -> list[str]:
    """The command that connects a process's network to this one's; nobody gets in by it.

    It has this machine's address, so that it cannot reach it there, and with the interface named it
    reaches no other of this machine's.
    """
    found = re.search(r"\bdev (\S+)", run("ip", "-4", "route", "show", "default", check=False))
    way = f"--interface {found[1]} --outbound-if4 {found[1]}" if found else ""
    return [*f"{_PASTA} {way} --netns".split(), str(network)]


class _Server:
    """The cell's first process: starts programs, and ends when none is left."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._programs: dict[int, socket.socket] = {}
        self._ports: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def serve(self) -> int:
        """Serve until the last program has ended; the kernel ends what is left."""
        with _short(self._root) as path:
            Path(path).unlink(missing_ok=True)
            self._socket.bind(path)
        self._socket.listen(64)
        wake = os.pipe2(os.O_NONBLOCK)
        signal.set_wakeup_fd(wake[1])
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._socket, selectors.EVENT_READ, self._accept)
        self._selector.register(wake[0], selectors.EVENT_READ, lambda: os.read(wake[0], 64))
        while not self._is_over():
            for key, _ in self._selector.select(1):
                key.data()
            self._reap()
        return 0

    def _is_over(self) -> bool:
        if self._programs or self._labs():
            return False
        with locks.alone(self._root / ".cell.lock"):  # nobody is asking for this cell now
            if self._selector.select(0):
                return False
            with _short(self._root) as path:
                Path(path).unlink()
            for port in self._ports.values():
                os.close(port)
        return True

    def _labs(self) -> bool:
        """Return True if a lab is up."""
        end = "\0".join(SERVER).encode() + b"\0"
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if process.read_bytes().endswith(end):
                    return True
        return False

    def _accept(self) -> None:
        channel, _ = self._socket.accept()
        with contextlib.suppress(OSError, ValueError):
            text, given, _, _ = socket.recv_fds(channel, _LONGEST, 4)
            if text:
                self._start(channel, json.loads(text), list(given))
                return
        channel.close()

    def _start(self, channel: socket.socket, request: dict[str, Any], given: list[int]) -> None:
        port = request["port"]
        if len(given) > 3:
            self._ports[port] = given.pop()
        child = os.fork()
        if child == 0:
            self._become(request, given, port)
        for descriptor in given:
            os.close(descriptor)
        self._programs[child] = channel
        self._selector.register(
            channel, selectors.EVENT_READ, lambda: self._pass_on(channel, child)
        )

    def _become(self, request: dict[str, Any], given: list[int], port: int) -> None:
        environment = {**request["environment"], NET_CORE: os.environ[NET_CORE]}
        try:
            os.setsid()
            for descriptor, source in enumerate(given):
                os.dup2(source, descriptor)
            if port in self._ports:
                os.dup2(self._ports[port], 3)
            if port:
                environment[PORT] = "3" if port in self._ports else ""
            os.chdir(request["folder"])
            os.execvpe(request["command"][0], request["command"], environment)  # noqa: S606
        except OSError as error:
            os.write(2, f"ami-kiln: the lab's cell: {error}\n".encode())
        finally:
            os._exit(127)

    def _pass_on(self, channel: socket.socket, program: int) -> None:
        """A signal for a program; the end of who asked for it ends it too."""
        number = channel.recv(1)
        with contextlib.suppress(ProcessLookupError):
            if number and number[0] == signal.SIGINT:
                os.killpg(program, signal.SIGINT)  # as a terminal does
            else:
                os.kill(program, number[0] if number else signal.SIGKILL)
        if not number:
            self._selector.unregister(channel)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if channel := self._programs.pop(ended[0], None):
                    status = os.waitstatus_to_exitcode(ended[1])
                    with contextlib.suppress(OSError):
                        channel.send(str(status if status >= 0 else 128 - status).encode())
                    with contextlib.suppress(KeyError):
                        self._selector.unregister(channel)
                    if self._programs or self._labs():
                        channel.close()
                    else:
                        self._last = channel  # open until this process has ended


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except (KilnError, OSError, CommandError) as error:
        sys.exit(str(error))
