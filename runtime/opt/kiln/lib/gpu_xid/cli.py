"""The commands for people and units: `gpu-xid tail | explain | hooks | health`."""

from __future__ import annotations

import argparse
import collections
import glob
import json
import os
import sys
import time
from argparse import Namespace
from typing import Any

from . import __version__, config
from .catalog import Catalog, UnknownCodeError

_COLORS = {"fatal": "\033[1;31m", "error": "\033[31m", "warning": "\033[33m"}
_LABELS = {"xid": "Xid", "sxid": "SXid"}


def main(arguments: list[str]) -> int:
    """Return the exit status: 0 done, 1 operation failed, 2 invalid input."""
    options = _parser().parse_args(arguments)
    # Show characters that the terminal cannot display as escapes.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        status: int = options.run(options)
        sys.stdout.flush()  # here, so that a full disk can still be reported
        return status
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python must not try again at exit
        return 0 if isinstance(error, BrokenPipeError) else _fail(str(error), 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu-xid", description="NVIDIA Xid and SXid events from the kernel log."
    )
    parser.add_argument("--version", action="version", version="gpu-xid " + __version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    # For the help only: `__main__` starts the monitor itself.
    sub = command("monitor", None, "follow the kernel log and write the event log")
    sub.add_argument("--kmsg", help="kernel log device (/dev/kmsg)")
    _config_option(sub)

    sub = command("tail", _tail, "the newest events of the event log, readable")
    sub.add_argument("-n", type=int, default=20, metavar="N", help="number of events (20)")
    sub.add_argument("-f", action="store_true", dest="follow", help="keep printing new events")
    sub.add_argument("--log", help="event log (default: that of the configuration)")
    _config_option(sub)

    sub = command("explain", _explain, "the meaning of a code: gpu-xid explain 79, sxid 12028")
    sub.add_argument("code", nargs="+")
    sub.add_argument("--json", action="store_true")

    sub = command("hooks", _hooks, "run the hooks of /etc/kiln/xid.d on waiting events")
    _config_option(sub)

    sub = command("health", _health, "ask nvidia-smi for remapped rows, fabric and recovery")
    _config_option(sub)
    return parser


def _config_option(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--config", default=config.PATH, help=f"configuration ({config.PATH})")


def _fail(text: str, status: int) -> int:
    sys.stderr.write(f"gpu-xid: {text}\n")
    return status


def readable(line: bytes, color: bool = False) -> str | None:
    """Return a line of the event log as text for people; None when the monitor did not write it."""
    try:
        row: dict[str, Any] = json.loads(line.lstrip(b"\0").decode("utf-8", "replace"))
        kind, when = row["event"], row["time"]
        if kind in _LABELS:
            what = f"{_LABELS[kind]} {row[kind]}"
            gpu = row["pci"] if row["gpu"] is None else "GPU {gpu} ({pci})".format(**row)
            name = row["name"] or "unknown code"
            text = "{:<10} {:<7} {}: {}".format(what, row["severity"], gpu, name)
            if row["process"] or row["pid"] is not None:
                text += ", {}[{}]".format(row["process"] or "?", row["pid"])
            if row.get("count", 1) > 1:
                text += " (x{})".format(row["count"])
            if row.get("injected"):
                text += " [test line from user space]"
        else:
            omitted = ("time", "event", "boot_id", "seq", "monotonic_us", "version")
            shown = ", ".join(f"{k} {v}" for k, v in row.items() if k not in omitted and v)
            text = f"{kind:<10} {shown}"
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    text = printable(f"{when}  {text}")
    shade = _COLORS.get(str(row.get("severity"))) if color else None
    return f"{shade}{text}\033[0m" if shade else text


def printable(text: str) -> str:
    """Return the text with escapes for control characters, which must not reach the terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _tail(options: Namespace) -> int:
    path = options.log or config.effective(options.config)[0]["log"]
    color = sys.stdout.isatty()
    file = open(path, "rb")  # noqa: SIM115 - until the end
    newest: collections.deque[str] = collections.deque(maxlen=max(0, options.n))
    rotated = glob.glob(glob.escape(path) + ".[0-9]*")
    for older in sorted(rotated, key=lambda name: (len(name), name), reverse=True):
        with open(older, "rb") as lines:
            newest.extend(filter(None, (readable(line, color) for line in lines)))
    newest.extend(filter(None, (readable(line, color) for line in file)))
    for text in newest:
        print(text)
    rest = b""
    while options.follow:
        sys.stdout.flush()
        moved = _moved(path, file.fileno(), file.tell())  # before reading, so that all is read
        *lines_, rest = (rest + file.read()).split(b"\n")
        for text in filter(None, (readable(line, color) for line in lines_)):
            print(text)
        if moved:
            file.close()
            file, rest = open(path, "rb"), b""  # noqa: SIM115
        elif not lines_:
            time.sleep(0.5)
    file.close()
    return 0


def _moved(path: str, fd: int, read: int) -> bool:
    """Return True if `path` now names another or a shorter file. False while there is no file."""
    try:
        current = os.stat(path)
    except FileNotFoundError:
        return False
    return not os.path.samestat(current, os.fstat(fd)) or current.st_size < read


def _explain(options: Namespace) -> int:
    catalog = Catalog()
    try:
        entry = catalog.explain(" ".join(options.code))
    except UnknownCodeError as error:
        near = "; nearest: {}".format(", ".join(error.nearest)) if error.nearest else ""
        return _fail(f"{error}{near}", 2)
    if options.json:
        print(json.dumps(entry, indent=2))
        return 0
    print("{} {}: {}".format(_LABELS[entry["kind"]], entry["code"], entry["name"]))
    nvidia = entry.get("nvidia", {})
    sources = catalog.entry("sources") or {}
    for title, text in (
        ("Severity", entry["severity"] + (", by line" if "by_line" in entry else "")),
        ("Meaning", entry["meaning"]),
        ("Causes", ", ".join(entry.get("causes", []))),
        ("Action (AWS)" if "action_nvidia" in entry else "Action", entry["action"]),
        ("Action (NVIDIA)", entry.get("action_nvidia")),
        ("Recovery", entry.get("recovery")),
        ("NVIDIA's bucket", nvidia.get("immediate")),
        ("then", nvidia.get("investigate")),
        ("Since driver", entry.get("since_driver")),
        ("Driver's name", entry.get("mnemonic")),
        ("Sources", "; ".join(sources.get(s, s) for s in sorted(set(entry["source"].values())))),
    ):
        if text:
            print("  {:<16} {}".format(title + ":", text))
    return 0


def _hooks(options: Namespace) -> int:
    from . import hooks

    conf, problem = config.effective(options.config)
    if problem is not None:
        _fail(problem, 0)
    return hooks.run(conf["hooks"], lambda text: _fail(text, 1))


def _health(options: Namespace) -> int:
    from . import health

    return health.main(options.config)
