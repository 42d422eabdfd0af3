"""Talks to nvidia-smi: runs it, keeps a record of what was run, reads its tables."""

from __future__ import annotations

import re
import subprocess
import time
from typing import Dict, List, NamedTuple, Optional, Tuple

from . import paths
from .errors import world_failed
from .facts import GpuType, ProfileFacts, engines_of
from .profile import parse

TIMEOUT = 180  # a reset of eight GPUs takes tens of seconds
_FIELDS = (
    "index,uuid,pci.bus_id,pci.device_id,pci.sub_device_id,name,mig.mode.current,mig.mode.pending"
)
_MODES = {"Enabled": True, "Disabled": False, "N/A": None, "Not Supported": None}
# Compiled where they are used, which is not at every boot.
_GI = r"^\|\s+(\d+)\s+MIG (\S+)\s+(\d+)\s+(\d+)\s+(\d+):(\d+)\s*\|"
_CI = r"^\|\s+(\d+)\s+(\d+)\s+MIG (\S+)\s+(\d+)\*?\s+(\d+)\s+(\d+):(\d+)\s*\|"
_LGIP = (
    r"^\|\s+(\d+)\s+MIG (\S+)\s+(\d+)\s+(\d+)/(\d+)\s+([\d.]+)\s+(?:No|Yes)"
    r"\s+(\d+)\s+(\d+)\s+(\d+)\s*\|(?:\s*\n\|\s+(\d+)\s+(\d+)\s+(\d+)\s*\|)?"
)
_LGIPP = r"GPU\s+(\d+)\s+Profile ID\s+(\d+)\s+Placements?\s*:\s*\{([\d,]+)\}:(\d+)"


class Instance(NamedTuple):
    """A GPU instance. `compute`: compute slices of its compute instances, largest first.

    `start`: its first memory slice, None when nobody asked (`glance`).
    """

    gpu: int
    id: int
    profile: str
    start: Optional[int]
    compute: Tuple[int, ...]

    @property
    def shape(self):
        """What makes two instances interchangeable."""
        return (self.profile, self.compute)


class Gpu(NamedTuple):
    """One GPU as nvidia-smi sees it. `current`, `pending`: MIG mode, None when it has none."""

    index: int
    uuid: str
    bus_id: str
    device_id: str
    subsystem_id: str
    name: str
    current: object
    pending: object
    instances: Tuple[Instance, ...] = ()

    @property
    def capable(self):
        return self.current is not None


class Smi:
    """Runs nvidia-smi. `journal`: every command so far as {argv, rc, seconds}."""

    def __init__(self, program="nvidia-smi"):
        self.program = program
        self.journal: List[dict] = []

    def installed(self):
        return paths.program(self.program) != ""

    def run(self, *args):
        """(exit status, stdout and stderr). Raises MigError when it cannot run or hangs."""
        return self.call([self.program] + [str(a) for a in args])

    def call(self, argv, env=None):
        """The same for any program. `env`: its environment, None for ours."""
        began = time.monotonic()
        try:
            done = subprocess.run(
                argv,
                check=False,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                universal_newlines=True,
                timeout=TIMEOUT,
                env=env,
            )
        except FileNotFoundError as e:
            raise world_failed(
                "{} is not installed".format(argv[0]), "install the NVIDIA driver."
            ) from e
        except subprocess.TimeoutExpired as e:
            raise world_failed(
                "`{}` did not end within {} s".format(" ".join(argv), TIMEOUT),
                "look for Xid errors: dmesg | grep NVRM.",
            ) from e
        took = round(time.monotonic() - began, 3)
        self.journal.append({"argv": argv, "rc": done.returncode, "seconds": took})
        return done.returncode, done.stdout

    def must(self, *args):
        """stdout of a command that has to succeed."""
        rc, out = self.run(*args)
        if rc:
            raise failed(args, rc, out)
        return out

    def gpus(self, instances=True):
        """Every GPU, with its instances when MIG is on anywhere: 1 or 3 commands."""
        out = self.must("--query-gpu=" + _FIELDS, "--format=csv,noheader")
        gpus = [_gpu(line) for line in out.splitlines() if line.strip()]
        return self.listed(gpus) if instances else gpus

    def listed(self, gpus):
        """These GPUs with their instances: no command when MIG is on nowhere, else 2."""
        if not any(g.current for g in gpus):
            return gpus
        found = self._instances()
        return [g._replace(instances=found.get(g.index, ())) for g in gpus]

    def _instances(self):
        compute: Dict[Tuple[int, int], List[int]] = {}
        for row in re.finditer(_CI, self._listing("-lci"), re.M):
            key = (int(row.group(1)), int(row.group(2)))
            compute.setdefault(key, []).append(parse(row.group(3)).compute_slices)
        found: Dict[int, List[Instance]] = {}
        for row in re.finditer(_GI, self._listing("-lgi"), re.M):
            gpu, gi = int(row.group(1)), int(row.group(4))
            sizes = tuple(sorted(compute.get((gpu, gi), ()), reverse=True))
            found.setdefault(gpu, []).append(
                Instance(gpu, gi, row.group(2), int(row.group(5)), sizes)
            )
        return {gpu: tuple(sorted(items, key=lambda i: i.start)) for gpu, items in found.items()}

    def _listing(self, what):
        rc, out = self.run("mig", what)
        nothing = "instances found" in out or "No MIG-enabled devices" in out
        if rc and not nothing:
            raise failed(("mig", what), rc, out)
        return out

    def gpu_type(self, gpu, known=None):
        """The driver's own answer to what this GPU can be cut into. Needs MIG mode to be on.

        `known` lends what the listing cannot tell: architecture and reset rule.
        """
        index = str(gpu.index)
        rows = list(re.finditer(_LGIP, self.must("mig", "-i", index, "-lgip"), re.M))
        places = {}
        for row in re.finditer(_LGIPP, self.must("mig", "-i", index, "-lgipp"), re.M):
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
            raise world_failed("nvidia-smi lists no MIG profiles for GPU {}".format(index))
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


def failed(args, rc, out):
    """The MigError for a command that failed, with nvidia-smi's own last words."""
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    words = "; ".join(lines[-3:]) or "no output"
    return world_failed(
        "`nvidia-smi {}` failed with status {}: {}".format(
            " ".join(str(a) for a in args), rc, words
        )
    )


def _gpu(line):
    fields = [f.strip() for f in line.split(",")]
    if len(fields) != len(_FIELDS.split(",")) or not fields[0].isdigit():
        raise world_failed("nvidia-smi answered something else than a GPU: {!r}".format(line[:80]))
    index, uuid, bus_id, device_id, subsystem_id, name, current, pending = fields
    modes = (mode_of(current, index), mode_of(pending, index))
    return Gpu(int(index), uuid, bus_id, device_id, subsystem_id, name, *modes)


def mode_of(text, index):
    """MIG mode as nvidia-smi words it: True, False, or None on a GPU that has none.

    Raises MigError when the GPU does not answer: that it cannot do MIG would be a guess.
    """
    word = text.strip("[]")
    if word not in _MODES:
        raise world_failed(
            "GPU {} does not tell its MIG mode: {}".format(index, text),
            "look for Xid errors: dmesg | grep NVRM. A GPU that is lost needs a stop and start.",
        )
    return _MODES[word]
