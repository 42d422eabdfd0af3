"""`gpu-xid health`: what the kernel log does not say, asked once at boot: remapped rows, fabric.

Runs nvidia-smi, which may hang on a broken GPU; so it is a program of its own, with a timeout,
and nothing on the Xid path waits for it. What it finds is appended to the event log as lines of
the same shape, with event `health`.
"""

import csv
import subprocess
import sys
import time

from . import __version__, config, event, host
from .log import EventLog

_ROWS = (
    "gpu_name",
    "gpu_bus_id",
    "remapped_rows.failure",
    "remapped_rows.pending",
    "remapped_rows.correctable",
    "remapped_rows.uncorrectable",
)
_TIMEOUT_S = 90
WAIT_S = 10  # for the event log, when the monitor holds its lock or the disk is full


class CannotAskError(Exception):
    """nvidia-smi is missing, failed or hung; str() says which and how."""


def nvidia_smi(arguments, program="nvidia-smi"):
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
        raise CannotAskError("nvidia-smi did not answer in %d s" % _TIMEOUT_S) from None
    except OSError as error:
        raise CannotAskError("nvidia-smi cannot be run: %s" % error) from None
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        first = (output.strip() or "no output").splitlines()[0]
        raise CannotAskError(
            "nvidia-smi %s: exit status %d: %s" % (arguments[0], done.returncode, first)
        )
    return output


def remapped_rows(output):
    """Findings of `nvidia-smi --query-remapped-rows=… --format=csv,noheader` output.

    A failed remap is fatal (the row stays broken), a pending one waits for a GPU reset. `[N/A]`
    (GPUs before Ampere) is no finding.
    """
    findings = []
    for row in csv.reader(output.splitlines(), skipinitialspace=True):
        if len(row) != len(_ROWS):
            continue
        name, pci, failure, pending, correctable, uncorrectable = (cell.strip() for cell in row)
        counts = "correctable %s, uncorrectable %s" % (correctable, uncorrectable)
        if failure.lower() in ("1", "yes"):
            findings.append(
                (
                    "fatal",
                    "Row remapping failure",
                    "the memory has no spare row left: replace the instance (stop and start it)",
                    pci,
                    "%s: row remapping failed (%s)" % (name, counts),
                )
            )
        elif pending.lower() in ("1", "yes"):
            findings.append(
                (
                    "warning",
                    "Row remapping pending",
                    "stop all CUDA processes and reset the GPU (nvidia-smi -r)",
                    pci,
                    "%s: a row waits for its remapping (%s)" % (name, counts),
                )
            )
    return findings


def fabric(output):
    """Findings of `nvidia-smi -q`: GPUs whose Fabric section says neither Completed nor N/A."""
    findings = []
    pci, section, state, status = None, False, None, None

    def finish():
        if state and (state not in ("Completed", "N/A") or status not in ("Success", "N/A", None)):
            findings.append(
                (
                    "fatal" if status not in ("Success", "N/A", None) else "error",
                    "NVLink fabric not ready",
                    "check nvidia-fabricmanager (journalctl -u nvidia-fabricmanager), restart it, "
                    "then reboot; replace the instance if it stays",
                    pci,
                    "fabric state %s, status %s" % (state, status),
                )
            )

    for line in output.splitlines():
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if line.startswith("GPU "):
            finish()
            pci, section, state, status = line[4:].strip(), False, None, None
        elif indent == 4:
            section = text == "Fabric"
        elif section and indent == 8:
            key, _, value = text.partition(":")
            if key.strip() == "State":
                state = value.strip()
            elif key.strip() == "Status":
                status = value.strip()
    finish()
    return findings


def address(pci):
    """nvidia-smi's `00000000:3B:00.0` in the kernel's spelling, `0000:3b:00.0`."""
    domain, colon, rest = pci.lower().partition(":")
    return domain[-4:] + colon + rest if colon else pci.lower()


def lines(findings, gpus, driver, boot, now):
    """Findings as dicts of the same shape as the Xid events."""
    found = []
    for severity, name, action, pci, text in findings:
        line = event.record("health", now, boot, None, None)
        fields = {"xid": None, "sxid": None, "name": name, "severity": severity, "action": action}
        where = address(pci or "")
        fields.update(pci=where or None, gpu=gpus.index.get(host.short(where)), uuid=None)
        fields.update(pid=None, process=None, driver=driver, raw=text)
        line.update(fields)
        found.append(line)
    return found


def append(conf, events):
    """Append to the event log as the monitor does, whole lines or none. Raises OSError."""
    log = EventLog(conf["log"], conf["max_bytes"], 0, len(events), lambda: b"", lambda _: b"")
    for line in events:
        log.add(event.encode(line), sync=line["severity"] == "fatal")
    end = time.monotonic() + WAIT_S
    while not log.flush():
        if time.monotonic() > end:
            raise log.error
        time.sleep(0.1)
    log.close()


def check(program="nvidia-smi"):
    """(findings, troubles): what is wrong with the GPUs, and what could not be asked."""
    findings, troubles = [], []
    for arguments, reader in (
        (["--query-remapped-rows=" + ",".join(_ROWS), "--format=csv,noheader"], remapped_rows),
        (["-q"], fabric),
    ):
        try:
            findings += reader(nvidia_smi(arguments, program))
        except CannotAskError as trouble:
            troubles.append(str(trouble))
    return findings, troubles


def main(program="nvidia-smi", config_path=config.PATH):
    """Exit status 0: asked (whatever the answer); 1: could not ask or not write; 2: bad config."""
    try:
        conf = config.load(config_path)
    except config.BadConfigError as error:
        sys.stderr.write("gpu-xid: %s\n" % error)
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
        sys.stdout.write("%s: %s: %s\n" % (line["severity"], line["name"], line["raw"]))
    for trouble in troubles:
        sys.stderr.write("gpu-xid: %s\n" % trouble)
    if not findings and not troubles:
        sys.stdout.write("%d GPUs: rows and fabric in order\n" % len(addresses))
    try:
        if events and conf["format"] == "json":
            append(conf, events)
    except OSError as error:
        sys.stderr.write("gpu-xid: cannot write %s: %s\n" % (conf["log"], error))
        return 1
    return 1 if troubles else 0
