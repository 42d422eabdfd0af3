"""`gpu-xid monitor`: read the configuration, take the lock, open the reader, run `Monitor`."""

from __future__ import annotations

import os

from . import checkpoint, config, kmsg
from .monitor import Monitor
from .watchdog import say

TYPE_CHECKING = False  # the module typing would cost the daemon 0.7 MiB
if TYPE_CHECKING:
    from typing import Any

    from .journal import JournalReader
    from .kmsg import KmsgReader

_KMSG_DEVICE = os.makedev(1, 11)
_STATE_DIR = "/var/lib/gpu-xid"


def open_reader(path: str) -> KmsgReader | JournalReader:
    """A reader of the kernel log, or of the journal where a container or an LSM forbids that."""
    try:
        reader = kmsg.KmsgReader(path)
        if os.fstat(reader.fd).st_rdev == _KMSG_DEVICE:
            return reader
        reader.close()
        trouble = "not the kernel log device"  # containers may have /dev/null or a file there
    except OSError as error:
        trouble = error.strerror or str(error)
    say(4, f"cannot read {path} ({trouble}): following the journal instead")
    from . import journal

    return journal.JournalReader()


def former_configuration(path: str, options: dict[str, str]) -> dict[str, Any] | None:
    """The last valid configuration, else the defaults; None where the command line is invalid.

    Events must be logged, also after a restart or a reboot with a mistake in the configuration.
    """
    what = "the former configuration is"
    try:
        conf = config.load(path, missing_ok=False, **options)
    except config.BadConfigError:
        what = "the defaults are"
        try:
            conf = config.check({k: v for k, v in options.items() if v is not None}, "command line")
        except config.BadConfigError:
            return None
    say(4, f"{what} in force until it is corrected")
    conf["log"] = os.path.realpath(conf["log"])
    return conf


def main(options: dict[str, str]) -> int:
    """Run the monitor and return its exit status.

    options: overrides of configuration keys, and `config`, `kmsg` and `state` (paths).
    """
    path = options.pop("config", None)
    kmsg_path = options.pop("kmsg", "/dev/kmsg")
    state = options.pop("state", None)

    former = (os.path.dirname(state) if state else _STATE_DIR) + "/former-config.json"

    def load() -> dict[str, Any]:
        conf = config.load(path or config.PATH, missing_ok=path is None, **options)
        config.remember(conf, former)
        # Rotation renames files: where `log` is a link to another disk, rotate on that disk.
        conf["log"] = os.path.realpath(conf["log"])
        return conf

    try:
        conf = load()
    except config.BadConfigError as error:
        say(3, str(error))
        substitute = None if path else former_configuration(former, options)
        if substitute is None:
            return 2
        conf = substitute
    if state is None:
        is_default = conf["log"] == os.path.realpath(config.DEFAULTS["log"])
        state = _STATE_DIR + "/position" if is_default else conf["log"] + ".position"
    try:
        position_file = checkpoint.PositionFile(state)
    except checkpoint.BusyError:
        say(3, "another gpu-xid monitor already writes {}".format(conf["log"]))
        return 1
    try:
        Monitor(conf, open_reader(kmsg_path), position_file, reload=load).run()
    except OSError as error:
        say(3, f"{error.filename or kmsg_path}: {error.strerror}")
        return 1
    return 0
