"""The lab from outside: start it, ask it, stop it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import KNOWLEDGE, ROOT, matrix_file
from lab import sweep
from lab.settings import Lab, current

_START_TIMEOUT = 30.0


def call(lab: Lab, path: str, body: dict[str, Any] | None = None, timeout: float = 5.0) -> Any:
    """One of the lab's own calls. Raises OSError when the lab does not answer."""
    request = urllib.request.Request(
        f"{lab.endpoint}/_lab/{path}",
        data=json.dumps(body or {}).encode(),
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


def status(lab: Lab | None = None) -> dict[str, Any] | None:
    """What the lab says of itself, or None when it is down."""
    lab = lab or current()
    pid = _pid(lab)
    # A busy machine answers late: to take that for down would start a second lab, and sweep the
    # guests of this one away.
    patience = _START_TIMEOUT if pid and _runs(pid) else 5.0
    try:
        found: dict[str, Any] = call(lab, "status", timeout=patience)
    except (OSError, ValueError):
        return None
    return found


def up(lab: Lab | None = None) -> dict[str, Any]:
    """Start the lab unless it is up; its status.

    One that is up but was started from other code or another matrix is started anew, unless
    somebody has instances or key pairs in it.
    Raises KilnError when it does not come up: with exit code 1, and the reason from its log.
    """
    lab = lab or current()
    with _alone(lab):
        return _up(lab)


def _up(lab: Lab) -> dict[str, Any]:
    found = status(lab)
    if found and (found.get("started_from") == started_from() or found.get("in_use")):
        return found
    if found:
        _down(lab)
    lab.state.mkdir(parents=True, exist_ok=True)
    start = lab.log.stat().st_size if lab.log.exists() else 0
    with lab.log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "lab.server"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "KILN_LAB_STATE": str(lab.root)},
        )
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _did_not_start(lab, start)
        found = status(lab)
        if found and found["pid"] == process.pid:
            return found
        time.sleep(0.05)
    process.terminate()
    raise _did_not_start(lab, start)


def started_from() -> str:
    """A digest of what a lab is made of: its code and stand-ins, the facts, the matrix."""
    # Other processes may be writing compiled files there.
    files = [path for path in (ROOT / "lab").rglob("*") if "__pycache__" not in path.parts]
    total = hashlib.sha256()
    for path in sorted([*files, *KNOWLEDGE.glob("*.yaml"), matrix_file()]):
        if path.is_file():
            total.update(f"{path}\0".encode() + path.read_bytes())
    return total.hexdigest()


def down(lab: Lab | None = None) -> list[str]:
    """Stop the lab and take everything of it off the host; what a crashed one had left.

    AMIs stay: `clean` deletes them.
    """
    lab = lab or current()
    with _alone(lab):
        return _down(lab)


