"""The lab's network: one bridge, and a network namespace for each guest, which nspawn makes.

Guests reach of the host what the lab serves (IMDS, DNS, the vendors' mirror), and through NAT what
the host reaches. They reach no other service of this machine, no guest (like instances without a
security group rule: their bridge ports are isolated) and no other lab. A guest sends with its own
address and MAC only, as EC2's source check has it: IMDS knows instances by their address.
"""

from __future__ import annotations

import ipaddress
import json
import re
from pathlib import Path

from kiln.base.errors import operation_failed
from lab.base.settings import Lab
from lab.base.shell import batch, run

# The set of what guests send with: port, MAC and address.
_SENDERS = "senders"
# The map of public addresses to those of the guests, where they are not the same.
_PUBLIC = "public"
_NO_ADDRESS = "0.0.0.0"  # noqa: S104 - what sends has none yet
# Clouds answer there with metadata and credentials of this machine, which are not a guest's.
# https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
# https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata
_OF_THE_CLOUD = ("169.254.0.0/16", "168.63.129.16", "100.100.100.200")


def require_free_network(lab: Lab) -> None:
    """Check that the lab's network is not this machine's own."""
    shown = run("ip", "-json", "route", "show", "table", "main", check=False) or "[]"
    for route in json.loads(shown):
        if route["dst"] == "default" or route.get("dev") == lab.bridge:
            continue
        # A wider one (a company's 10.0.0.0/8) keeps the rest of it.
        if ipaddress.IPv4Network(route["dst"]).subnet_of(ipaddress.IPv4Network(lab.network)):
            raise operation_failed(
                f"{lab.network}, the network of {lab.bridge}, is in use here: {route['dst']} is "
                f"reached by {route.get('dev', 'another way')}",
                hint="take another lab, and with it another network: KILN_LAB_INDEX=7",
            )


def up(lab: Lab) -> None:
    """Set up the bridge, NAT and the redirection to IMDS; existing tables are replaced."""
    if not Path(f"/sys/class/net/{lab.bridge}").exists():
        batch(
            ["ip", "-batch", "-"],
            [
                f"link add {lab.bridge} type bridge",
                f"addr add {lab.gateway}/16 dev {lab.bridge}",
                f"addr add {lab.resolver}/16 dev {lab.bridge}",
                f"link set {lab.bridge} up",
            ],
        )
    batch(
        ["nft", "-f", "-"],
        [
            f"table ip {lab.table}",
            f"delete table ip {lab.table}",
            f"table ip {lab.table} {{",
            f"  map {_PUBLIC} {{ type ipv4_addr : ipv4_addr; }}",
            "  chain prerouting {",
            "    type nat hook prerouting priority dstnat;",
            f"    iifname {lab.bridge} ip daddr 169.254.169.254 tcp dport 80"
            f" dnat to {lab.gateway}:{lab.imds_port}",
            # Whatever resolver a guest asks: only the lab's knows the vendors' hosts.
            f"    iifname {lab.bridge} udp dport 53 dnat to {lab.gateway}",
            f"    dnat to ip daddr map @{_PUBLIC}",
            "  }",
            "  chain output {",
            "    type nat hook output priority -100;",
            f"    dnat to ip daddr map @{_PUBLIC}",
            "  }",
            "  chain postrouting {",
            "    type nat hook postrouting priority srcnat;",
            f"    ip saddr {lab.network} ip daddr != {lab.network} masquerade",
            "  }",
            "  chain input {",
            "    type filter hook input priority filter;",
            # pasta of 2023 has window updates without ACK: a reset in answer would end a guest's
            # connection to the outside.
            "    ct state invalid drop",
            f"    iifname != {lab.bridge} accept",
            "    ct state established,related accept",
            f"    ip daddr {lab.gateway} tcp dport {{ 53, 80, 443, {lab.imds_port} }} accept",
            f"    ip daddr {lab.gateway} udp dport 53 accept",
            # DHCP, of machines with their own kernel.
            "    udp sport 68 udp dport 67 accept",
            f"    ip daddr {lab.gateway} icmp type echo-request accept",
            "    drop",
            "  }",
            "  chain forward {",
            "    type filter hook forward priority filter;",
            f"    iifname {lab.bridge} ct state established,related accept",
            # Other guests, by their public addresses too, and those of other labs.
            f'    iifname {lab.bridge} oifname "lab*" drop',
            f"    iifname {lab.bridge} ip daddr {{ {', '.join(_OF_THE_CLOUD)} }} drop",
            "  }",
            "}",
            f"table bridge {lab.table}",
            f"delete table bridge {lab.table}",
            f"table bridge {lab.table} {{",
            f"  set {_SENDERS} {{ type ifname . ether_addr . ipv4_addr; }}",
            "  chain prerouting {",
            "    type filter hook prerouting priority filter;",
            f'    iifname != "{lab.bridge}p*" accept',
            f"    iifname . ether saddr . ip saddr @{_SENDERS} accept",
            f"    iifname . arp saddr ether . arp saddr ip @{_SENDERS} accept",
            "    drop",
            "  }",
            "}",
        ],
    )


