"""Start, query and stop the lab from another process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import IO, Any

from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import ROOT
from lab.api import session_token
from lab.base import folders, locks, origin
from lab.base.settings import Lab, current
from lab.daemon import cell, left_behind, users
from lab.vendors import kinds as vendors

_START_TIMEOUT = 120.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def call(lab: Lab, path: str, body: dict[str, Any] | None = None, timeout: float = 60.0) -> Any:
    """Make one of the lab's own calls, with its session token.

    Raises OSError when the lab does not answer, ValueError with the lab's message when it refuses
    what was asked for.
    """
    token = session_token.read(lab)
    if not token:
        raise OSError(f"{lab.bridge} has never been up")
    url, data = f"{lab.endpoint}/_lab/{path}", json.dumps(body or {}).encode()
    headers = {"Content-Type": "application/json", session_token.HEADER: token}
    request = urllib.request.Request(url, data, headers, method="POST")
    try:
        # Loopback needs no proxy.
        with _DIRECT.open(request, timeout=timeout) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.BAD_REQUEST:
            raise
        raise ValueError(json.load(error)["error"]) from None


def status(lab: Lab | None = None) -> dict[str, Any] | None:
    """The lab's status, or None when it is down."""
    lab = lab or current()
    # A busy machine answers late. Treating that as "down" would start a second lab and sweep away
    # the guests of this one.
    patience = _START_TIMEOUT if is_running(lab) else 5.0
    try:
        answer: dict[str, Any] = call(lab, "status", timeout=patience)
    except (OSError, ValueError):
        return None
    return answer


def served_hashes(urls: Sequence[str], lab: Lab | None = None) -> dict[str, str]:
    """URL → SHA-256 of the files that the running lab serves: its own, whatever this checkout would
    make. Those that it lacks are left out; {} if it is down or too old to know the call.
    """
    try:
        answer: dict[str, str] = call(lab or current(), "hashes", {"urls": list(urls)})
    except (OSError, ValueError):
        return {}
    return answer


def is_running(lab: Lab) -> bool:
    """Return True if the lab's process runs; unlike `status`, without asking it."""
    with contextlib.suppress(FileNotFoundError), lab.pid_file.open() as file:
        return _is_held(file)
    return False


def _is_held(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def up(lab: Lab | None = None, kind_of_vendors: str | None = None) -> dict[str, Any]:
    """Start the lab unless it is up; returns its status.

    `kind_of_vendors` is one of `lab.vendors`; None takes a running lab with either. A lab with the
    other is restarted; raises operation_failed if it is in use.

    A running lab that was started from other code or another matrix is restarted, unless a run uses
    it or it has instances or key pairs: `lab.base.origin.difference` says what such a lab runs.
    Raises operation_failed, with the reason from the log, when the lab does not come up, and for a
    lab in use whose checkout was deleted: what it loads on demand is gone.
    """
    lab = lab or current()
    with _alone(lab):
        return _up(lab, kind_of_vendors)


def _up(lab: Lab, wanted: str | None) -> dict[str, Any]:
    running = status(lab)
    has = (running or {}).get("vendors", vendors.STAND_INS)  # older labs do not say it
    others = bool(running) and wanted not in (None, has)
    if running and others and (running.get("in_use") or users.runs(lab)):
        raise operation_failed(
            f"{running['lab']} is in use, and its guests talk to the vendors' "
            f"{'hosts' if has == vendors.REAL else 'stand-ins'}",
            hint="wait for the run that uses it, ./invoke lab.down, or take another lab: "
            "KILN_LAB_INDEX=7",
        )
    if running and not others and running.get("started_from") == origin.started_from():
        return running
    if running and running.get("in_use") and not others:
        if origin.is_deleted(running):
            raise operation_failed(
                f"{running['lab']} has instances or key pairs, and {origin.difference(running)}",
                hint="./invoke lab.down removes its instances; its AMIs stay",
            )
        return running
    # A process that prepares a run, as this one may, cannot use a lab of other code.
    if running and users.runs(lab) and not others:
        return running
    if running or is_running(lab):  # also one that a killed call left starting
        _down(lab)
    folders.private(lab.root, lab.state)
    if not cell.is_inside():
        raise operation_failed("a lab starts in its cell only", hint="./invoke lab.up")
    outside = os.environ.get(cell.PORT)
    if outside == "":
        raise operation_failed(
            f"the lab did not start: another program listens on 127.0.0.1:{lab.port}",
            hint="stop it, or choose another port with KILN_LAB_PORT",
        )
    start = lab.log.stat().st_size if lab.log.exists() else 0
    with lab.log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *cell.SERVER],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=[int(outside)] if outside else [],
            env={
                **without_aws(),
                "PYTHONUNBUFFERED": "1",
                "KILN_LAB_INDEX": str(lab.index),
                "KILN_LAB_STATE": str(lab.root),
                vendors.VARIABLE: wanted or vendors.wanted(),
            },
        )
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _did_not_start(lab, start)
        running = status(lab)
        if running and running["pid"] == process.pid:
            return running
        time.sleep(0.05)
    process.terminate()
    raise _did_not_start(lab, start)


