"""Names, addresses and folders of a lab. Labs exist side by side, identified by their index."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from kiln.base.errors import KilnError
from kiln.base.vocabulary import shown

FIRST_PORT = 4599
DEFAULT_ROOT = "/var/lib/kiln-lab"
FIRST_NETWORK = 201
# How many labs one machine can have, by number from 0 on.
LABS = 256 - FIRST_NETWORK


@dataclass(frozen=True)
class Lab:
    """The names, addresses and folders of one lab.

    Lab `n` has bridge `lab<n>`, network 10.<201+n>.0.0/16 and API port 4599+n. Labs share the root
    filesystems and the mirror's files; everything else is a lab's own.
    """

    index: int
    root: Path

    @property
    def bridge(self) -> str:
        return f"lab{self.index}"

    @property
    def prefix(self) -> str:
        """The first two bytes of the lab's network."""
        return f"10.{FIRST_NETWORK + self.index}"

    @property
    def gateway(self) -> str:
        """The host's address on the bridge; the vendor mirror listens there."""
        return f"{self.prefix}.0.1"

    @property
    def resolver(self) -> str:
        """The DNS resolver as guests know it: the third address of the network, as in a VPC.

        https://docs.aws.amazon.com/vpc/latest/userguide/AmazonDNS-concepts.html
        """
        return f"{self.prefix}.0.2"

    @property
    def network(self) -> str:
        return f"{self.prefix}.0.0/16"

    @property
    def port(self) -> int:
        """The API's port on 127.0.0.1."""
        return int(os.environ.get("KILN_LAB_PORT", FIRST_PORT + self.index))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def imds_port(self) -> int:
        """The port of IMDS on the gateway; nftables redirects 169.254.169.254:80 to it."""
        return 8169

    @property
    def table(self) -> str:
        return f"kiln_{self.bridge}"

    @property
    def state(self) -> Path:
        """The folder of AMIs, instance disks and logs. It survives `lab.down`."""
        return self.root / self.bridge

    @property
    def shared(self) -> Path:
        """The folder of bases and the mirror's packages, which all labs share."""
        return self.root

    @property
    def images(self) -> Path:
        return self.state / "images"

    @property
    def instances(self) -> Path:
        return self.state / "instances"

    @property
    def log(self) -> Path:
        return self.state / "lab.log"

    @property
    def pid_file(self) -> Path:
        return self.state / "lab.pid"


def current() -> Lab:
    """The lab that `KILN_LAB_INDEX` names (default 0), kept below `KILN_LAB_STATE` (default: a
    folder of the user's, or root's).

    Raises KilnError when that is not a valid index, or `KILN_LAB_PORT` is not a port.
    """
    own = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share", "kiln-lab")
    default = DEFAULT_ROOT if os.geteuid() == 0 else own
    root = Path(os.environ.get("KILN_LAB_STATE", default)).absolute()
    index = os.environ.get("KILN_LAB_INDEX", "0")
    if not re.fullmatch(r"[0-9]{1,3}", index) or int(index) >= LABS:
        raise KilnError(
            f"KILN_LAB_INDEX={shown(index)} is not a valid lab index",
            hint=f"use a number from 0 to {LABS - 1}; the default is 0",
        )
    port = os.environ.get("KILN_LAB_PORT", str(FIRST_PORT))
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise KilnError(
            f"KILN_LAB_PORT={shown(port)} is not a port", hint="use a number from 1 to 65535"
        )
    return Lab(index=int(index), root=root)
