"""The lab's EC2 without guests: the API and everything behind it, but instances boot nothing.

`python -m devel.lab_api FOLDER` serves it on a free port, which it prints. It is a process of
its own, because moto is patched for the whole process. Tests have theirs from one that has loaded
moto and forks: `python -m devel.lab_api` does so for each folder that it reads.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from kiln.base.errors import operation_failed
from kiln.base.paths import ROOT


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The endpoint of a lab that keeps its files in `folder`.

    Raises KilnError (exit status 1) if it does not start.
    """
    forking = _forking()
    stdin, stdout = forking.stdin, forking.stdout
    if not (stdin and stdout):
        raise TypeError("it was started with pipes")
    (folder / "log").touch()
    stdin.write(f"{folder}\n")
    stdin.flush()
    ready, _, _ = select.select([stdout], [], [], 120)
    process, _, port = (stdout.readline() if ready else "").strip().partition(" ")
    try:
        if not port:
            raise operation_failed(f"the lab's API did not start: {(folder / 'log').read_text()}")
        yield f"http://127.0.0.1:{port}"
    finally:
        if process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)


@functools.cache
def _forking() -> subprocess.Popen[str]:
    """The process that forks a lab for each folder that it is told; it ends with this one."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=ROOT,
        # Most tests ask at once for what they have made.
        env={"KILN_LAB_SEED": "none", **os.environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@functools.cache
def client(endpoint: str, service: str, region: str = "us-east-1") -> Any:
    """A boto3 client of that lab, which reports a failure at the first answer.

    One for all who ask: creating one of EC2's costs more than ten calls.
    """
    return boto3.client(
        service,  # type: ignore[call-overload]
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id="KILN",
        aws_secret_access_key="secret",  # noqa: S106 (nobody checks keys there)
        config=Config(retries={"total_max_attempts": 1}),
    )


class MachineWithoutGuest:
    """In the place of `lab.machine.guest.Guest`: it has a disk, and is up and down at once."""

    def __init__(self, *, lab: Any, instance_id: str, layers: list[Path], **_: Any) -> None:
        self._lab, self._id, self._layers = lab, instance_id, layers

    def start(self) -> None:
        from lab.machine import disks

        missing = [str(layer) for layer in self._layers if not layer.is_dir()]
        if missing:
            raise operation_failed(f"layers that are no folders: {missing}")
        disks.prepare(self._lab, self._id, self._layers)

    def wait_until_booted(self, timeout: float) -> bool:
        return timeout > 0

    def power_off(self, timeout: float) -> None:
        # As a guest does, it takes a while: calls arrive in the meantime.
        time.sleep(0.2)

    def kill(self) -> None:
        pass

    def reboot(self) -> None:
        pass


def main(folder: Path) -> None:
    """Serve until killed."""
    served = _server(folder)
    print(served.server_port, flush=True)
    served.serve_forever()


def fork() -> None:
    """Serve each folder that is read from a fork of this process, until there are no more.

    What has to be loaded for a lab costs more than most tests ask of it.
    """
    from kiln.matrix.load import load_recipes
    from lab.api import botocore_data
    from lab.base import settings
    from lab.daemon import server
    from lab.moto import public_images

    botocore_data.read_once()
    with tempfile.TemporaryDirectory() as folder:
        # Moto reads the list of public AMIs, the same for each lab, when it is loaded.
        public = public_images.public_images(load_recipes())
        server.configure_moto(settings.Lab(54, Path(folder)), public)
        for module in ("moto.machines", "moto.ssm.models"):
            import_module(f"lab.{module}")
        import_module("moto.moto_server.werkzeug_app")
        gc.freeze()
        _fork_for_each()


def _fork_for_each() -> None:
    # Nobody asks how a lab ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in iter(sys.stdin.readline, ""):
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _serve_alone(Path(line.rstrip("\n")))


def _serve_alone(folder: Path) -> None:
    """Serve as a process whose errors are in the folder's log; prints its number and the port."""
    with (folder / "log").open("w") as log, Path(os.devnull).open() as nothing:
        os.dup2(log.fileno(), 2)
        os.dup2(nothing.fileno(), 0)
    try:
        served = _server(folder)
        print(os.getpid(), served.server_port, flush=True)
        served.serve_forever()
    except BaseException:
        traceback.print_exc()
        print(os.getpid(), flush=True)
    finally:
        os._exit(1)


def _server(folder: Path) -> Any:
    """The lab's API, which listens on a free port and is not served yet."""
    from kiln.matrix.load import load_recipes
    from lab.api import botocore_data
    from lab.base import settings
    from lab.daemon import server
    from lab.moto import public_images

    # As the lab's server does.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    gc.disable()
    botocore_data.read_once()
    lab = settings.Lab(54, folder)
    public = public_images.public_images(load_recipes())
    server.configure_moto(lab, public)

    from werkzeug.serving import make_server

    from lab.api import web
    from lab.api.faults import Faults
    from lab.machine import bridge
    from lab.moto import backends, instances
    from lab.moto.machines import Machines
    from lab.rootfs import emulation

    base = folder / "bases" / "base"
    base.mkdir(parents=True)
    emulation.ensure = lambda arch: None
    instances.Guest = MachineWithoutGuest  # type: ignore[attr-defined,assignment]
    bridge.publish = bridge.unpublish = lambda lab, public, address: None
    machines = Machines(lab, public, lambda distro, arch: base, Faults())
    api = backends.api(machines, lambda path, body: {})
    served = make_server("127.0.0.1", 0, api, threaded=True, request_handler=web.Handler)
    gc.freeze()
    gc.enable()
    return served


if __name__ == "__main__":
    main(Path(sys.argv[1])) if sys.argv[1:] else fork()
