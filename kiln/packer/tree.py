"""A tree of files and links on the disk: written where it differs, and nothing else touched."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kiln.base.errors import KilnError


@dataclass(frozen=True)
class Link:
    """A symbolic link; `target` is relative to the folder that the link is in."""

    target: str


# Path in a folder → what is to be there.
Tree = Mapping[str, "str | Link"]


def write_tree(root: Path, tree: Tree, present: Iterable[str]) -> None:
    """Make the folder `root` hold the tree; `present` are the files in it that may go.

    Raises KilnError (exit status 2), before it writes, where something else is in the way.
    """
    for path in sorted(set(present) - set(tree)):
        (root / path).unlink()
        for folder in (root / path).parents:
            if folder == root or any(folder.iterdir()):
                break
            folder.rmdir()
    for path in tree:
        _require_room(root, root / path)
    for path, content in tree.items():
        if not is_there(root / path, content):
            _put(root / path, content)


def _require_room(root: Path, path: Path) -> None:
    """Raises KilnError for a folder in the place of a file, or for anything else in a folder's."""
    if path.is_dir() and not path.is_symlink():
        obstacle, wanted = path, "a file"
    else:
        above = [root, *(root / part for part in reversed(path.relative_to(root).parents))]
        wrong = [each for each in above if os.path.lexists(each) and not each.is_dir()]
        if not wrong:
            return
        obstacle, wanted = wrong[0], "a folder"
    raise KilnError(
        f"{obstacle} is in the way: {wanted} belongs there",
        hint="remove it: all in that place is rendered",
    )


def _put(path: Path, content: str | Link) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # writing to a link would change what it leads to
    if isinstance(content, Link):
        path.symlink_to(content.target)
    else:
        path.write_text(content, encoding="utf-8")


def is_there(path: Path, content: str | Link) -> bool:
    """Whether the file or link is there with this content."""
    if isinstance(content, Link) or path.is_symlink():
        return path.is_symlink() and Link(str(path.readlink())) == content
    return path.is_file() and path.read_bytes() == content.encode()
