"""`gpu-xid health`: what nvidia-smi says of memory rows, fabric and recovery; runs once at boot.

It runs nvidia-smi, which may hang on a broken GPU. It is therefore a process of its own, with a
time limit, and the monitor never waits for it. Findings become lines of the event log of the same
shape, with event `health`, and go to the hooks.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from gpu_common.nvidia_smi import NvidiaSmiError, run

from . import __version__, config, event, hooks, host
from .catalog import Catalog
from .log import EventLog

_ROWS = (
    "gpu_name,gpu_bus_id,remapped_rows.failure,remapped_rows.pending,"
    "remapped_rows.correctable,remapped_rows.uncorrectable"
)
_FABRIC_ACTION = (
    "check nvidia-fabricmanager (journalctl -u nvidia-fabricmanager), restart it, then reboot; "
    "if that does not help, replace the instance"
)
_TIMEOUT_S = 90
# A GPU registers with the fabric after fabric manager has started: minutes on B200 and GB200.
FABRIC_WAIT_S = 180
_ASK_AGAIN_S = 5
_LOG_WAIT_S = 10  # when the monitor holds the lock of the log or the disk is full


class Finding(NamedTuple):
    severity: str
    name: str
    action: str
    pci: Optional[str]  # evaluated: Python 3.7  # noqa: UP045
    text: str


def remapped_rows(output: str) -> list[Finding]:
    """Return the findings of `nvidia-smi --query-remapped-rows=… --format=csv,noheader`.

    A failed remapping is fatal (the row stays broken); a pending one needs a GPU reset. `[N/A]`
    (GPUs before Ampere) is not a finding.
    """
    findings: list[Finding] = []
    try:
        rows = list(csv.reader(output.splitlines(), skipinitialspace=True))
    except csv.Error as error:
        raise NvidiaSmiError(f"nvidia-smi's remapped rows cannot be read: {error}") from None
    for row in rows:
        if len(row) != len(_ROWS.split(",")):
            continue
        name, pci, failure, pending, correctable, uncorrectable = (cell.strip() for cell in row)
        counts = f"correctable {correctable}, uncorrectable {uncorrectable}"
        if failure.lower() in ("1", "yes"):
            action = "the memory has no spare row left: replace the instance (stop and start it)"
            text = f"{name}: row remapping failed ({counts})"
            findings.append(Finding("fatal", "Row remapping failure", action, pci, text))
        elif pending.lower() in ("1", "yes"):
            action = "stop all CUDA processes and reset the GPU (nvidia-smi -r)"
            text = f"{name}: row remapping is pending ({counts})"
            findings.append(Finding("warning", "Row remapping pending", action, pci, text))
    return findings


def gpu_state(output: str) -> list[Finding]:
    """Return the findings of `nvidia-smi -q`: fabric, and the recovery that the driver asks for."""
    return [finding for pci, values in _gpus(output) for finding in _gpu_findings(pci, values)]


def registering(output: str) -> bool:
    """Return True if a GPU is still registering with the fabric, by `nvidia-smi -q`."""
    return any(values.get("Fabric/State") == "In Progress" for _, values in _gpus(output))


def _gpus(output: str) -> list[tuple[str, dict[str, str]]]:
    """(PCI address, `Fabric/State` -> value) of each GPU."""
    gpus: list[tuple[str, dict[str, str]]] = []
    path: list[str] = []
    for line in output.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if line.startswith("GPU "):
            gpus.append((line[4:].strip(), {}))
        elif gpus and key:
            path = [*path[: (len(line) - len(line.lstrip())) // 4 - 1], key]
            gpus[-1][1]["/".join(path)] = value
    return gpus


def _gpu_findings(pci: str, values: dict[str, str]) -> Iterator[Finding]:
    state, status, summary, recovery = (
        values.get(key, "N/A")
        for key in ("Fabric/State", "Fabric/Status", "Fabric/Health/Summary", "GPU Recovery Action")
    )
    failed = status not in ("Success", "N/A")
    if failed or state not in ("Completed", "N/A"):
        severity = "fatal" if failed else "error"
        text = f"fabric state {state}, status {status}"
        yield Finding(severity, "NVLink fabric not ready", _FABRIC_ACTION, pci, text)
    elif summary not in ("Healthy", "N/A"):
        severity = "fatal" if summary == "Unhealthy" else "warning"
        text = f"fabric health {summary}"
        yield Finding(severity, "NVLink fabric unhealthy", _FABRIC_ACTION, pci, text)
    if recovery not in ("None", "N/A"):
        severity, action = "error", "see NVIDIA's documentation of the recovery action"
        for row in Catalog().entry("recovery") or ():
            if recovery in row["labels"]:
                severity, action = row["severity"], row["action"]
        name = f"GPU recovery action {recovery}"
        yield Finding(severity, name, action, pci, f"GPU Recovery Action: {recovery}")


def query(program: str = "nvidia-smi") -> tuple[list[Finding], list[str]]:
    """Return (findings, queries that failed as messages); waits while the fabric is set up."""
    findings: list[Finding] = []
    errors: list[str] = []
    arguments = ["--query-remapped-rows=" + _ROWS, "--format=csv,noheader"]
    try:
        findings += remapped_rows(run(arguments, _TIMEOUT_S, program))
    except NvidiaSmiError as error:
        errors.append(str(error))
    end = time.monotonic() + FABRIC_WAIT_S
    try:
        output = run(["-q"], _TIMEOUT_S, program)
        while registering(output) and time.monotonic() < end:
            time.sleep(_ASK_AGAIN_S)
            output = run(["-q"], _TIMEOUT_S, program)
        findings += gpu_state(output)
    except NvidiaSmiError as error:
        errors.append(str(error))
    return findings, errors


def events(findings: list[Finding], gpus: host.Gpus) -> list[dict[str, Any]]:
    """Return the findings as lines of the same shape as the Xid events."""
    driver, machine, boot = host.driver_version(), host.machine(), host.boot_id()
    lines = []
    for finding in findings:
        line = event.record("health", time.time(), boot, None, None, xid=None, sxid=None)
        # nvidia-smi's `00000000:3B:00.0` in the kernel's spelling, `0000:3b:00.0`.
        domain, colon, rest = (finding.pci or "").lower().partition(":")
        where = domain[-4:] + colon + rest
        line.update(name=finding.name, severity=finding.severity, action=finding.action)
        line.update(pci=where or None, gpu=gpus.index.get(host.short(where)), uuid=None)
        line.update(pid=None, process=None, driver=driver, **machine)
        line.update(raw=finding.text, version=__version__)
        lines.append(line)
    return lines


def append(conf: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Append to the event log, as the monitor does. Raises OSError."""
    log = EventLog(conf["log"], 1 << 62, conf["keep"], lambda _: b"")
    for line in lines:
        log.add(event.encode(line), sync=line["severity"] == "fatal")
    end = time.monotonic() + _LOG_WAIT_S
    while not log.flush():
        if time.monotonic() > end and log.error is not None:
            raise log.error
        time.sleep(0.1)
    log.close()


def main(config_path: str, program: str = "nvidia-smi") -> int:
    """Return 0 when the GPUs were queried, whatever was found; 1 when a query, the log or the spool
    failed."""
    conf, problem = config.effective(config_path)
    addresses = host.gpu_addresses()
    findings, errors = query(program)
    if addresses:
        findings += [
            Finding("error", "GPU health unknown", "see nvidia-smi", None, text) for text in errors
        ]
    lines = events(findings, host.Gpus(addresses))
    spool = hooks.Spool(conf["hooks"])
    for line in lines:
        print("{severity}: {name}: {raw}".format(**line))
        spool.put(line)
    if spool.dropped:
        errors.append(f"{spool.dropped} events did not reach the hooks: {spool.path}")
    for text in filter(None, [problem, *errors]):
        sys.stderr.write(f"gpu-xid: {text}\n")
    if not findings and not errors:
        print(f"{len(addresses)} GPUs: no row remapping, fabric or recovery problem")
    try:
        append(conf, lines)
    except OSError as error:
        sys.stderr.write("gpu-xid: cannot write {}: {}\n".format(conf["log"], error))
        return 1
    return 1 if errors else 0
