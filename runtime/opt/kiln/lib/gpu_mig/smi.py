"""Runs nvidia-smi, keeps a record of the commands, and reads its tables."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from gpu_common import nvidia_smi

from .errors import MigError, operation_failed
from .facts import GpuType, ProfileFacts, engines_of
from .profile import parse

TIMEOUT = 180  # a reset of eight GPUs takes tens of seconds
_FIELDS = (
    "index,uuid,pci.bus_id,pci.device_id,pci.sub_device_id,name,mig.mode.current,mig.mode.pending"
)
_MODES = {"Enabled": True, "Disabled": False, "N/A": None, "Not Supported": None}
# Compiled only where they are used, which is not at every boot.
# `#` stands for a number, which is short: int() refuses thousands of digits.
_GI = r"^\|\s+#\s+MIG (\S+)\s+#\s+#\s+#:#\s*\|"
_CI = r"^\|\s+#\s+#\s+MIG (\S+)\s+#\*?\s+#\s+#:#\s*\|"
_LGIP = (
    r"^\|\s+#\s+MIG (\S+)\s+#\s+#/#\s+([0-9]{1,9}(?:\.[0-9]{1,9})?)\s+(?:No|Yes)"
    r"\s+#\s+#\s+#\s*\|(?:\s*\n\|\s+#\s+#\s+#\s*\|)?"
)
_LGIPP = r"GPU\s+#\s+Profile ID\s+#\s+Placements?\s*:\s*\{([0-9]{1,9}(?:,[0-9]{1,9})*)\}:#"


class Instance(NamedTuple):
    """A GPU instance. `compute`: compute slices of its compute instances, largest first.

    `start`: its first memory slice.
    """

    gpu: int
    id: int
    profile: str
    start: int
    compute: tuple[int, ...]

    @property
    def shape(self) -> tuple[str, tuple[int, ...]]:
        """Instances of equal shape are interchangeable."""
        return (self.profile, self.compute)


class Gpu(NamedTuple):
    """A GPU as nvidia-smi shows it. `current`, `pending`: MIG mode, None for a GPU without MIG."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nothing uses
    uuid: str
    bus_id: str
    device_id: str
    subsystem_id: str
    name: str
    current: bool | None
    pending: bool | None
    instances: tuple[Instance, ...] = ()

    @property
    def capable(self) -> bool:
        return self.current is not None