def down(
    lab: Lab | None = None, *, force: bool = False, say: Callable[[str], None] = lambda text: None
) -> list[str]:
    """Stop the lab and remove all of it from the host; returns what a crashed lab had left.

    AMIs stay: `clean` deletes them. `force` first ends the runs that use the lab, and `say` gets
    their names; without it, raises operation_failed while there are any.
    """
    lab = lab or current()
    while True:
        if force:  # not `_alone`: who prepares a run may be waiting to start the lab
            users.end(lab, say)
        with _alone(lab):
            if not force:
                users.refuse_if_used(lab)
            elif users.runs(lab):  # one has begun meanwhile
                continue
            return _down(lab)


def _down(lab: Lab) -> list[str]:
    with contextlib.suppress(FileNotFoundError), lab.pid_file.open() as file:
        with contextlib.suppress(OSError, ValueError):
            call(lab, "down", timeout=30)
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + 60
            while _is_held(file) and time.monotonic() < deadline:
                with contextlib.suppress(OSError, ValueError):
                    os.kill(int(file.read()), number)
                file.seek(0)
                time.sleep(0.05)
    swept = left_behind.remove(lab)
    lab.pid_file.unlink(missing_ok=True)
    return swept


def clean(
    lab: Lab | None = None,
    *,
    bases: bool = False,
    force: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[str]:
    """`down`, and delete the lab's AMIs, disks and logs; returns what was removed.

    `force` and `say` are those of `down`. `bases` also deletes what the labs share.
    Raises operation_failed when `bases` would delete what another lab is using, or a root
    filesystem that is being made.
    """
    lab = lab or current()
    others = [pid.parent.name for pid in lab.root.glob("lab*/lab.pid") if pid.parent != lab.state]
    if bases and others:
        raise operation_failed(
            f"the root filesystems are in use by other labs: {', '.join(others)}",
            hint="take them down first: KILN_LAB_INDEX=n ./invoke lab.clean",
        )
    from lab.rootfs import tree

    swept = down(lab, force=force, say=say)
    shared = [lab.shared / name for name in ("bases", "mirror", "keys", "ca", "apt")]
    with _no_base_in_progress(lab) if bases else contextlib.nullcontext():
        for folder in [lab.state, *(shared if bases else [])]:
            if tree.delete(folder):
                swept.append(f"folder {folder}")
    return swept


@contextlib.contextmanager
def _no_base_in_progress(lab: Lab) -> Iterator[None]:
    """Hold the lock of `bases.ensure`, so that no root filesystem is deleted while it is made."""
    folder = lab.shared / "bases"
    if not folder.is_dir():
        yield
        return
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise operation_failed(
                "a root filesystem is being made at the moment",
                hint="wait for the build that makes it, or stop it",
            ) from None
        yield


def order_fault(lab: Lab, **fault: Any) -> None:
    """Inject a failure; `lab.api.faults.Fault` has the fields."""
    call(lab, "faults", fault)


def environment(lab: Lab) -> dict[str, str]:
    """The environment of an AWS client of the lab: its endpoint and its session token.
    Where there is a proxy, lab and guests are reached without it.

    Raises operation_failed for a user who may not read the token.
    """
    token = session_token.require(lab)
    not_by_proxy = {name: os.environ.get(name) for name in ("no_proxy", "NO_PROXY")}
    return {
        "AWS_ENDPOINT_URL": lab.endpoint,
        "AWS_ACCESS_KEY_ID": session_token.KEY_ID,
        "AWS_SECRET_ACCESS_KEY": session_token.SECRET_KEY,
        "AWS_SESSION_TOKEN": token,
        "AWS_DEFAULT_REGION": os.environ.get("AWS_DEFAULT_REGION", "us-east-1"),
        **{name: f"{hosts},{lab.network}" for name, hosts in not_by_proxy.items() if hosts},
    }


def without_aws() -> dict[str, str]:
    """The caller's environment without an AWS configuration: its profile may not exist."""
    others = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    return {**others, "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}


@contextlib.contextmanager
def _alone(lab: Lab) -> Iterator[None]:
    """Let one process at a time start or stop this lab; a second build finds the lab running."""
    folders.private(lab.root)
    with locks.alone(lab.root / f".{lab.bridge}.lock"):
        yield


def _did_not_start(lab: Lab, start: int) -> KilnError:
    with lab.log.open("rb") as log:
        log.seek(start)
        lines = log.read().decode("utf-8", "replace").strip().splitlines()
    fatal = [line.split("FATAL ", 1)[1] for line in lines if "FATAL " in line]
    reason = fatal[-1] if fatal else (lines[-1] if lines else "no output")
    left_behind.remove(lab)
    return operation_failed(f"the lab did not start: {reason}", hint=f"see {lab.log}")


def died_of(lab: Lab) -> str:
    """Return why the lab's process ended without taking the lab down; "" when it runs or went
    down."""
    return "" if is_running(lab) or not lab.pid_file.exists() else exit_reason(lab)


def exit_reason(lab: Lab) -> str:
    """Return why a lab that was up is gone, in words, from the end of its log."""
    try:
        lines = lab.log.read_text(errors="replace")[-(1 << 16) :].splitlines()
    except OSError:
        return f"it was never started (no log {lab.log})"
    started = max((n for n, line in enumerate(lines) if " up at http" in line), default=0)
    since = lines[started:]
    for line in reversed(since):
        if "FATAL " in line:
            return line.split("FATAL ", 1)[1]
        if " lab INFO going down" in line:
            return "it was taken down"
    fatal = next((n for n, line in enumerate(since) if line.startswith("Fatal Python error")), None)
    if fatal is not None:
        return since[fatal]
    return (
        "its process was killed: its log ends without a word (kill -9, or no memory was left: "
        "see dmesg)"
    )
