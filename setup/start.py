"""Starts Invoke for ./invoke: Ctrl-C ends it without a traceback from its first moment on.

Python is started with -S and, where `env` can do that, with SIGINT blocked. Its own handler is
removed before anything is imported, since an interrupted import prints a traceback; then a SIGINT
that has come meanwhile ends the process. Before a task runs, `kiln.cli.main` sets one.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

import gc  # noqa: E402
import site  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

site.main()
sys.path[0] = str(Path(__file__).resolve().parents[1])

# What is imported stays: searching it for garbage again and again took a sixth of a build's start.
gc.set_threshold(100_000, 50, 50)

from kiln.cli.main import main  # noqa: E402
from tasks import ns  # noqa: E402

main(ns)
