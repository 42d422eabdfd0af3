"""`gpu-xid health`: what nvidia-smi says of memory rows, fabric and recovery; runs once at boot.

It runs nvidia-smi, which may hang on a broken GPU. It is therefore a process of its own, with a
timeout, and the monitor never waits for it. Findings are appended to the event log as lines of the
same shape, with event `health`.
"""

from __future__ import annotations

import csv
import errno
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Optional, Tuple

from . import __version__, config, event, host
from .catalogue import Catalogue
from .log import EventLog

_ROWS = (
    "gpu_name",
    "gpu_bus_id",
    "remapped_rows.failure",
    "remapped_rows.pending",
    "remapped_rows.correctable",
    "remapped_rows.uncorrectable",
)
_FABRIC_ACTION = (
    "check nvidia-fabricmanager (journalctl -u nvidia-fabricmanager), restart it, then reboot; "
    "if that does not help, replace the instance"
)
_TIMEOUT_S = 90
WAIT_S = 10  # for the event log, when the monitor holds its lock or the disk is full

# (severity, name, action, PCI address or None, text)
Finding = Tuple[str, str, str, Optional[str], str]


class CannotAskError(Exception):
    """nvidia-smi is missing, failed or hung; str() says which and how."""


def nvidia_smi(arguments: list[str], program: str = "nvidia-smi") -> str:
    """Standard output of nvidia-smi. Raises CannotAskError."""
    try:
        done = subprocess.run(
            [program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise CannotAskError("nvidia-smi is not installed") from None
    except subprocess.TimeoutExpired:
        raise CannotAskError(f"nvidia-smi did not answer in {_TIMEOUT_S} s") from None
    except OSError as error:
        raise CannotAskError(f"nvidia-smi cannot be run: {error}") from None
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        first = (output.strip() or "no output").splitlines()[0]
        raise CannotAskError(f"nvidia-smi {arguments[0]}: exit status {done.returncode}: {first}")
    return output


def remapped_rows(output: str) -> list[Finding]:
    """Findings of `nvidia-smi --query-remapped-rows=… --format=csv,noheader` output.

    A failed remapping is fatal (the row stays broken); a pending one needs a GPU reset. `[N/A]`
    (GPUs before Ampere) is not a finding. Raises CannotAskError for what is not CSV.
    """
    findings: list[Finding] = []
    try:
        rows = list(csv.reader(output.splitlines(), skipinitialspace=True))
    except csv.Error as error:
        raise CannotAskError(f"nvidia-smi's remapped rows cannot be read: {error}") from None
    for row in rows:
        if len(row) != len(_ROWS):
            continue
        name, pci, failure, pending, correctable, uncorrectable = (cell.strip() for cell in row)
        counts = f"correctable {correctable}, uncorrectable {uncorrectable}"
        if failure.lower() in ("1", "yes"):
            findings.append(
                (
                    "fatal",
                    "Row remapping failure",
                    "the memory has no spare row left: replace the instance (stop and start it)",
                    pci,
                    f"{name}: row remapping failed ({counts})",
                )
            )
        elif pending.lower() in ("1", "yes"):
            findings.append(
                (
                    "warning",
                    "Row remapping pending",
                    "stop all CUDA processes and reset the GPU (nvidia-smi -r)",
                    pci,
                    f"{name}: row remapping is pending ({counts})",
                )
            )
    return findings


def gpu_state(output: str) -> list[Finding]:
    """Findings of `nvidia-smi -q`: the fabric of each GPU, and the recovery that the driver asks
    for."""
    gpus: list[tuple[str, dict[str, str]]] = []
    path: list[str] = []
    for line in output.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if line.startswith("GPU "):
            gpus.append((line[4:].strip(), {}))
        elif gpus and key:
            path = [*path[: (len(line) - len(line.lstrip())) // 4 - 1], key]
            gpus[-1][1]["/".join(path)] = value
    return [finding for pci, values in gpus for finding in _of_gpu(pci, values)]


def _of_gpu(pci: str, values: dict[str, str]) -> Iterator[Finding]:
    state, status, summary, recovery = (
        values.get(key, "N/A")
        for key in ("Fabric/State", "Fabric/Status", "Fabric/Health/Summary", "GPU Recovery Action")
    )
    failed = status not in ("Success", "N/A")
    if failed or state not in ("Completed", "N/A"):
        severity = "fatal" if failed else "error"
        text = f"fabric state {state}, status {status}"
        yield severity, "NVLink fabric not ready", _FABRIC_ACTION, pci, text
    elif summary not in ("Healthy", "N/A"):
        severity = "fatal" if summary == "Unhealthy" else "warning"
        text = f"fabric health {summary}"
        yield severity, "NVLink fabric unhealthy", _FABRIC_ACTION, pci, text
    if recovery not in ("None", "N/A"):
        severity, action = "error", "see NVIDIA's documentation of the recovery action"
        for row in Catalogue().entry("recovery") or ():
            if recovery in row["labels"]:
                severity, action = row["severity"], row["action"]
        name = f"GPU recovery action {recovery}"
        yield severity, name, action, pci, f"GPU Recovery Action: {recovery}"


def address(pci: str) -> str:
    """nvidia-smi's `00000000:3B:00.0` in the kernel's spelling, `0000:3b:00.0`."""
    domain, colon, rest = pci.lower().partition(":")
    return domain[-4:] + colon + rest if colon else pci.lower()


def lines(
    findings: list[Finding], gpus: host.Gpus, driver: str | None, boot: str, now: float
) -> list[dict[str, Any]]:
    """Findings as dicts of the same shape as the Xid events."""
    rows = []
    for severity, name, action, pci, text in findings:
        line = event.record("health", now, boot, None, None)
        fields: dict[str, Any] = {
            "xid": None,
            "sxid": None,
            "name": name,
            "severity": severity,
            "action": action,
        }
        where = address(pci or "")
        fields.update(pci=where or None, gpu=gpus.index.get(host.short(where)), uuid=None)
        fields.update(pid=None, process=None, driver=driver, **host.machine(), raw=text)
        line.update(fields)
        rows.append(line)
    return rows


def append(conf: dict[str, Any], events: list[dict[str, Any]]) -> None:
    """Append whole lines to the event log, as the monitor does. Raises OSError."""
    log = EventLog(conf["log"], conf["max_bytes"], 0, len(events), lambda: b"", lambda _: b"")
    for line in events:
        log.add(event.encode(line), sync=line["severity"] == "fatal")
    end = time.monotonic() + WAIT_S
    while not log.flush():
        if time.monotonic() > end:
            raise log.error or OSError(errno.ETIMEDOUT, "timed out", conf["log"])
        time.sleep(0.1)
    log.close()


def check(program: str = "nvidia-smi") -> tuple[list[Finding], list[str]]:
    """(findings, failed queries as messages)."""
    findings: list[Finding] = []
    troubles: list[str] = []
    for arguments, reader in (
        (["--query-remapped-rows=" + ",".join(_ROWS), "--format=csv,noheader"], remapped_rows),
        (["-q"], gpu_state),
    ):
        try:
            findings += reader(nvidia_smi(arguments, program))
        except CannotAskError as trouble:
            troubles.append(str(trouble))
    return findings, troubles


def main(program: str = "nvidia-smi", config_path: str = config.PATH) -> int:
    """Exit status 0: GPUs were queried, whatever the findings; 1: query or log write failed; 2:
    invalid configuration."""
    try:
        conf = config.load(config_path)
    except config.BadConfigError as error:
        sys.stderr.write(f"gpu-xid: {error}\n")
        return 2
    findings, troubles = check(program)
    addresses = host.gpu_addresses()
    if troubles and addresses:
        for trouble in troubles:
            findings.append(("error", "GPU health unknown", "see nvidia-smi", None, trouble))
    events = lines(
        findings, host.Gpus(addresses), host.driver_version(), host.boot_id(), time.time()
    )
    for line in events:
        line["version"] = __version__
        sys.stdout.write("{}: {}: {}\n".format(line["severity"], line["name"], line["raw"]))
    for trouble in troubles:
        sys.stderr.write(f"gpu-xid: {trouble}\n")
    if not findings and not troubles:
        sys.stdout.write(f"{len(addresses)} GPUs: no row remapping, fabric or recovery problem\n")
    try:
        if events and conf["format"] == "json":
            append(conf, events)
    except OSError as error:
        sys.stderr.write("gpu-xid: cannot write {}: {}\n".format(conf["log"], error))
        return 1
    return 1 if troubles else 0
