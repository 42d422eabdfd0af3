"""What a machine prints or is given may be one long line: nothing that reads it takes hours.

Each of these patterns took time with the square of a line's length. The limit is CPU time, two
hundred times what is needed.
"""

from __future__ import annotations

import gzip
import os
import resource
import time
from collections.abc import Callable
from functools import partial

from kiln.base.paths import runtime_module
from kiln.cloud import instance

LONG = 1 << 20


def ends(read: Callable[[], object]) -> bool:
    """Whether it ends within 10 s of CPU. In a process of its own: no signal stops a pattern."""
    child = os.fork()
    if child == 0:
        limit = int(time.process_time()) + 10
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        try:
            read()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def test_user_data_of_blanks_does_not_hold_up_the_boot() -> None:
    """EC2 takes 16 KiB; a thousandth of that unpacks to as much as the unit reads."""
    imds = runtime_module("gpu_mig.imds")
    for text in (b" " * (LONG - 8), b"\t" * (LONG // 2) + b"#" + b" " * (LONG // 2 - 8)):
        assert ends(partial(imds.from_user_data, gzip.compress(text)))
    for text in (b"kiln:mig-config=a", b" # kiln:mig-config: a \r\n", b"\t#\tkiln:mig-config = a"):
        assert imds.from_user_data(text) == "a"


def test_a_console_full_of_beginnings_does_not_hold_up_the_connection() -> None:
    text = "-----BEGIN SSH HOST KEY KEYS-----\n" * (LONG // 34)
    assert ends(partial(instance.keys_in_console, text))
