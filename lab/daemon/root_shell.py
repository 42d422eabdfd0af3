"""Commands in a guest as root, without SSH."""

from __future__ import annotations

import os
import shlex
import subprocess

from kiln.base.errors import KilnError
from lab.base.settings import Lab
from lab.daemon import control
from lab.machine.guest import leader_of


def shell(lab: Lab, instance_id: str, command: list[str] | None = None) -> int:
    """Run a root shell (or `command`) in a guest, without SSH; returns its exit status.

    Raises KilnError when no such guest is running.
    """
    pid_file = lab.instances / instance_id / "nspawn.pid"
    leader = leader_of(int(pid_file.read_text())) if pid_file.exists() else None
    if leader is None:
        state = control.status(lab) or {"instances": []}
        running = [instance["id"] for instance in state["instances"]]
        raise KilnError(
            f"no guest {instance_id} is running in {lab.bridge}",
            hint=f"running: {', '.join(running)}" if running else "none is running: see lab.status",
        )
    enter = entering(leader)
    whole = [*enter, *(command or ["/bin/bash", "-l"])]
    if os.isatty(0) and os.isatty(1):
        # A terminal of its own: on this one a guest could type, as its user here (TIOCSTI).
        whole = ["script", "--quiet", "--return", "--command", shlex.join(whole), os.devnull]
    # Another one may be the lab's session token, which lab.up prints.
    shown = {name: os.environ[name] for name in ("PATH", "TERM", "LANG") if name in os.environ}
    return subprocess.call(whole, env=shown)


def entering(leader: int) -> list[str]:
    """The command prefix that runs a command in the guest whose PID 1 is `leader`.

    A guest that shuts down sends SIGSTOP to its processes before it kills them; an nsenter that
    waits for such a child then stops too and never continues. Therefore a shell of this machine
    waits for it. Only the child is among the guest's processes, and runs what the guest has.
    """
    enter = f"nsenter --target={leader}"
    wait = [*f"{enter} --pid --no-fork -- /bin/sh -c".split(), '"$@"; exit $?', "sh"]
    return [*wait, *f"{enter} --user --mount --uts --ipc --net --cgroup --".split()]
