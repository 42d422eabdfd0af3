"""Makes each command that a unit's program runs on an instance fail, one call at a time.

The program must end with a status other than 0, or print a line that names the command: systemd
writes both to the journal. A traceback is not a message. A failure that may go unnoticed is in
survives.yaml with its reason.

The programs run in a container, as ExecStart names them, on the image's own files: `runtime/` and
the lab's stand-ins of what is not there (the driver, a cluster's clients).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from devel.campaign.book import Book
from devel.campaign.commands import STATUS, Case, Counts, cases, excuse, lay_shims
from devel.campaign.sandbox import nspawn, overlay
from devel.campaign.testbed import deadline
from kiln.base.paths import ROOT, RUNTIME
from lab.guests import pci
from lab.rootfs import bases
from lab.standins.nvidia_smi import install

_BASE = ("debian12", "x86_64")
_REAL = "/opt/campaign"
_SHIMS = "/run/kiln-shims"
_PATH = f"{_REAL}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# A program that is called by its path: the shim takes its place there.
_BY_PATH = "/usr/bin/nvidia-smi"
_PARTED = ROOT / "lab/packages/payloads/mig-parted/nvidia-mig-parted"
_TYPES = ("p4d.24xlarge", "p6-b200.48xlarge", "g4dn.xlarge", "p2.xlarge")
_PATIENCE = 120
# systemd-nspawn prints it at its end.
_NOISE = "Attempted to remove disk file system"
# What the container lacks. Each one does what its caller looks at, and no more.
_STANDINS = {
    "modprobe": "",
    "depmod": "",
    # The kind that is installed is the content of the module's file.
    "modinfo": """\
file=/lib/modules/$2/extra/$5.ko
[ -e "$file" ] || exit 1
case $4 in license) cat "$file" ;; *) echo "of-$(cat "$file")" ;; esac
""",
    "systemctl": """\
verb=$1
shift
while [ "${1#--}" != "${1:-}" ]; do shift; done
case $verb in
  is-failed) test -e "/run/units/failed-$1" ;;
  is-active | is-enabled) test -e "/run/units/$1" || exit 3 ;;
  stop) for unit; do rm -f "/run/units/$unit"; done ;;
  start) for unit; do : >"/run/units/$unit"; done ;;
esac
""",
    "journalctl": "sleep 60",
    "nvidia-ctk": "",
    "curl": 'case "$*" in *metadata) echo \'{"Cluster": "c", "ContainerInstanceArn": "a"}\' ;; '
    "*) echo us-east-1 ;; esac",
    "aws": "",
    "kubectl": "",
    "scontrol": "",
}
_MIG = """\
mkdir -p /run/units
echo MIG_IMDS=no >/etc/default/gpu-mig
echo MIG_CONFIG=all-1g.5gb >>/etc/default/gpu-mig
"""
_AGENT = "/opt/aws/amazon-cloudwatch-agent"


@dataclass(frozen=True)
class Unit:
    """A program as a unit starts it: on a machine of this type, after `before` (shell)."""

    name: str
    command: str
    type: str = "p4d.24xlarge"
    before: str = ""
    faults: str = "{}"


_HOOKS = "\n".join(
    f"install -m 755 /etc/kiln/xid.d/{name}.example /etc/kiln/xid.d/50-{name}"
    for name in ("autoscaling-unhealthy", "ecs-drain", "eks-cordon", "slurm-drain")
)
_EVENT = '{"xid": 79, "sxid": null, "pci": "0000:10:1c.0", "name": "GPU has fallen off the bus"}'
_BOTH_KINDS = """\
for kind in open proprietary; do
    mkdir -p /opt/kiln/modules/6.1.0/$kind/extra
    [ $kind = open ] && text='Dual MIT/GPL' || text=NVIDIA
    for module in nvidia nvidia-uvm; do
        echo "$text" >/opt/kiln/modules/6.1.0/$kind/extra/$module.ko
    done
