"""The commands for people: `gpu-xid tail | explain | summary | hooks | health`."""

from __future__ import annotations

import argparse
import collections
import io
import json
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, BinaryIO

from . import __version__, config, history
from .catalogue import Catalogue

_COLOURS = {"fatal": "\033[1;31m", "error": "\033[31m", "warning": "\033[33m"}


def main(arguments: list[str]) -> int:  # noqa: PLR0911 - a status per kind of error
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.command:
        parser.print_help()
        return 2
    if sys.stdout is None:
        return _fail("cannot write the output: standard output is closed", 1)
    # Show characters that the terminal cannot display as escapes.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int = options.run(options)
        sys.stdout.flush()  # here, so that a full disk can still be reported
        return status
    except config.BadConfigError as error:
        return _fail(str(error), 2)
    except BrokenPipeError:
        _forget_output()
        return 0
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.filename is None:
            _forget_output()
            return _fail(f"cannot write the output: {error.strerror}", 1)
        bad_path = isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError))
        return _fail("{}: {}".format(error.filename or "''", error.strerror), 2 if bad_path else 1)


def _forget_output() -> None:
    """Python must not try again at exit to write what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _parser() -> ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu-xid", description="NVIDIA Xid and SXid events from the kernel log."
    )
    parser.add_argument("--version", action="version", version="gpu-xid " + __version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, run: Callable[[Namespace], int], text: str) -> ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    # For the help only: `__main__` starts the daemon itself.
    sub = command("monitor", _tail, "the daemon: follow the kernel log, write the event log")
    for option, text in (
        ("--config", f"configuration ({config.PATH})"),
        ("--log", "event log to write"),
        ("--format", "json or raw"),
        ("--kmsg", "kernel log device (/dev/kmsg)"),
        ("--state", "position file"),
    ):
        sub.add_argument(option, help=text)

    sub = command("tail", _tail, "the newest events of the event log, readable")
    sub.add_argument("-n", type=_count, default=20, metavar="N", help="number of events (20)")
    sub.add_argument("-f", action="store_true", dest="follow", help="keep printing new events")
    _log_option(sub)

    sub = command("explain", _explain, "the meaning of a code: gpu-xid explain 79, sxid 12028")
    sub.add_argument("code", nargs="+")
    sub.add_argument("--json", action="store_true")

    sub = command("summary", _summary, "events by code, GPU and severity, including rotated files")
    sub.add_argument("--json", action="store_true")
    _log_option(sub)

    sub = command("hooks", _hooks, "run the hooks of /etc/kiln/xid.d on waiting events")
    sub.add_argument("--config", default=config.PATH)
    sub.add_argument("--spool", default=None, help=argparse.SUPPRESS)

    sub = command("health", _health, "ask nvidia-smi for remapped rows, fabric and recovery")
    sub.add_argument("--config", default=config.PATH)
    return parser


def _count(text: str) -> int:
    if not (text.isdigit() and text.isascii()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines")
    return int(text)


def _log_option(sub: ArgumentParser) -> None:
    sub.add_argument("--log", help=f"event log (default: that of {config.PATH})")


def _fail(text: str, status: int) -> int:
    if sys.stderr is not None:
        sys.stderr.write(f"gpu-xid: {text}\n")
    return status


def _log_path(options: Namespace) -> str:
    return str(config.load()["log"] if options.log is None else options.log)


def readable(row: dict[str, Any], colour: bool = False) -> str:
    """An event as one line of text for people."""
    kind = row["event"]
    if history.is_gpu_event(row):
        what = "{} {}".format({"xid": "Xid", "sxid": "SXid"}[kind], row[kind])
        where = (
            row["pci"] if row.get("gpu") is None else "GPU {} ({})".format(row["gpu"], row["pci"])
        )
        text = "{:<10} {:<7} {}: {}".format(
            what, row["severity"], where, row.get("name") or "unknown code"
        )
        if row.get("process") or row.get("pid") is not None:
            text += ", {}[{}]".format(row.get("process") or "?", row.get("pid"))
        if row.get("count", 1) > 1:
            text += " (x{})".format(row["count"])
        if row.get("injected"):
            text += " [test line from user space]"
    else:
        omitted = ("time", "event", "boot_id", "seq", "monotonic_us", "version", "safe")
        rest = ", ".join(f"{k} {v}" for k, v in row.items() if k not in omitted and v)
        text = f"{kind:<10} {rest}"
    shade = _COLOURS.get(str(row.get("severity"))) if colour else None
    text = history.printable("{}  {}".format(row["time"], text))
    return f"{shade}{text}\033[0m" if shade else text


def _tail(options: Namespace) -> int:
    path = _log_path(options)
    colour = sys.stdout.isatty()
    file, *older = history.files(path)
    newest = collections.deque(history.rows(file), options.n)
    for rotated in older:
        with rotated:
            if len(newest) < options.n:
                more = collections.deque(history.rows(rotated), options.n - len(newest))
                newest.extendleft(reversed(more))
    for row in newest:
        print(readable(row, colour))
    rest = b""
    while options.follow:
        moved = _moved(file, path)  # before reading, so that the old file is read to its end
        new = file.read()
        data = rest + new
        whole = data.rfind(b"\n") + 1
        rest = data[whole:]
        for row in history.rows(data[:whole].splitlines()):
            print(readable(row, colour))
        if moved:
            file.close()
            file, rest = open(path, "rb"), b""  # noqa: SIM115 - closed below
        elif not new:
            sys.stdout.flush()
            time.sleep(0.5)
    file.close()
    return 0


def _moved(file: BinaryIO, path: str) -> bool:
    """Whether `path` now names another or a shorter file. False while there is no file."""
    try:
        current = os.stat(path)
    except FileNotFoundError:
        return False
    return current.st_ino != os.fstat(file.fileno()).st_ino or current.st_size < file.tell()


def _explain(options: Namespace) -> int:
    from .explain import UnknownCodeError, explain

    try:
        entry = explain(" ".join(options.code))
    except UnknownCodeError as error:
        near = "; nearest: {}".format(", ".join(error.nearest)) if error.nearest else ""
        return _fail(f"{error}{near}", 2)
    if options.json:
        print(json.dumps(entry, indent=2))
        return 0
    label = {"xid": "Xid", "sxid": "SXid"}[entry["kind"]]
    print("{} {}: {}".format(label, entry["code"], entry["name"]))
    nvidia = entry.get("nvidia", {})
    sources = Catalogue().entry("sources") or {}
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


def _summary(options: Namespace) -> int:
    from .repeats import Repeats

    counts: dict[tuple[Any, ...], list[Any]] = {}
    repeats = Repeats(_restarts())
    lost = injected = 0
    for file in reversed(history.files(_log_path(options))):
        for row in history.rows(file):
            lost += row.get("lost", 0)
            repeats.add(row)
            xid = history.as_xid(row)
            if history.is_gpu_event(xid):
                number = row.get("count", 1)
                injected += number if row.get("injected") else 0
                key = (
                    row["event"],
                    xid[xid["event"]],
                    row.get("name"),
                    row["pci"],
                    row["severity"],
                )
                old = counts.get(key, [0, row["time"], ""])
                counts[key] = [old[0] + number, min(old[1], row["time"]), max(old[2], row["time"])]
        file.close()
    order = sorted(counts.items(), key=lambda item: -item[1][0])
    names = ("kind", "code", "name", "pci", "severity", "count", "first", "last")
    rows = [dict(zip(names, key + tuple(value))) for key, value in order]
    if options.json:
        more = {"lost_records": lost, "injected": injected, "replace": repeats.advice()}
        print(json.dumps({"events": rows, **more}, indent=2))
        return 0
    if not rows:
        print("no Xid or SXid events")
    for row in rows:
        print("{count:6}  {kind:<4} {code:<6} {severity:<7} {pci:<13} {name}".format(**row))
        print("        from {first} to {last}".format(**row))
    for advice in repeats.advice():
        print(
            "{kind} {code} on {gpu} came again after {restarts} restarts: replace the instance "
            "(stop and start it, or end it) instead of restarting it once more".format(**advice)
        )
    if lost:
        print(f"{lost} kernel records were overwritten before they could be read")
    return 0


def _restarts() -> dict[str, Any]:
    """The configuration's section; the defaults where it is invalid and not needed for the log."""
    try:
        return dict(config.load()["restarts"])
    except config.BadConfigError:
        return config.RESTART_DEFAULTS


def _hooks(options: Namespace) -> int:
    from .hooks_run import run
    from .repeats import of_log

    conf = config.load(options.config)
    return run(conf["hooks"], options.spool, of_log(conf["log"], conf["restarts"]))


def _health(options: Namespace) -> int:
    from .health import main as health

    return health(config_path=options.config)
