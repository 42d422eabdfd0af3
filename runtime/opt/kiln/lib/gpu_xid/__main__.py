"""`gpu-xid COMMAND`. The monitor's options are read here: argparse would stay in its memory."""

from __future__ import annotations

import getopt
import sys


def main(arguments: list[str]) -> int:
    """Return the exit status: 0 done, 1 operation failed, 2 invalid input."""
    if arguments[:1] != ["monitor"] or {"-h", "--help"} & set(arguments):
        from .cli import main as command

        return command(arguments)
    from . import config, monitor

    try:
        options, rest = getopt.getopt(arguments[1:], "", ["config=", "kmsg="])
    except getopt.GetoptError as error:
        rest = [str(error)]
    if rest:
        sys.stderr.write(f"gpu-xid: monitor accepts --config FILE, --kmsg DEVICE: {rest[0]}\n")
        return 2
    given = dict(options)
    return monitor.main(given.get("--config", config.PATH), given.get("--kmsg", "/dev/kmsg"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