class Smi:
    """Runs nvidia-smi. `journal`: the commands so far as {argv, rc, seconds}."""

    def __init__(self, program: str = "nvidia-smi") -> None:
        self.program = program
        self.journal: list[dict[str, Any]] = []

    def installed(self) -> bool:
        return shutil.which(self.program) is not None

    def run(self, *args: object) -> tuple[int, str]:
        """(exit status, stdout and stderr). Raises MigError when it cannot run or hangs."""
        words = [str(a) for a in args]
        began = time.monotonic()
        try:
            status, output = nvidia_smi.call(words, TIMEOUT, self.program)
        except nvidia_smi.NvidiaSmiError as e:
            hint = "look for Xid errors: dmesg | grep NVRM"
            raise operation_failed("`{}`: {}".format(" ".join(words), e), hint) from e
        took = round(time.monotonic() - began, 3)
        self.journal.append({"argv": [self.program, *words], "rc": status, "seconds": took})
        return status, output

    def must(self, *args: object) -> str:
        """The output of a command. Raises MigError when it fails."""
        rc, out = self.run(*args)
        if rc:
            raise failed(args, rc, out)
        return out

    def gpus(self, instances: bool = True) -> list[Gpu]:
        """Every GPU, with its instances: 1 command, or 3 when MIG is on anywhere."""
        out = self.must("--query-gpu=" + _FIELDS, "--format=csv,noheader")
        gpus = [_gpu(line) for line in out.splitlines() if line.strip()]
        if not instances or not any(g.current for g in gpus):
            return gpus
        found = self._instances()
        return [g._replace(instances=found.get(g.index, ())) for g in gpus]

    def _instances(self) -> dict[int, tuple[Instance, ...]]:
        compute: dict[tuple[int, int], list[int]] = {}
        for row in _rows(_CI, self._listing("-lci")):
            key = (int(row.group(1)), int(row.group(2)))
            compute.setdefault(key, []).append(parse(row.group(3)).compute_slices)
        instances: dict[int, list[Instance]] = {}
        for row in _rows(_GI, self._listing("-lgi")):
            gpu, gi = int(row.group(1)), int(row.group(4))
            sizes = tuple(sorted(compute.get((gpu, gi), ()), reverse=True))
            instances.setdefault(gpu, []).append(
                Instance(gpu, gi, row.group(2), int(row.group(5)), sizes)
            )
        return {
            gpu: tuple(sorted(items, key=lambda i: i.start)) for gpu, items in instances.items()
        }

    def _listing(self, what: str) -> str:
        rc, out = self.run("mig", what)
        empty = "instances found" in out or "No MIG-enabled devices" in out
        if rc and not empty:
            raise failed(("mig", what), rc, out)
        return out

    def gpu_type(self, gpu: Gpu, known: GpuType | None = None) -> GpuType:
        """The profiles that the driver lists for this GPU. Needs MIG mode to be on.

        `known` supplies what the listing lacks: architecture and reset rule.
        """
        index = str(gpu.index)
        rows = list(_rows(_LGIP, self.must("mig", "-i", index, "-lgip")))
        places = {}
        for row in _rows(_LGIPP, self.must("mig", "-i", index, "-lgipp")):
            starts = tuple(int(s) for s in row.group(3).split(","))
            places[int(row.group(2))] = (starts, int(row.group(4)))
        profiles = {}
        for row in rows:
            name, number = row.group(2), int(row.group(3))
            starts, memory = places.get(number, ((), 0))
            if not starts:
                continue
            dec, enc = int(row.group(8)), int(row.group(9))
            jpeg, ofa = int(row.group(11) or 0), int(row.group(12) or 0)
            profiles[name] = ProfileFacts(
                name,
                number,
                int(row.group(5)),
                parse(name).g,
                memory,
                starts,
                gib=float(row.group(6)),
                sm=int(row.group(7)),
                engines=(dec, enc, jpeg, ofa),
            )
        if not profiles:
            raise operation_failed(f"nvidia-smi lists no MIG profiles for GPU {index}")
        return GpuType(
            name=gpu.name,
            product=gpu.name,
            arch=known.arch if known else "",
            pci_device_ids=(gpu.device_id,),
            compute_slices=max(p.compute for p in profiles.values()),
            memory_slices=max(s + p.memory for p in profiles.values() for s in p.starts),
            reset=known.reset if known else None,
            profiles=profiles,
            engines=engines_of(profiles),
        )


def _rows(pattern: str, table: str) -> Iterator[re.Match[str]]:
    return re.finditer(pattern.replace("#", r"([0-9]{1,9})"), table, re.M)


def failed(args: Iterable[object], rc: int, out: str) -> MigError:
    """The MigError for a failed command, with the last lines of its output."""
    command = " ".join(str(a) for a in args)
    return operation_failed(f"`nvidia-smi {command}` failed with status {rc}: {last(out)}")


def last(out: str) -> str:
    """The last lines of an output, in one."""
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    return "; ".join(lines[-3:]) or "no output"


def _gpu(line: str) -> Gpu:
    fields = [f.strip() for f in line.split(",")]
    if len(fields) != len(_FIELDS.split(",")) or not re.fullmatch("[0-9]{1,9}", fields[0]):
        raise operation_failed(f"unexpected output from nvidia-smi: {line[:80]!r}")
    index, uuid, bus_id, device_id, subsystem_id, name, current, pending = fields
    modes = (mode_of(current, index), mode_of(pending, index))
    return Gpu(int(index), uuid, bus_id, device_id, subsystem_id, name, *modes)


def mode_of(text: str, index: object) -> bool | None:
    """MIG mode from the words of nvidia-smi: True, False, or None for a GPU without MIG.

    Raises MigError when the GPU does not answer, which does not mean that it lacks MIG.
    """
    word = text.strip("[]")
    if word not in _MODES:
        raise operation_failed(
            f"GPU {index} does not report its MIG mode: {text}",
            "look for Xid errors: dmesg | grep NVRM. A GPU that is lost needs a stop and start",
        )
    return _MODES[word]
