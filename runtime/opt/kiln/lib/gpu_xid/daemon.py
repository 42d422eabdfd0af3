"""`gpu-xid monitor`: the configuration, the lock and the reader, then `Monitor` until the end."""

import os

from . import checkpoint, config, kmsg
from .monitor import Monitor
from .watchdog import say

_KMSG_DEVICE = os.makedev(1, 11)
_STATE_DIR = "/var/lib/gpu-xid"


def open_reader(path):
    """The kernel log, or the journal where it may not be read (a container, a strict LSM)."""
    try:
        reader = kmsg.KmsgReader(path)
        if os.fstat(reader.fd).st_rdev == _KMSG_DEVICE:
            return reader
        reader.close()
        trouble = "not the kernel log device"  # /dev/null or a file in its place, in a container
    except OSError as error:
        trouble = error.strerror
    say(4, "cannot read %s (%s): following the journal instead" % (path, trouble))
    from . import journal

    return journal.JournalReader()


def main(options):
    """`gpu-xid monitor`. options: dict of config overrides plus `config`, `kmsg`, `state`."""
    path = options.pop("config", None)
    kmsg_path = options.pop("kmsg", "/dev/kmsg")
    state = options.pop("state", None)

    def load():
        conf = config.load(path or config.PATH, missing_ok=path is None, **options)
        # Rotation renames: a link to another disk must stay, and the files must rotate over there.
        conf["log"] = os.path.realpath(conf["log"])
        return conf

    try:
        conf = load()
    except config.BadConfigError as error:
        say(3, str(error))
        return 2
    if state is None:
        own = conf["log"] == os.path.realpath(config.DEFAULTS["log"])
        state = _STATE_DIR + "/position" if own else conf["log"] + ".position"
    try:
        position_file = checkpoint.PositionFile(state)
    except checkpoint.BusyError:
        say(3, "another gpu-xid monitor writes %s already" % conf["log"])
        return 1
    try:
        Monitor(conf, open_reader(kmsg_path), position_file, reload=load).run()
    except OSError as error:
        say(3, "%s: %s" % (error.filename or kmsg_path, error.strerror))
        return 1
    return 0
