"""The lab's EC2 without guests: the API and everything behind it, but instances boot nothing.

`python -m tests.unit.lab_api FOLDER` serves it on a free port, which it prints. It is a process of
its own, because moto is patched for the whole process.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The endpoint of a lab that keeps its files in `folder`."""
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout
            ready, _, _ = select.select([process.stdout], [], [], 120)
            port = process.stdout.readline().strip() if ready else ""
            assert port, (folder / "log").read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@functools.cache
def client(endpoint: str, service: str, region: str = "us-east-1") -> Any:
    """A boto3 client of that lab, which reports a failure at the first answer.

    One for all who ask: creating one of EC2's costs more than ten calls.
    """
    return boto3.client(
        service,
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id="KILN",
        aws_secret_access_key="secret",
        config=boto3.session.Config(retries={"total_max_attempts": 1}),
    )


class MachineWithoutGuest:
    """In the place of `lab.guests.guest.Guest`: it has a disk, and is up and down at once."""

    def __init__(self, *, lab: Any, instance_id: str, layers: list[Path], **_: Any) -> None:
        self._lab, self._id, self._layers = lab, instance_id, layers
        self.disks = self  # volumes are attached and detached at once, too

    def start(self) -> None:
        from lab.storage import disks

        missing = [str(layer) for layer in self._layers if not layer.is_dir()]
        assert not missing, missing
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

    def attach(self, volume: Any) -> None:
        pass

    def detach(self, volume_id: str) -> None:
        pass

    def flush(self, volume_id: str) -> None:
        pass


def main(folder: Path) -> None:
    """Serve until killed."""
    from kiln.matrix.load import load_recipes
    from lab import server, settings
    from lab.amis import public_images
    from lab.api import botocore_data

    # As the lab's server does.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    gc.disable()
    botocore_data.read_once()
    lab = settings.Lab(54, folder)
    public = public_images.public_images(load_recipes())
    server.configure_moto(lab, public)

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    from lab.api import entry, moto_fixes, web
    from lab.api.faults import Faults
    from lab.api.keys import Key
    from lab.cloudformation.front import CloudFormation
    from lab.codebuild.projects import CodeBuild
    from lab.guests import instances
    from lab.guests.machines import Machines
    from lab.network import bridge
    from lab.rootfs import emulation
    from lab.ssm import front

    base = folder / "base"
    base.mkdir()
    emulation.ensure = lambda arch: None
    instances.Guest = MachineWithoutGuest  # type: ignore[assignment,misc]
    bridge.publish = bridge.unpublish = lambda lab, public, address: None
    faults = Faults()
    moto_fixes.install(Machines(lab, public, lambda distro, arch: base, faults))
    # Nobody checks keys here: any is known.
    stacks = CloudFormation(lambda key_id: Key(key_id, "secret", "a test"))
    managed = front.Manager().over(DomainDispatcherApplication(create_backend_app))
    moto = stacks.over(CodeBuild().over(managed))
    application = entry.wrap(moto, faults, lambda path, body: {})
    served = make_server("127.0.0.1", 0, application, threaded=True, request_handler=web.Handler)
    gc.freeze()
    gc.enable()
    print(served.server_port, flush=True)
    served.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
