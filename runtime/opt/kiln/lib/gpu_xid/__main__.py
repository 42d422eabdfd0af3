"""`gpu-xid COMMAND`. The options of the daemon are parsed here: argparse and the commands for
people would stay in its memory for as long as the machine runs."""

from __future__ import annotations

import sys

_MONITOR_OPTIONS = ("config", "log", "format", "kmsg", "state")


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 done, 1 operation failed, 2 invalid input."""
    if arguments[:1] == ["monitor"] and not {"-h", "--help"} & set(arguments):
        options = monitor_options(arguments[1:])
        if isinstance(options, str):
            sys.stderr.write(f"gpu-xid: {options}\n")
            return 2
        from .daemon import main as monitor

        return monitor(options)
    from .cli import main as command

    return command(arguments)


def monitor_options(arguments: list[str]) -> dict[str, str] | str:
    """`--log FILE --format=raw` -> dict of options; a message when an option is invalid."""
    options = {}
    words = list(arguments)
    while words:
        name, equals, value = words.pop(0).partition("=")
        key = name[2:] if name.startswith("--") else ""
        if key not in _MONITOR_OPTIONS:
            return "monitor accepts {}, not {!r}".format(
                ", ".join("--" + option for option in _MONITOR_OPTIONS),
                name,
            )
        if not equals:
            if not words:
                return f"{name} needs a value"
            value = words.pop(0)
        options[key] = value
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
