"""`lab.shell` on a terminal: a guest's shell cannot type on the terminal of who started it."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time

from kiln.base.paths import ROOT

# What a hostile shell does: it types a command for the shell that comes after it.
TYPES = """
import fcntl, os, sys, termios
try:
    for letter in b"evil\\nevil\\n":
        fcntl.ioctl(0, termios.TIOCSTI, bytes([letter]))
except OSError:
    pass
print("size", os.get_terminal_size().columns, flush=True)
print("typed:", sys.stdin.readline(), flush=True)
sys.exit(7)
"""


def on_a_terminal(program: str) -> str:
    """What is shown on a terminal of 77 columns on which `program` runs, and `abc` is typed."""
    child, own = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-c", program])
    shown, end = "", time.monotonic() + 60
    typed = False
    while time.monotonic() < end and select.select([own], [], [], 60)[0]:
        try:
            shown += os.read(own, 4096).decode()
        except OSError:
            break
        # Not before the line is whole: the terminal shows what is typed where it stands.
        if re.search(r"size \d+\r?\n", shown) and not typed:
            os.write(own, b"abc\n")
            typed = True
    os.close(own)
    os.waitpid(child, 0)
    return re.sub(r"\r", "", shown)


def test_a_shell_of_a_guest_has_a_terminal_of_its_own() -> None:
    program = f"""
import fcntl, os, select, struct, sys, termios
from lab.daemon import own_terminal
fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 77, 0, 0))
assert own_terminal.can_be_used()
status = own_terminal.call([sys.executable, "-c", {TYPES!r}])
print("status", status)
left = os.read(0, 100) if select.select([0], [], [], 0)[0] else b""
print("left", left)
"""
    shown = on_a_terminal(program)
    assert "size 77\n" in shown
    # Typed by the user, or by itself on its own terminal; nothing of it reaches the user's.
    assert re.search(r"typed: (abc|evil)", shown)
    # Keys typed after the shell's end are echoed, and left for the next program.
    assert re.search(r"status 7\n(abc\n)?left b'(abc\\n)?'\n", shown)
