"""What foreign templates find on a guest and change: names, kernel settings, tokens."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Guest, launching

from lab.machine.guest import leader_of

AL2 = "ami-amazon-linux-latest/amzn2-ami-kernel-5.10-hvm-x86_64-gp2"
UBUNTU = "canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
USER_DATA = "#cloud-config\nhostname: forge\n"


@pytest.fixture(scope="module")
def guests(ec2: Any, client: Any, key: tuple[str, Path]) -> Iterator[dict[str, Guest]]:
    """A guest of each family of package tools; user-data names the host of the second."""
    with launching(ec2, key, "") as launch:

        def of(parameter: str, user: str, **more: Any) -> Guest:
            found = client("ssm").get_parameter(Name=f"/aws/service/{parameter}")
            return launch(found["Parameter"]["Value"], user=user, **more)

        yield {
            "al2": of(AL2, "ec2-user"),
            "ubuntu2404": of(UBUNTU, "ubuntu", UserData=USER_DATA),
        }


@pytest.fixture(params=["al2", "ubuntu2404"])
def guest(request: pytest.FixtureRequest, guests: dict[str, Guest]) -> Guest:
    """Each of the guests."""
    return guests[request.param]


def test_guest_resolves_ec2_and_vendor_names(guest: Guest):
    ask = "getent ahostsv4 {} | head -n 1 | cut -d' ' -f1"
    name = f"ip-{guest.address.replace('.', '-')}"
    own = guest.run(f"{ask.format(name)}; {ask.format('developer.download.nvidia.com')}")
    gateway = ".".join([*guest.address.split(".")[:2], "0", "1"])
    assert own.stdout.split() == [guest.address, gateway], own
    other = guest.run(
        "echo nameserver 192.0.2.53 | sudo tee /etc/resolv.conf && "
        + ask.format("developer.download.nvidia.com")
    )
    assert other.stdout.split()[-1] == gateway, other


def test_guest_reaches_the_package_mirror(guests: dict[str, Guest]):
    # Another folder: as on EC2, the lists of a new machine are locked for a while.
    options = "Dir::State::Lists=/run/lists -o Acquire::Retries=0 -o Acquire::http::Timeout=20"
    update = f"mkdir -p /run/lists/partial && apt-get -q -o {options} update"
    done = guests["ubuntu2404"].run(f"sudo sh -c '{update}' 2>&1")
    assert done.returncode == 0 and not re.search("^(W|E|Err):", done.stdout, re.MULTILINE), done


def test_guest_reboots_while_its_old_network_is_there(guests: dict[str, Guest], lab: Any):
    guest, boot = guests["al2"], "cat /proc/sys/kernel/random/boot_id"
    leader = leader_of(int((lab.instances / guest.id / "nspawn.pid").read_text()))
    first = guest.run(boot).stdout
    holding = ["nsenter", f"--target={leader}", "--net", "sh", "-c", "echo; exec sleep 60"]
    with subprocess.Popen(holding, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline()
        guest.run("sudo systemctl reboot")
        while (now := guest.run(boot).stdout) in ("", first):
            assert holder.poll() is None, "the guest did not come back"
            time.sleep(0.2)
        holder.kill()
    assert first and now


def test_guest_sysctl_does_not_change_the_host(
    guest: Guest,
):
    names = "net.core.rmem_max=33554432 net.core.netdev_max_backlog=2500 vm.max_map_count=262144"
    done = guest.run(
        f"sudo sysctl -w {names} net.core.somaxconn=1234 kernel.panic=10 && "
        "cat /proc/sys/net/core/rmem_max /proc/sys/net/core/somaxconn && "
        "echo net.core.wmem_max=44554432 | sudo tee /etc/sysctl.d/90-foreign.conf && "
        "sudo sysctl --system > /dev/null && cat /proc/sys/net/core/wmem_max"
    )
    assert done.returncode == 0, done.stderr
    assert {"33554432", "1234", "44554432"} <= set(done.stdout.split())
    host = Path("/proc/sys/net/core/rmem_max").read_text().strip()
    assert host != "33554432", "the guest wrote to this machine's kernel"


def test_user_data_names_the_host(guests: dict[str, Guest]):
    assert guests["ubuntu2404"].run("hostname; cat /etc/hostname").stdout.split() == ["forge"] * 2
    address = guests["al2"].address.replace(".", "-")
    assert guests["al2"].run("hostname").stdout == f"ip-{address}.ec2.internal\n"


def test_hop_limit_keeps_tokens_from_containers_of_a_guest(
    lab: Any, ec2: Any, guests: dict[str, Guest]
):
    guest = guests["al2"]
    behind = """sudo bash -s <<'END'
sysctl -qw net.ipv4.ip_forward=1
ip netns add box 2> /dev/null && ip link add out type veth peer name eth0 netns box &&
  ip addr add 172.31.99.1/24 dev out && ip link set out up &&
  ip -n box addr add 172.31.99.2/24 dev eth0 && ip -n box link set eth0 up &&
  ip -n box route add default via 172.31.99.1
ip netns exec box curl -sS -m 3 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' \
  http://169.254.169.254/latest/api/token > /dev/null
END"""
    # IMDS knows an instance by its address, so the container's hides behind the guest's.
    leader = leader_of(int((lab.instances / guest.id / "nspawn.pid").read_text()))
    rules = "table ip box { chain out { type nat hook postrouting priority 100; masquerade; }; }"
    subprocess.run(["nsenter", f"--target={leader}", "--net", "nft", rules], check=True)
    for limit, answers in ((1, False), (2, True)):
        ec2.modify_instance_metadata_options(
            InstanceId=guest.id, HttpPutResponseHopLimit=limit, HttpTokens="optional"
        )
        done = guest.run(behind)
        assert (done.returncode == 0) is answers, (limit, done)
