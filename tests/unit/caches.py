"""What a process keeps of the facts, the overlay and AWS, and a test that has others forgets."""

from __future__ import annotations

import functools
import sys

# Of the lab those that come from facts; the others hold a file of its own, or a key.
_OF_FACTS = ("kiln.", "lab.amis.", "lab.mirror.", "lab.packages.", "lab.rootfs.")
# These go by a file's content, or its path and time.
_BY_CONTENT = (
    "kiln.base.located",
    "kiln.components.script_syntax",
    "kiln.components.script_variables",
    "kiln.facts.indexes",
    "kiln.facts.lock_file",
    "kiln.packer.",
)


def forget() -> None:
    """Empty each cache whose content could be another test's: of its overlay or its facts."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_OF_FACTS) and not name.startswith(_BY_CONTENT):
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
