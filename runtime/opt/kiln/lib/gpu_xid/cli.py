"""The commands for people: `gpu-xid tail | explain | summary | replay | hooks | health`."""

import argparse
import collections
import json
import os
import sys
import time

from . import __version__, config, history
from .catalogue import Catalogue

_COLOURS = {"fatal": "\033[1;31m", "error": "\033[31m", "warning": "\033[33m"}


def main(arguments):
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.command:
        parser.print_help()
        return 2
    if sys.stdout is None:
        return _fail("cannot write the answer: standard output is closed", 1)
    # A name that this terminal's character set lacks is shown escaped.
    sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = options.run(options) or 0
        sys.stdout.flush()  # here, where a full disk can still be told
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
            return _fail("cannot write the answer: %s" % error.strerror, 1)
        wrong = isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError))
        return _fail("%s: %s" % (error.filename or "''", error.strerror), 2 if wrong else 1)


def _forget_output():
    """What could not be written must not be tried again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _parser():
    parser = argparse.ArgumentParser(
        prog="gpu-xid", description="NVIDIA Xid and SXid events from the kernel log."
    )
    parser.add_argument("--version", action="version", version="gpu-xid " + __version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name, run, text):
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    sub = command("monitor", _monitor, "the daemon: follow the kernel log, write the event log")
    sub.add_argument("--file", help="read this archive instead (- for stdin), write to stdout")
    for option, text in (
        ("--config", "configuration (%s)" % config.PATH),
        ("--log", "event log to write"),
        ("--format", "json or raw"),
        ("--kmsg", "kernel log device (/dev/kmsg)"),
        ("--state", "position file"),
    ):
        sub.add_argument(option, help=text)

    sub = command("tail", _tail, "the newest events of the event log, for people")
    sub.add_argument("-n", type=_count, default=20, metavar="N", help="so many (20)")
    sub.add_argument("-f", action="store_true", dest="follow", help="and those to come")
    _log_option(sub)

    sub = command("explain", _explain, "what a code means: gpu-xid explain 79, sxid 12028")
    sub.add_argument("code", nargs="+")
    sub.add_argument("--json", action="store_true")

    sub = command("summary", _summary, "events by code, GPU and severity, rotated files too")
    sub.add_argument("--json", action="store_true")
    _log_option(sub)

    sub = command("replay", _replay, "events of an archived kernel log: dmesg, syslog, journal")
    sub.add_argument("file", help="file, or - for stdin")

    sub = command("hooks", _hooks, "run /etc/kiln/xid.d on the events that wait")
    sub.add_argument("--config", default=config.PATH)
    sub.add_argument("--spool", default=None, help=argparse.SUPPRESS)

    sub = command("health", _health, "ask nvidia-smi for remapped rows and fabric state")
    sub.add_argument("--config", default=config.PATH)
    return parser


def _count(text):
    if not text.isdigit():
        raise argparse.ArgumentTypeError("%r is no number of lines" % text)
    return int(text)


def _log_option(sub):
    sub.add_argument("--log", help="event log (the one of %s)" % config.PATH)


def _fail(text, status):
    if sys.stderr is not None:
        sys.stderr.write("gpu-xid: %s\n" % text)
    return status


def _monitor(options):
    """Only for `--file`: the daemon itself does not come this way."""
    return _events_of(options.file)


def _replay(options):
    return _events_of(options.file)


def _events_of(path):
    from .stream import events

    if path == "-" and sys.stdin is None:
        return _fail("standard input is closed", 2)
    source = sys.stdin.buffer if path == "-" else open(path, "rb")
    with source:
        found = events(source)
        while True:
            try:
                row = next(found, None)
            except OSError as error:
                return _fail("%s: %s" % (path, error.strerror), 1)
            if row is None:
                return 0
            sys.stdout.write(json.dumps(row) + "\n")


def _log_path(options):
    return config.load()["log"] if options.log is None else options.log


def one_line(row, colour=False):
    """An event as a person reads it."""
    kind = row["event"]
    if history.is_gpu_event(row):
        what = "%s %s" % ({"xid": "Xid", "sxid": "SXid"}[kind], row[kind])
        where = row["pci"] if row.get("gpu") is None else "GPU %d (%s)" % (row["gpu"], row["pci"])
        text = "%-10s %-7s %s: %s" % (what, row["severity"], where, row["name"] or "unknown code")
        if row.get("process") or row.get("pid") is not None:
            text += ", %s[%s]" % (row.get("process") or "?", row.get("pid"))
        if row.get("count", 1) > 1:
            text += " (x%d)" % row["count"]
        if row.get("injected"):
            text += " [test line from user space]"
    else:
        known = ("time", "event", "boot_id", "seq", "monotonic_us", "version", "safe")
        rest = ", ".join("%s %s" % (k, v) for k, v in row.items() if k not in known and v)
        text = "%-10s %s" % (kind, rest)
    shade = _COLOURS.get(str(row.get("severity"))) if colour else None
    text = history.printable("%s  %s" % (row["time"], text))
    return "%s%s\033[0m" % (shade, text) if shade else text


def _tail(options):
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
        print(one_line(row, colour))
    rest = b""
    while options.follow:
        moved = _moved(file, path)  # asked first: what it held until then is read to its end
        new = file.read()
        data = rest + new
        whole = data.rfind(b"\n") + 1
        rest = data[whole:]
        for row in history.rows(data[:whole].splitlines()):
            print(one_line(row, colour))
        if moved:
            file.close()
            file, rest = open(path, "rb"), b""
        elif not new:
            sys.stdout.flush()
            time.sleep(0.5)
    file.close()
    return 0


def _moved(file, path):
    """Is there another file at `path` now, or a shorter one? Not while there is none."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return there.st_ino != os.fstat(file.fileno()).st_ino or there.st_size < file.tell()


