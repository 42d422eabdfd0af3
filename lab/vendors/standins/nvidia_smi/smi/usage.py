"""-h, --version and the lists of fields: texts of our own that name the stand-in."""

from __future__ import annotations

from . import query
from .gpus import Lab

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

NAME = "AMI Kiln lab stand-in for nvidia-smi. There is no GPU behind it."
MAIN = """
nvidia-smi [OPTION1 [ARG1]] [OPTION2 [ARG2]] ...

    -h, --help                  Print this.
    --version                   Print versions.
    -L, --list-gpus             List GPUs and MIG devices.
    -q, --query [-x] [-d TYPE]  Show all attributes, as text or XML.
    -i, --id=                   Only these GPUs (index, UUID or bus id, comma separated).
    -f, --filename=             Write to a file.
    -l, --loop= / -lms          Again every so many seconds / milliseconds.
    --query-gpu=FIELDS --format=csv[,noheader][,nounits]
    --query-compute-apps= --query-remapped-rows= --query-retired-pages= --query-supported-clocks=
    --help-query-gpu            The fields.
    -pm 0|1  -mig 0|1  -r  -ac MEM,SM  -rac  -e 0|1
    mig                         MIG instances; "nvidia-smi mig -h".
    topo -m, nvlink -s
"""
MIG = """
    mig -- Multi Instance GPU management.

    Usage: nvidia-smi mig [options]

    -i <GPU IDs>  -gi <GPU instance IDs>  -ci <compute instance IDs>
    -lgip, -lgipp               List GPU instance profiles, their possible placements.
    -lgi, -lci, -lcip           List GPU instances, compute instances, compute instance profiles.
    -cgi <profiles> [-C]        Create GPU instances [and their default compute instances].
    -cci [<profiles>]           Create compute instances.
    -dgi, -dci                  Destroy GPU instances, compute instances.
"""


TOPO = """
    topo -- Topology.

    Usage: nvidia-smi topo [options]

    -m                          The matrix of the GPUs' connections.
"""
NVLINK = """
    nvlink -- NVLink.

    Usage: nvidia-smi nvlink [options]

    -s [-i <GPU IDs>]           State of the links.
"""


def main(driver: dict[str, Any] | None) -> str:
    """-h"""
    return f"{NAME}\nDriver: {driver['version'] if driver else 'none installed'}\n{MAIN}"


def mig() -> str:
    """mig -h"""
    return f"{NAME}\n{MIG}"


def topo() -> str:
    """topo without an option"""
    return f"{NAME}\n{TOPO}"


def nvlink() -> str:
    """nvlink without an option"""
    return f"{NAME}\n{NVLINK}"


def version(driver: dict[str, Any]) -> str:
    """--version: the real tool's four lines, and one for the stand-in."""
    return (
        f"NVIDIA-SMI version  : {driver['version']}\nNVML version        : {driver['nvml']}\n"
        f"DRIVER version      : {driver['version']}\nCUDA Version        : {driver['cuda']}\n"
        f"Stand-in            : {NAME}\n"
    )


def fields(lab: Lab, switch: str) -> str:
    """--help-query-gpu and the like: names only, without the real tool's explanations."""
    kind = switch[5:]
    out = f'List of valid properties to query for the switch "--{kind}":\n\n'
    if kind == "query-gpu":
        groups: dict[str, list[str]] = {}
        for name, (title, _unit) in query.known_fields(lab.version).items():
            groups.setdefault(title, []).append(name)
        lines = [" or ".join(f'"{n}"' for n in names) for names in groups.values()]
    else:
        lines = [f'"{name}"' for name in query.KINDS[kind[6:]]]
    return out + "\n\n".join(lines) + "\n"