def _down(lab: Lab) -> list[str]:
    pid = _pid(lab)
    with contextlib.suppress(OSError, ValueError):
        call(lab, "down")
    if pid:
        deadline = time.monotonic() + 20
        while _runs(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    lab.pid_file.unlink(missing_ok=True)
    return sweep.sweep(lab)


def clean(lab: Lab | None = None, *, bases: bool = False) -> list[str]:
    """`down`, and delete the lab's AMIs, disks and logs; with `bases` also what labs share, and
    what the kernel was told for guests of another processor.

    Raises KilnError when `bases` would take the ground from under another lab's AMIs, or from under
    a root filesystem that is being made.
    """
    lab = lab or current()
    others = [pid.parent.name for pid in lab.root.glob("lab*/lab.pid") if pid.parent != lab.state]
    if bases and others:
        raise operation_failed(
            f"{', '.join(others)} stand on the same root filesystems",
            hint="take them down first: KILN_LAB_INDEX=n ./invoke lab.clean",
        )
    from lab import emulation, tree

    swept = down(lab)
    shared = [lab.shared / name for name in ("bases", "mirror", "keys", "ca", "apt")]
    with _nobody_makes_a_base(lab) if bases else contextlib.nullcontext():
        for folder in [lab.state, *(shared if bases else [])]:
            if folder.exists():
                tree.delete(folder)
                swept.append(f"folder {folder}")
    if bases:
        swept += emulation.forget_all()
    return swept


@contextlib.contextmanager
def _nobody_makes_a_base(lab: Lab) -> Iterator[None]:
    """Hold the lock of those who make root filesystems; a build that makes one is not cut off."""
    folder = lab.shared / "bases"
    if not folder.is_dir():
        yield
        return
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise operation_failed(
                "a root filesystem is being made just now",
                hint="wait for the build that makes it, or stop it",
            ) from None
        yield


def order_fault(lab: Lab, **fault: Any) -> None:
    """Order a failure: see lab.faults.Fault for the fields."""
    call(lab, "faults", fault)


def environment(lab: Lab) -> dict[str, str]:
    """What an AWS client needs to talk to the lab: the endpoint and keys that open nothing else."""
    return {
        "AWS_ENDPOINT_URL": lab.endpoint,
        "AWS_ACCESS_KEY_ID": "kiln-lab",
        "AWS_SECRET_ACCESS_KEY": "kiln-lab",
        "AWS_DEFAULT_REGION": os.environ.get("AWS_DEFAULT_REGION", "us-east-1"),
    }


def shell(lab: Lab, instance_id: str, command: list[str] | None = None) -> int:
    """A root shell (or one command) in a guest, without SSH; its exit status.

    Raises KilnError when there is no such guest.
    """
    from lab.guest import leader_of

    pid_file = lab.instances / instance_id / "nspawn.pid"
    leader = leader_of(int(pid_file.read_text())) if pid_file.exists() else None
    if leader is None:
        on = [instance["id"] for instance in (status(lab) or {"instances": []})["instances"]]
        raise KilnError(
            f"no guest {instance_id} is on in {lab.bridge}",
            hint=f"on now: {', '.join(on)}" if on else "none is on: see lab.status",
        )
    enter = inside(leader, "--mount", "--uts", "--ipc", "--net", "--pid")
    return subprocess.call([*enter, *(command or ["/bin/bash", "-l"])])


def inside(leader: int, *namespaces: str) -> list[str]:
    """The words before a command that run it in the guest with that PID 1.

    A guest that goes down stops all its processes before it kills them, and an nsenter that has one
    for its child stops itself too, for good. So it does not fork: a shell between the two, which is
    no process of the guest's, waits for the end and for nothing else.
    """
    enter = ["nsenter", f"--target={leader}", *namespaces, "--no-fork", "--"]
    return [*enter, "/bin/sh", "-c", '"$@"; exit $?', "sh"]


@contextlib.contextmanager
def _alone(lab: Lab) -> Iterator[None]:
    """One starts or stops this lab at a time: of two builds, the second finds the first one's."""
    lab.root.mkdir(parents=True, exist_ok=True)
    with (lab.root / f".{lab.bridge}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pid(lab: Lab) -> int | None:
    try:
        return int(lab.pid_file.read_text())
    except (OSError, ValueError):
        return None


def _runs(pid: int) -> bool:
    """Is the process there, and not a zombie that its parent has yet to collect?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] != "Z"
    except OSError:
        return False


def _did_not_start(lab: Lab, start: int) -> KilnError:
    with lab.log.open("rb") as log:
        log.seek(start)
        lines = log.read().decode("utf-8", "replace").strip().splitlines()
    fatal = [line.split("FATAL ", 1)[1] for line in lines if "FATAL " in line]
    reason = fatal[-1] if fatal else (lines[-1] if lines else "it said nothing")
    sweep.sweep(lab)
    hint = f"see {lab.log}"
    if "in use" in reason:
        hint = (
            f"something else listens on 127.0.0.1:{lab.port}: stop it, or choose another port "
            f"with KILN_LAB_PORT"
        )
    return operation_failed(f"the lab did not start: {reason}", hint=hint)