def _explain(options):
    from .explain import UnknownCodeError, explain

    try:
        entry = explain(" ".join(options.code))
    except UnknownCodeError as error:
        near = "; nearest: %s" % ", ".join(error.nearest) if error.nearest else ""
        return _fail("%s%s" % (error, near), 2)
    if options.json:
        print(json.dumps(entry, indent=2))
        return 0
    label = {"xid": "Xid", "sxid": "SXid"}[entry["kind"]]
    print("%s %d: %s" % (label, entry["code"], entry["name"]))
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
            print("  %-16s %s" % (title + ":", text))
    return 0


def _summary(options):
    counts, lost, injected = {}, 0, 0
    for file in reversed(history.files(_log_path(options))):
        for row in history.rows(file):
            lost += row.get("lost", 0)
            if history.is_gpu_event(row):
                number = row.get("count", 1)
                injected += number if row.get("injected") else 0
                key = (row["event"], row[row["event"]], row["name"], row["pci"], row["severity"])
                old = counts.get(key, [0, row["time"], ""])
                counts[key] = [old[0] + number, min(old[1], row["time"]), max(old[2], row["time"])]
        file.close()
    order = sorted(counts.items(), key=lambda item: -item[1][0])
    names = ("kind", "code", "name", "pci", "severity", "count", "first", "last")
    rows = [dict(zip(names, key + tuple(value))) for key, value in order]  # noqa: B905
    if options.json:
        print(json.dumps({"events": rows, "lost_records": lost, "injected": injected}, indent=2))
        return 0
    if not rows:
        print("no Xid and no SXid")
    for row in rows:
        print("%(count)6d  %(kind)-4s %(code)-6d %(severity)-7s %(pci)-13s %(name)s" % row)
        print("        from %(first)s to %(last)s" % row)
    if lost:
        print("%d kernel records were lost unread" % lost)
    return 0


def _hooks(options):
    from .hooks_run import run

    return run(config.load(options.config)["hooks"], options.spool)


def _health(options):
    from .health import main as health

    return health(config_path=options.config)