done
mkdir -p /lib/modules/6.1.0/extra
cp /opt/kiln/modules/6.1.0/open/extra/* /lib/modules/6.1.0/extra/
"""
_MODULE = """\
mkdir -p "/lib/modules/$(uname -r)/extra"
echo 'Dual MIT/GPL' >"/lib/modules/$(uname -r)/extra/nvidia.ko"
"""
UNITS = (
    Unit("kiln-gpu-boot", "/usr/local/bin/kiln-gpu-boot", "p6-b200.48xlarge", _MODULE),
    Unit("kiln-gpu-select", "/usr/local/bin/kiln-gpu-boot --select", "p2.xlarge", _BOTH_KINDS),
    Unit("kiln-gpu-clocks", "/usr/local/bin/kiln-gpu-clocks", "g4dn.xlarge"),
    Unit("kiln-gpu-clocks", "/usr/local/bin/kiln-gpu-clocks", "p2.xlarge"),
    Unit("aws-gpu-mig", "/usr/local/bin/gpu-mig apply --boot", before=_MIG),
    Unit(
        "aws-gpu-mig",
        "/usr/local/bin/gpu-mig apply --boot",
        before=_MIG + "touch /run/units/nvidia-persistenced /run/units/nvidia-dcgm "
        "/run/units/nvidia-cdi-refresh.service",
        faults='{"busy": [{"gpu": "all", "name": "python3"}]}',
    ),
    Unit(
        "aws-gpu-mig",
        "/usr/local/bin/gpu-mig apply --boot",
        before=_MIG + "touch /run/units/nvidia-cdi-refresh.service",
    ),
    Unit(
        "aws-gpu-mig",
        "/usr/local/bin/gpu-mig apply --boot",
        before=_MIG + "mkdir -p /etc/cdi; touch /etc/cdi/nvidia.yaml\n"
        "echo MIG_ENGINE=mig-parted >>/etc/default/gpu-mig",
    ),
    Unit(
        "aws-gpu-mig",
        "/usr/local/bin/gpu-mig apply --boot",
        before=_MIG,
        faults='{"reset_supported": false}',
    ),
    Unit("kubelet", "/usr/local/bin/gpu-mig gate", before=_MIG + "touch /run/units/failed-none"),
    Unit("gpu-health", "/usr/local/bin/gpu-xid health"),
    Unit(
        "gpu-xid-hooks",
        "/usr/local/bin/gpu-xid hooks",
        before=f"{_HOOKS}\nmkdir -p /run/gpu-xid/hooks\necho '{_EVENT}' >/run/gpu-xid/hooks/1.json",
    ),
    Unit("aws-hw-monitor", "timeout 4 /usr/local/bin/gpu-xid monitor"),
    Unit("kiln-efa-statsd", "/opt/kiln/lib/kiln-efa-statsd"),
    Unit(
        "amazon-cloudwatch-agent",
        "/opt/kiln/lib/kiln-agent-sources",
        before=f"""\
mkdir -p {_AGENT}/etc/kiln.d {_AGENT}/etc/amazon-cloudwatch-agent.d {_AGENT}/bin
cd {_AGENT}/etc
echo '{{"nvidia_gpu": 1}}' >kiln.d/gpu.json
echo '{{"prometheus": 1}}' >kiln.d/dcgm.json
echo dcgm-@INSTANCE_ID@ >kiln.d/dcgm-scrape.template
echo '{{"logs": 1}}' >amazon-cloudwatch-agent.d/kiln-events.json
echo '{{"mem": 1}}' >amazon-cloudwatch-agent.d/own.json
printf '#!/bin/sh\\n' >{_AGENT}/bin/config-translator
printf '#!/bin/sh\\n' >/usr/bin/dcgm-exporter
chmod 755 {_AGENT}/bin/config-translator /usr/bin/dcgm-exporter
""",
    ),
)


def campaign(
    minutes: float, say: Callable[[str], None], book: Book, units: Sequence[Unit] = UNITS
) -> Counts:
    """Let as many calls of the units' programs fail as the minutes allow."""
    until = deadline(minutes)
    counts = Counts()
    with tempfile.TemporaryDirectory(prefix="ku-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        layers = [bases.ensure(*_BASE), _files(folder / "image")]
        for number, unit in enumerate(units):
            slice_ = (until - time.monotonic()) / (len(units) - number)
            counted = _unit(folder, layers, unit, time.monotonic() + slice_, say, book, number)
            say(
                f"{unit.name} on {unit.type}: {counted.tried} of {counted.whole} calls failed, "
                f"{counted.lost} swallowed"
            )
            counts.add(counted)
    return counts


def _unit(
    folder: Path,
    layers: list[Path],
    unit: Unit,
    until: float,
    say: Callable[[str], None],
    book: Book,
    number: int,
) -> Counts:
    clean, text, calls = _attack(folder, layers, unit, Case(unit.name, "", 0))
    # The monitor is ended by timeout.
    if clean not in (0, 124):
        say(f"NOT TRIED {unit.name} ({unit.command}): status {clean}:\n{text[-1500:]}")
        return Counts(not_run=[f"{unit.name} on {unit.type}"])
    usual = set(text.splitlines())
    whole = cases(unit.name, calls)
    named = {f"{number} {unit.type} {case.key}": case for case in whole}
    for key in book.begin(named, anew=False):
        if time.monotonic() > until:
            break
        case = named[key]
        status, text, _ = _attack(folder, layers, unit, case)
        new = [line for line in text.splitlines() if line not in usual and _NOISE not in line]
        told_of = re.compile(rf"\b({re.escape(case.command)}|status {STATUS})\b")
        reported = (status and status != clean) or any(told_of.search(line) for line in new)
        if reported and "Traceback" not in text:
            book.note(key)
        elif why := excuse(unit.name, case.line):
            book.note(key, excuse=why)
        else:
            wrong = f"{case} on {unit.type} (status {status})\n" + "\n".join(new)[-700:]
            say(f"SWALLOWED {wrong}")
            book.note(key, wrong)
    return Counts(book.tried(named), len(named), book.bad(named))


def _attack(folder: Path, layers: list[Path], unit: Unit, case: Case) -> tuple[int, str, list[str]]:
    """Run a unit's program with one call failing: status, output, the calls that it made."""
    shims = folder / "shims"
    lay_shims(shims, _programs(layers, unit), path=_PATH, folder=_SHIMS, caller="*")
    machine = json.dumps({"instance_type": unit.type, "instance_id": "i-0campaign"})
    before = f"""\
mkdir -p /etc/kiln-lab /run/kiln /run/gpu-xid /var/lib/gpu-xid
echo '{machine}' >/etc/kiln-lab/instance.json
echo '{unit.faults}' >/etc/kiln-lab/nvidia-smi-faults.json
{unit.before}
echo "127.0.1.1 $(hostname)" >>/etc/hosts
cd /
export PATH={_SHIMS}:$PATH KILN_FAIL='{case.command}' KILN_NTH={case.nth}
export KILN_SYSFS={_REAL}/sys/{unit.type}
exec {unit.command}
"""
    with overlay(folder, layers) as (root, upper):
        argv = [
            *nspawn(root),
            f"--bind={shims}:{_SHIMS}",
            *("/usr/bin/env", f"PATH={_PATH}", "bash", "-c", before),
        ]
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_PATIENCE,
                check=False,
            )
            status, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired:
            status, text = -1, f"ended after {_PATIENCE} s"
    shutil.rmtree(upper.parent, ignore_errors=True)
    return status, text, (shims / ".calls").read_text(errors="replace").splitlines()


def _programs(layers: list[Path], unit: Unit) -> dict[str, str]:
    """The programs that may be what a word of the unit's program means → their paths."""
    paths = {name: f"{_REAL}/{name}" for name in (*_STANDINS, "nvidia-smi", _PARTED.name)}
    for folder in ("usr/bin", "usr/sbin"):
        for path in sorted((layers[0] / folder).glob("*")):
            if path.name in _words(unit):
                paths.setdefault(path.name, f"/{folder}/{path.name}")
    return paths


def _words(unit: Unit) -> set[str]:
    """The words of the shell programs that a unit runs. Python's ask for nothing but stand-ins."""
    files = {
        "amazon-cloudwatch-agent": [RUNTIME / "opt/kiln/lib/kiln-agent-sources"],
        "gpu-xid-hooks": sorted((RUNTIME / "etc/kiln/xid.d").glob("*.example")),
    }.get(unit.name, [])
    code = "".join(re.sub(r"(?m)^ *#.*$", "", path.read_text()) for path in files)
    names = set(re.findall(r"[a-z][a-z0-9_.+-]+", code))
    return names - {"bash", "echo", "kill", "printf", "test", "true", "false", "command", "env"}


def _files(image: Path) -> Path:
    """What lies over a distribution: the runtime, and stand-ins for what is not there."""
    ignore = shutil.ignore_patterns("__pycache__")  # other processes are writing it
    shutil.copytree(RUNTIME, image, ignore=ignore, symlinks=True)
    install.lay_down(image)
    real = image / _REAL.lstrip("/")
    real.mkdir(parents=True)
    shutil.move(image / _BY_PATH.lstrip("/"), real / "nvidia-smi")
    (image / _BY_PATH.lstrip("/")).symlink_to(f"{_SHIMS}/nvidia-smi")
    shutil.copy(_PARTED, real)
    (real / _PARTED.name).chmod(0o755)
    for name, text in _STANDINS.items():
        (real / name).write_text(f"#!/bin/sh\n{text}\n")
        (real / name).chmod(0o755)
    driver = image / "var/lib/kiln-lab/driver.json"
    driver.parent.mkdir(parents=True, exist_ok=True)
    driver.write_text(json.dumps({"version": "535.309.01", "cuda": "12.2"}))
    for kind in _TYPES:
        pci.write(kind, real / "sys" / kind)
    return image
