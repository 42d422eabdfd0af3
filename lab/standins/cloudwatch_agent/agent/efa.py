"""Counters of the EFA devices, by port, as the agent's section `efa` has them.

Names, deltas and dimensions: docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/
CloudWatch-Agent-EFA.html; github:aws/amazon-cloudwatch-agent
translator/translate/otel/{receiver/awsefa,processor/transformprocessor/transform_efa_config.yaml}
@ab55b8daa204e95c42c0267ee5aa49ec3b3a7317; files and the network interface:
github:amazon-contributing/opentelemetry-collector-contrib receiver/awsefareceiver/scraper.go
@1b6ca5f073ffd31f729e32271f2a140966e8cc86
"""

from __future__ import annotations

import glob
import ipaddress
import os

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Callable

    from .host import Row

# Metrics whose file has another name.
_FILES = {"rx_dropped": "rx_drops"}
_NAMES = (
    *("impaired_remote_conn_events", "rdma_read_bytes", "rdma_read_resp_bytes"),
    *("rdma_read_wr_err", "rdma_read_wrs", "rdma_write_bytes", "rdma_write_recv_bytes"),
    *("rdma_write_wr_err", "rdma_write_wrs", "recv_bytes", "recv_wrs", "retrans_bytes"),
    *("retrans_pkts", "retrans_timeout_events", "rx_bytes", "rx_dropped", "rx_pkts"),
    *("send_bytes", "send_wrs", "tx_bytes", "tx_pkts", "unresponsive_remote_events"),
)
UNITS = {name: "Bytes" if name.endswith("bytes") else "Count" for name in _NAMES}


def reader(imds: Callable[[str], str], root: str = "") -> Callable[[], list[Row]]:
    """What reads the ports' counters. `imds` is asked for the network interface of a device."""
    interfaces: dict[str, str] = {}

    def rows() -> list[Row]:
        listed: list[Row] = []
        for folder in sorted(glob.glob(root + "/sys/class/infiniband/*/ports/*/hw_counters")):
            device, _, port = folder.split(os.sep)[-4:-1]
            fields = {}
            for name in _NAMES:
                number = _read(os.path.join(folder, _FILES.get(name, name)))
                if number.isdigit():
                    fields[name] = float(number)
            tags = {"device": device, "port": port}
            address = mac(_read(f"{os.path.dirname(folder)}/gids/0"))
            if address and not interfaces.get(address):
                path = f"meta-data/network/interfaces/macs/{address}/interface-id"
                interfaces[address] = imds(path)
            if interfaces.get(address):
                tags["eniId"] = interfaces[address]
            listed.append((tags, fields))
        return listed

    return rows


def mac(gid: str) -> str:
    """The address of a device's interface: its GID is the link-local address made of it."""
    try:
        low = ipaddress.IPv6Address(gid).packed[8:]
    except ValueError:
        return ""
    return ":".join(f"{byte:02x}" for byte in (low[0] ^ 2, *low[1:3], *low[5:]))


def _read(path: str) -> str:
    try:
        with open(path) as stream:
            return stream.read().strip()
    except OSError:
        return ""
