"""The GPUs of this machine and their state.

Two files hold the state. What a card keeps in its InfoROM (the MIG mode of Ampere) is in
/var/lib and is valid only on the instance that wrote it: an AMI does not contain the card. What the
driver keeps is in /run and is lost at a reboot: instances, persistence mode, clocks, and the MIG
mode of Hopper and later.
"""

from __future__ import annotations

import fcntl
import hashlib
import os

from . import box

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

STATE = box.RUN + "/state.json"
INFOROM = box.ROOT + "/var/lib/kiln-lab/nvidia-smi/inforom.json"


class Gpu:
    """A GPU: its model, bus address and state, a plain dict that is saved unchanged."""

    def __init__(self, index: int, model: dict[str, Any], bus_id: str, seed: str) -> None:
        self.index = index
        self.model = model
        self.bus_id = bus_id  # 00000000:10:1C.0
        self.uuid = "GPU-" + ident(seed)
        self.serial = "165" + str(int(ident(seed)[:8], 16)).rjust(10, "0")
        self.fabric = False  # sits behind an NVSwitch
        self.nvlsm = False  # … that is managed over InfiniBand
        self.state: dict[str, Any] = {}

    @property
    def mig(self) -> dict[str, Any] | None:
        """The card's MIG facts, from kiln/facts/knowledge/mig.yaml; None without MIG."""
        return self.model.get("mig_facts")

    @property
    def ampere(self) -> bool:
        """True if a change of the MIG mode needs a reset, and survives a reboot."""
        return str(self.model["arch"]) == "Ampere"


class Lab:
    """Environment of a command: driver, machine, GPUs, and whether the user is root."""

    def __init__(
        self, driver: dict[str, Any], machine: dict[str, Any], gpus: list[Gpu], root: bool
    ) -> None:
        self.driver = driver
        self.machine = machine
        self.gpus = gpus
        self.root = root
        self.branch = int(driver["branch"])  # such as 580
        # Branch and second number, such as 580159 for 580.159.04.
        self.version = self.branch * 1000 + int((driver["version"] + ".0").split(".")[1])

    def save(self) -> None:
        """Write both state files. Raises OSError for a user without permission."""
        box.write_json(STATE, {gpu.uuid: gpu.state for gpu in self.gpus})
        kept = {gpu.uuid: {"mig_pending": gpu.state["mig_pending"]} for gpu in self.gpus}
        box.write_json(INFOROM, kept)


def load(driver: dict[str, Any]) -> Lab:
    """The machine's GPUs and their state; no GPU on an instance type without GPUs."""
    instance = box.machine()
    facts = box.data("machines")
    entry = facts["machines"].get(instance["instance_type"], {})
    hidden = box.faults().get("hide", ())
    gpus = []
    host = instance.get("host", "1")  # after a stop and start: another host, with other cards
    seed = instance["instance_id"] + ("" if host == "1" else "/host " + host)
    for index, at in enumerate(entry.get("bus", ())):
        if index not in hidden:
            model = facts["models"][entry["gpu"]]
            if "slice" in entry:
                name, mib = entry["slice"]
                model = dict(model, product=name, mib=[mib, 0, 256])
            gpu = Gpu(index, model, f"00000000:{at}", f"{seed}/{index}")
            gpu.fabric, gpu.nvlsm = bool(entry["fabric"]), bool(entry["nvlsm"])
            gpus.append(gpu)
    machine = dict(instance, vcpus=entry.get("vcpus", 0))
    lab = Lab(driver, machine, gpus, int(os.environ.get("KILN_LAB_EUID", os.geteuid())) == 0)
    volatile = box.read_json(STATE) or {}
    inforom = box.read_json(INFOROM) or {}
    for gpu in gpus:
        kept = gpu.ampere and bool(inforom.get(gpu.uuid, {}).get("mig_pending"))
        fresh: dict[str, Any] = {
            "mig": kept,
            "mig_pending": kept,
            "pm": False,
            "app": None,
            "instances": [],
        }
        gpu.state = volatile.get(gpu.uuid) or fresh
    return lab


class Locked:
    """Holds the lock for reading and writing the state; other users than root read without it."""

    def __init__(self) -> None:
        self.file: Any = None

    def __enter__(self) -> Locked:
        try:
            os.makedirs(box.RUN, exist_ok=True)
            self.file = open(box.RUN + "/lock", "a")
            fcntl.flock(self.file, fcntl.LOCK_EX)
        except OSError:
            self.file = None  # not root: reads only
        return self

    def __exit__(self, *failure: object) -> None:
        if self.file is not None:
            self.file.close()


def ident(seed: str) -> str:
    """A UUID derived from a seed (version 5, like those of MIG devices)."""
    text = hashlib.sha1(seed.encode()).hexdigest()[:32]  # noqa: S324 -- a name, not a secret
    text = text[:12] + "5" + text[13:16] + "89ab"[int(text[16], 16) % 4] + text[17:]
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