def down(lab: Lab) -> None:
    """Delete the bridge, NAT and any remaining interfaces of guests."""
    for interface in Path("/sys/class/net").iterdir():
        if re.fullmatch(rf"{lab.bridge}(p[0-9]+x[0-9]+)?", interface.name):
            run("ip", "link", "delete", interface.name, check=False)
    for family in ("ip", "bridge"):
        run("nft", "delete", "table", family, lab.table, check=False)


def port(lab: Lab, address: str) -> str:
    """The host's end of a guest's veth pair, named after its address (at most 15 bytes)."""
    third, fourth = address.split(".")[2:]
    return f"{lab.bridge}p{third}x{fourth}"


def attach(lab: Lab, address: str, mac: str, leader: int) -> None:
    """Connect a booting guest to the bridge and give its eth0 an address.

    `leader` is the process id on the host of the guest's PID 1.
    """
    name = port(lab, address)
    batch(["nft", "-f", "-"], [f"add {_sender(lab, address, mac)}"])
    # The kernel removes a network, and its pair, some time after the guest that reboots.
    if Path("/sys/class/net", name).exists():
        run("ip", "link", "delete", name, check=False)
    run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(leader))
    batch(
        ["nsenter", f"--target={leader}", "--net", "ip", "-batch", "-"],
        [
            f"link set eth0 address {mac} mtu {mtu()} up",
            f"addr add {address}/16 dev eth0",
            f"route add default via {lab.gateway}",
        ],
    )
    batch(
        ["ip", "-batch", "-"],
        [
            f"link set {name} mtu {mtu()} master {lab.bridge} up",
            f"link set {name} type bridge_slave isolated on",
        ],
    )


def attach_tap(lab: Lab, address: str, mac: str) -> None:
    """Connect a machine with its own kernel to the bridge: it asks for its address by DHCP.

    Until it has it, it sends with none (0.0.0.0).
    """
    name = port(lab, address)
    senders = [_sender(lab, address, mac), _sender(lab, address, mac, _NO_ADDRESS)]
    batch(["nft", "-f", "-"], [f"add {sender}" for sender in senders])
    batch(
        ["ip", "-batch", "-"],
        [
            f"tuntap add dev {name} mode tap",
            f"link set {name} mtu {mtu()} master {lab.bridge} up",
            f"link set {name} type bridge_slave isolated on",
        ],
    )


def detach_tap(lab: Lab, address: str, mac: str) -> None:
    """Remove the port of a machine with its own kernel."""
    run("ip", "link", "delete", port(lab, address), check=False)
    detach(lab, address, mac)
    run("nft", f"delete {_sender(lab, address, mac, _NO_ADDRESS)}", check=False)


def publish(lab: Lab, public: str, address: str) -> None:
    """Let a public address lead to a guest, for this machine and whom it routes for."""
    run("nft", f"add element ip {lab.table} {_PUBLIC} {{ {public} : {address} }}")


def unpublish(lab: Lab, public: str, address: str) -> None:
    """Take back `publish`."""
    run("nft", f"delete element ip {lab.table} {_PUBLIC} {{ {public} : {address} }}", check=False)


def detach(lab: Lab, address: str, mac: str) -> None:
    """Forget a guest that is off. Its end of the bridge is gone with its namespace."""
    run("nft", f"delete {_sender(lab, address, mac)}", check=False)


def _sender(lab: Lab, address: str, mac: str, sends: str = "") -> str:
    element = f"{port(lab, address)} . {mac} . {sends or address}"
    return f"element bridge {lab.table} {_SENDERS} {{ {element} }}"


def mtu() -> int:
    """The MTU of the default route, so that guests do not depend on path MTU discovery."""
    match = re.search(r"\bdev (\S+)", run("ip", "route", "show", "default", check=False))
    if match:
        return int(Path(f"/sys/class/net/{match.group(1)}/mtu").read_text())
    return 1500
