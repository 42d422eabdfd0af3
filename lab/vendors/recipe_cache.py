"""Notes of the mirror's files for a recipe when its files were last made.

To find each file again costs a quarter of a second of computing, which is what a build pays that
bakes on from one changed script.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from kiln import components
from kiln.base.recipe import Recipe
from lab.base import origin, settings
from lab.vendors import mirror

# Of a file: time (ns) and size. What has another of these was made again.
_Seen = list[int]


def hashes(recipe: Recipe) -> dict[str, str]:
    """URL → SHA-256 of each file that the bake downloads; these files and the package repositories
    of the bake are made when they are missing.

    Raises KilnError for a URL that the mirror answers with 404.
    """
    note = _note(recipe)
    return _noted(note) or _made(recipe, note)


def _note(recipe: Recipe) -> Path:
    """Return the path of the note; the name says what the files are made from."""
    of = [origin.started_from(), mirror.key_fingerprints(), recipe.to_dict()]
    key = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:12]
    return settings.current().shared / "mirror" / "prepared" / f"{recipe.name}.{key}.json"


def _noted(note: Path) -> dict[str, str]:
    """The hashes of a note whose files and repositories are as they were; {} without one."""
    with suppress(OSError, ValueError, KeyError):
        noted = json.loads(note.read_text())
        as_they_were = all(_seen(Path(path)) == seen for path, seen in noted["files"].items())
        if as_they_were and all(Path(folder).is_dir() for folder in noted["repositories"]):
            return dict(noted["hashes"])
    return {}


def _made(recipe: Recipe, note: Path) -> dict[str, str]:
    urls = [
        download.url
        for name in recipe.components
        for download in components.get(name).for_recipe(recipe).downloads
    ]
    hashes = {url: mirror.sha256(url) for url in urls}
    files = {str(path): _seen(path) for path in filter(None, map(mirror.find, urls))}
    repositories = [str(folder) for folder in mirror.prepare(recipe)]
    note.parent.mkdir(parents=True, exist_ok=True)
    for old in note.parent.glob(f"{recipe.name}.*.json"):
        old.unlink(missing_ok=True)
    making = note.with_suffix(f".{os.getpid()}.making")
    making.write_text(json.dumps({"hashes": hashes, "files": files, "repositories": repositories}))
    making.replace(note)
    return hashes


def _seen(path: Path) -> _Seen:
    now = path.stat()
    return [now.st_mtime_ns, now.st_size]
