"""A program of a guest on a terminal of its own.

Who has a terminal can type on it: with TIOCSTI, which most kernels allow, a guest's shell would put
a command into the line that the user's own shell reads next, as root of this machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import Any

_TYPED, _SHOWN = 0, 1


def call(command: Sequence[str]) -> int:
    """Run a command on a new terminal that is shown on this one; returns its exit status.

    Both standard input and output must be a terminal.
    """
    child, own = pty.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            os.execvp(command[0], list(command))  # noqa: S606 - no shell
        os._exit(127)
    with _raw(), _same_size(own):
        status = _relay(own, child)
    os.close(own)
    return os.waitstatus_to_exitcode(status)


def can_be_used() -> bool:
    """Return True if there is a terminal to show it on."""
    return sys.stdin is not None and os.isatty(_TYPED) and os.isatty(_SHOWN)


def _relay(own: int, child: int) -> int:
    """Until the command has ended, whoever else has its terminal open; returns its status."""
    watched, ended, status = [own, _TYPED], 0, 0
    while True:
        # Asked before, so that what it wrote last is shown.
        ended, status = (ended, status) if ended else os.waitpid(child, os.WNOHANG)
        ready, _, _ = select.select(watched, [], [], 0 if ended else 0.2)
        if ended and own not in ready:
            return status
        if own in ready:
            try:
                shown = os.read(own, 1 << 16)
            except OSError:  # nobody has it open any more
                return status if ended else os.waitpid(child, 0)[1]
            _write(_SHOWN, shown)
        if _TYPED in ready:
            typed = os.read(_TYPED, 1 << 12)
            if typed:
                _write(own, typed)
            else:
                watched.remove(_TYPED)


def _write(where: int, text: bytes) -> None:
    while text:
        text = text[os.write(where, text) :]


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    before = termios.tcgetattr(_TYPED)
    tty.setraw(_TYPED)
    try:
        yield
    finally:
        termios.tcsetattr(_TYPED, termios.TCSAFLUSH, before)


@contextlib.contextmanager
def _same_size(own: int) -> Iterator[None]:
    def copy(*_: Any) -> None:
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(_SHOWN, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(own, termios.TIOCSWINSZ, size)

    copy()
    before = signal.signal(signal.SIGWINCH, copy)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
