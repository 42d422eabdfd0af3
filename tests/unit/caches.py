"""What a process keeps of the facts, the overlay and AWS, and a test that has others forgets."""

from __future__ import annotations

import functools
import pickle
import sys
from pathlib import Path
from typing import Any

from kiln.base import yaml_files
from kiln.base.paths import KNOWLEDGE
from kiln.cloud import aws

# Of the lab those that come from facts; the others hold a file of its own, or a key.
_OF_FACTS = ("kiln.", "lab.moto.public_images", "lab.vendors.", "lab.rootfs.")
# These go by a file's content, or its path and time.
_BY_CONTENT = (
    "kiln.base.yaml_files",
    "kiln.facts.packages",
    "kiln.packer.",
)


def forget() -> None:
    """Empty each cache whose content could be another test's: of its overlay or its facts."""
    for name, module in list(sys.modules.items()):
        if not name.startswith(_OF_FACTS) or name.startswith(_BY_CONTENT):
            continue
        for value in list(vars(module).values()):
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()


def forget_clients() -> None:
    """Make the next clients read the credentials and settings of the environment again."""
    for cached in (aws.client, aws.s3, aws._session):
        cached.cache_clear()


def read_facts_once() -> None:
    """Parse each of our files of facts once in a process: after `forget` it is read from a copy."""
    read = yaml_files.read_plain
    known: dict[tuple[str, str, bool], bytes] = {}

    def read_plain(path: Path, *, versions_as_text: bool = False) -> Any:
        if path.parent != KNOWLEDGE:
            return read(path, versions_as_text=versions_as_text)
        content = (path.name, path.read_text(encoding="utf-8"), versions_as_text)
        if content not in known:
            known[content] = pickle.dumps(read(path, versions_as_text=versions_as_text))
        return pickle.loads(known[content])

    yaml_files.read_plain = read_plain
