"""What the unit tests share: what they would only compute again is kept.

Nothing here changes what a program does, and a process that a test starts has none of it.
"""

from __future__ import annotations

import functools
import gc

from botocore.loaders import JSONFileLoader

# The modules that tests import are no garbage; searching them again and again took a twentieth of
# the whole run.
gc.set_threshold(100_000, 50, 50)

_load_file = JSONFileLoader.load_file


@functools.cache
def _once(path: str) -> object:
    return _load_file(JSONFileLoader(), path)


# botocore reads EC2's description once for each session, and moto makes a session for each test. A
# session's clients share it in the same way.
JSONFileLoader.load_file = lambda loader, path: _once(path)
