"""What the unit tests share: what they would only compute again is kept.

Nothing here changes what a program does, and a process that a test starts has none of it.
"""

from __future__ import annotations

import gc
import signal

from lab import botocore_data

# The modules that tests import are no garbage; searching them again and again took a twentieth of
# the whole run.
gc.set_threshold(100_000, 50, 50)
# moto makes a session for each test.
botocore_data.read_once()
# A shell ignores SIGINT for what it starts in the background, and so would the programs that the
# tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
