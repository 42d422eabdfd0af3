"""The lab's process: API, metadata service, vendor mirror, and the guests' supervisor.

`lab.daemon.control.up` starts it; `python -m lab.daemon.server` runs it in the foreground.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from lab.api import botocore_data, faults, session_token
from lab.api.faults import Faults
from lab.base import folders, origin
from lab.base.settings import Lab, current
from lab.base.shell import CommandError
from lab.daemon import cell, host, left_behind
from lab.machine import bridge
from lab.moto import public_images
from lab.vendors import kinds as vendors

if TYPE_CHECKING:  # moto reads its settings when it is imported
    from lab.moto.machines import Machines

log = logging.getLogger("lab")


def main() -> int:
    """Serve until SIGTERM or SIGINT; exit status 1 when it could not start."""
    lab = current()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", force=True
    )
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    _alone(lab)
    # Remove what a killed lab left behind.
    left_behind.remove(lab)
    folders.private(lab.root, lab.instances, lab.images, lab.shared / "bases")
    try:
        host.can_have_disks(lab)
        bridge.require_free_network(lab)
        serve(lab)
    except (OSError, KilnError, CommandError) as error:
        # control.up looks for this word in the log.
        log.error("FATAL %s", getattr(error, "message", error))
        left_behind.remove(lab)
        return 1
    return 0


def serve(lab: Lab) -> None:
    """Start everything, serve until a request to stop, stop everything."""
    from kiln.matrix.load import load_recipes

    botocore_data.read_once()
    public = public_images.public_images(load_recipes())
    configure_moto(lab, public)

    # moto reads its settings when it is imported.
    from werkzeug.serving import make_server

    from lab.api import imds, web
    from lab.api.dispatch import Callers
    from lab.machine import dns, endpoints
    from lab.moto import backends, buckets, metadata, role_sessions
    from lab.moto.ec2 import consistency
    from lab.moto.machines import Machines
    from lab.rootfs import bases, real_bases
    from lab.vendors import mirror

    ordered, base_lock, kind_of_vendors = Faults(), threading.Lock(), vendors.wanted()

    def base(distro: str, arch: str) -> Path:
        with base_lock:  # one at a time
            real = kind_of_vendors == vendors.REAL
            return (real_bases.guest_root if real else bases.ensure)(distro, arch)

    machines = Machines(lab, public, base, ordered)
    stopping = threading.Event()
    admin = _Admin(machines, ordered, stopping.set)
    callers = Callers(session_token.ensure(lab), role_sessions.is_valid, [lab.gateway])
    api = backends.api(machines, admin, callers)
    server = make_server("127.0.0.1", lab.port, api, threaded=True, request_handler=web.Handler)
    bridge.up(lab)

    def is_here(name: str) -> bool:
        return endpoints.is_lab_endpoint(name, buckets.exists)

    vendor_hosts = [] if kind_of_vendors == vendors.REAL else mirror.vendor_hosts()
    resolver = dns.Resolver(lab.gateway, dns.addresses(lab, vendor_hosts, is_here))
    metadata_service = imds.serve(lab.gateway, lab.imds_port, metadata.find)
    vendor = mirror.serve(lab.gateway, state=lab.shared, api=(lab.port, is_here))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if descriptor := os.environ.get(cell.PORT):
        outside = make_server(
            "127.0.0.1", lab.port, api, True, request_handler=web.Handler, fd=int(descriptor)
        )
        outside.server_activate()
        threading.Thread(target=outside.serve_forever, daemon=True).start()
    consistency.log_seed()
    _wait(lab, stopping)

    log.info("going down")
    _stop_helpers()
    base_lock.acquire(timeout=10)
    _end(machines, lambda: web.end(server), metadata_service.shutdown, vendor.close, resolver.close)
    left_behind.remove(lab)
    lab.pid_file.unlink(missing_ok=True)
    log.info("down")


def _alone(lab: Lab) -> None:
    """Hold the lab's pid file, which tells others that the lab runs, until this process ends."""
    folders.private(lab.root, lab.state)
    file = os.open(lab.pid_file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    os.ftruncate(file, 0)
    os.write(file, str(os.getpid()).encode())


def _end(machines: Machines, *services: Callable[[], None]) -> None:
    """Power the guests off, and end what serves them."""
    for instance in list(machines.by_address.values()):
        with contextlib.suppress(Exception):
            instance.power_off_now()
    for service in services:
        service()


def _wait(lab: Lab, stopping: threading.Event) -> None:
    """Say that the lab is up, and wait until it shall go down."""
    log.info("up at %s", lab.endpoint)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    stopping.wait()


def configure_moto(lab: Lab, public: list[public_images.PublicImage]) -> None:
    """Set what moto reads from the environment when it is imported."""
    os.environ["MOTO_AMIS_PATH"] = str(public_images.write(lab, public))
    # Roles take AWS's own policies: AmazonSSMManagedInstanceCore, CloudWatchAgentServerPolicy.
    os.environ["MOTO_IAM_LOAD_MANAGED_POLICIES"] = "true"
    os.environ["MOTO_ENABLE_KEYPAIR_VALIDATION"] = "true"
    os.environ["MOTO_ENABLE_AMI_VALIDATION"] = "true"
    os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "true"


def _stop_helpers() -> None:
    """End the child processes in our process group; mmdebstrap then removes its own mounts."""
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)


class _Admin:
    """The lab's own calls: status, hashes of what the mirror serves, injected failures, stop."""

    def __init__(self, machines: Machines, ordered: Faults, stop: Callable[[], None]) -> None:
        self._machines = machines
        self._faults = ordered
        self._stop = stop
        self._since = time.time()
        self._started_from = origin.started_from()

    def __call__(self, path: str, body: dict[str, Any]) -> Any:
        if path == "status":
            return self._status()
        if path == "hashes":
            from lab.vendors import mirror  # its parts are slow to import

            return {url: mirror.sha256(url) for url in body["urls"] if mirror.find(str(url))}
        if path == "faults":
            self._faults.order(faults.Fault(**body))
            return self._faults.to_dict()
        if path == "faults/clear":
            self._faults.clear()
            return []
        if path == "down":
            threading.Timer(0.05, self._stop).start()
            return {"going": "down"}
        raise KeyError(f"no such call: {path}")

    def _status(self) -> dict[str, Any]:
        lab = self._machines.lab
        return {
            "lab": lab.bridge,
            "state": str(lab.state),
            "endpoint": lab.endpoint,
            "pid": os.getpid(),
            "started_from": self._started_from,
            "checkout": str(ROOT),
            "vendors": vendors.wanted(),
            "in_use": bool(self._machines.by_address) or self._machines.has_key_pairs(),
            "seconds_up": round(time.time() - self._since, 1),
            "instances": [
                {
                    "id": instance.id,
                    "state": instance.state,
                    "ami": instance.image_id,
                    "instance_type": instance.instance_type,
                    "address": instance.address,
                    "distro": instance.distro,
                }
                for instance in list(self._machines.by_address.values())
            ],
            "amis": [
                {"id": image.id, "name": image.name, "region": image.region}
                for image in list(self._machines.made.values())
            ],
            "public_amis": [
                {"id": image.id, "name": image.name, "ssm_parameters": image.parameters}
                for image in self._machines.public.values()
            ],
            "faults": self._faults.to_dict(),
            "calls": self._faults.calls(),
        }


if __name__ == "__main__":
    sys.exit(main())
