"""A lab whose guests talk to the vendors' hosts: a server in a network of its own plays them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import guests
import pytest
from conftest import ROOT, Guest, another_lab, lab_of_the_tests, launching, plain_client

from lab.base.settings import Lab
from lab.base.shell import run
from lab.daemon import control
from lab.machine import dns
from lab.vendors import kinds as vendors
from lab.vendors import mirror

KEY = "https://nvidia.github.io/libnvidia-container/gpgkey"
SERVE = """
import sys, time
from pathlib import Path
from lab.vendors import mirror
mirror.serve(sys.argv[1], log=Path(sys.argv[2]))
print("up", flush=True)
time.sleep(3600)
"""


@dataclass(frozen=True)
class World:
    """A guest, the address of the vendors' hosts, and the requests that arrived there."""

    lab: Lab
    guest: Guest
    vendors: str
    requests: Path


@contextlib.contextmanager
def internet(lab: Lab, log: Path) -> Iterator[str]:
    """The vendors' hosts at an address that no host of the internet has (RFC 2544)."""
    name, here, there = f"inet{lab.index}", f"198.18.{lab.index}.1", f"198.18.{lab.index}.2"
    with guests.network() as network:
        inside = ("nsenter", f"--target={network}", "--net")
        run("ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}i", "netns", network)
        run("ip", "addr", "add", f"{here}/30", "dev", name)
        run("ip", "link", "set", name, "up")
        run(*inside, "ip", "addr", "add", f"{there}/30", "dev", f"{name}i")
        run(*inside, "ip", "link", "set", f"{name}i", "up")
        command = [*inside, sys.executable, "-c", SERVE, there, str(log)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout and server.stdout.readline() == "up\n"
                yield there
            finally:
                server.kill()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if guests.DISTRO != "debian12":
        pytest.skip("debian12 needs a Debian mirror")
    lab_of_the_tests()
    # The lab of the other tests has the stand-ins.
    lab = another_lab(__file__)
    home = tmp_path_factory.mktemp("vendors")
    hosts, resolver = set(mirror.vendor_hosts()), f"127.0.{lab.index}.53"
    with contextlib.ExitStack() as until_done:
        place = until_done.enter_context(internet(lab, home / "requests"))
        names = dns.Resolver(resolver, lambda name: place if name in hosts else None)
        until_done.callback(names.close)
        until_done.callback(control.clean, lab)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KILN_LAB_INDEX", str(lab.index))
            patch.setenv("KILN_LAB_RESOLVER", resolver)
            control.up(lab, vendors.REAL)
        ec2 = plain_client(lab, "ec2")
        key = home / "key.pem"
        key.touch(mode=0o600)
        key.write_text(ec2.create_key_pair(KeyName="world", KeyType="ed25519")["KeyMaterial"])
        filters = [{"Name": "name", "Values": ["debian-12-amd64-*"]}]
        (image,) = ec2.describe_images(Filters=filters)["Images"]
        launch = until_done.enter_context(launching(ec2, ("world", key), ""))
        guest = launch(image["ImageId"], user="admin")
        yield World(lab, guest, place, home / "requests")


def test_a_vendors_name_leads_out_and_awss_to_the_lab(world: World) -> None:
    ask = "getent ahostsv4 {} | head -n 1 | cut -d' ' -f1; "
    names = ("us.download.nvidia.com", "s3.us-east-1.amazonaws.com")
    answer = world.guest.run("".join(ask.format(name) for name in names))
    assert answer.stdout.split() == [world.vendors, world.lab.gateway], answer


def test_a_vendors_file_comes_from_the_vendors_host(world: World) -> None:
    done = world.guest.run(f"curl -sS -o /dev/null -w '%{{http_code}} %{{remote_ip}}' {KEY}")
    assert done.stdout == f"200 {world.vendors}", done
    assert f"GET {KEY} 200" in world.requests.read_text()
