"""`gpu-xid COMMAND`. The daemon's command is parsed by hand: argparse costs more memory than
the whole monitor."""

import sys

_MONITOR_OPTIONS = ("config", "log", "format", "kmsg", "state")


def main(arguments):
    """Exit status: 0 done, 1 the world failed, 2 bad input."""
    if arguments[:1] == ["monitor"] and not {"-h", "--help", "--file"} & set(arguments):
        options = monitor_options(arguments[1:])
        if isinstance(options, str):
            sys.stderr.write("gpu-xid: %s\n" % options)
            return 2
        from .daemon import main as monitor

        return monitor(options)
    from .cli import main as command

    return command(arguments)


def monitor_options(arguments):
    """`--log FILE --format=raw` -> dict; a sentence when there is something wrong."""
    options = {}
    words = list(arguments)
    while words:
        name, equals, value = words.pop(0).partition("=")
        key = name[2:] if name.startswith("--") else ""
        if key not in _MONITOR_OPTIONS:
            return "monitor knows %s, not %r" % (
                ", ".join("--" + option for option in _MONITOR_OPTIONS),
                name,
            )
        if not equals:
            if not words:
                return "%s needs a value" % name
            value = words.pop(0)
        options[key] = value
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
