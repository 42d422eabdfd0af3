"""The lab's network: one bridge, and for each guest a namespace of its own (nspawn makes it).

Guests reach the host (IMDS, vendor mirror) and, through NAT, what the host reaches. They do not
reach each other: their bridge ports are isolated, as instances are without a security group rule.
"""

from __future__ import annotations

import re
from pathlib import Path

from lab.settings import Lab
from lab.shell import batch, run


def up(lab: Lab) -> None:
    """Make bridge, NAT and the way to IMDS; what is there already is made anew."""
    if not Path(f"/sys/class/net/{lab.bridge}").exists():
        batch(
            ["ip", "-batch", "-"],
            [
                f"link add {lab.bridge} type bridge",
                f"addr add {lab.gateway}/16 dev {lab.bridge}",
                f"link set {lab.bridge} up",
            ],
        )
    # Docker and the like set the policy of FORWARD to drop in tables of their own; a packet has
    # to pass those too. docs/troubleshooting.md says what to do then.
    batch(
        ["nft", "-f", "-"],
        [
            f"table ip {lab.table}",
            f"delete table ip {lab.table}",
            f"table ip {lab.table} {{",
            "  chain prerouting {",
            "    type nat hook prerouting priority dstnat;",
            f"    iifname {lab.bridge} ip daddr 169.254.169.254 tcp dport 80"
            f" dnat to {lab.gateway}:{lab.imds_port}",
            "  }",
            "  chain postrouting {",
            "    type nat hook postrouting priority srcnat;",
            f"    ip saddr {lab.network} ip daddr != {lab.network} masquerade",
            "  }",
            "}",
        ],
    )


def down(lab: Lab) -> None:
    """Take bridge, NAT and what is left of guests' interfaces away."""
    for interface in Path("/sys/class/net").iterdir():
        if re.fullmatch(rf"{lab.bridge}(p\d+x\d+)?", interface.name):
            run("ip", "link", "delete", interface.name, check=False)
    run("nft", "delete", "table", "ip", lab.table, check=False)


def port(lab: Lab, address: str) -> str:
    """The host's end of a guest's veth pair, named after its address (names have 15 bytes)."""
    third, fourth = address.split(".")[2:]
    return f"{lab.bridge}p{third}x{fourth}"


def attach(lab: Lab, address: str, leader: int) -> None:
    """Put a booting guest on the bridge and give its eth0 an address.

    `leader` is the guest's PID 1 as the host sees it: its network namespace is entered.
    """
    mtu = _mtu()
    name = port(lab, address)
    batch(
        ["nsenter", f"--target={leader}", "--net", "ip", "-batch", "-"],
        [
            f"link set eth0 mtu {mtu} up",
            f"addr add {address}/16 dev eth0",
            f"route add default via {lab.gateway}",
        ],
    )
    batch(
        ["ip", "-batch", "-"],
        [
            f"link set {name} mtu {mtu} master {lab.bridge} up",
            f"link set {name} type bridge_slave isolated on",
        ],
    )


def _mtu() -> int:
    """The MTU of the way out: a guest that sends larger packets would depend on path MTU."""
    match = re.search(r"\bdev (\S+)", run("ip", "route", "show", "default", check=False))
    if match:
        return int(Path(f"/sys/class/net/{match.group(1)}/mtu").read_text())
    return 1500
