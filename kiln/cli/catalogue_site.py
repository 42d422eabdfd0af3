"""Makes the catalogue for the tasks that end with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.cli.front import note

if TYPE_CHECKING:
    from kiln.catalogue.model import Catalogue
    from kiln.cloud.target import Target

# Records of each row that are fetched from the bucket, if there is one.
_RECORDS = 10


def make_catalogue(
    place: Target, regions: Sequence[str], aws_flags: Mapping[str, str], folder: Path
) -> Catalogue:
    """Gather what the target's channels hold and write the site to `folder`.

    Raises KilnError: exit status 2 for a folder with other files, 1 if AWS does not answer.
    """
    from kiln.catalogue.gather import gather_catalogue
    from kiln.catalogue.pages import site_files
    from kiln.catalogue.site import write_site
    from kiln.cli import fetched_records
    from kiln.matrix import load
    from kiln.publish import line_flags

    recipes = load.load_recipes()
    shelf = fetched_records.shelf_for(aws_flags, place)
    if shelf:
        shelf.fetch_newest([recipe.name for recipe in recipes], note, each=_RECORDS)
    gathered = gather_catalogue(place, recipes, line_flags.settings_by_line(), regions, note)
    write_site(site_files(gathered, note), folder)
    return gathered.catalogue


def publish_catalogue(
    url: str, place: Target, aws_flags: Mapping[str, str], regions: Sequence[str]
) -> None:
    """Make the catalogue and copy it to S3. Raises what `make_catalogue` and S3 raise."""
    from kiln.base.paths import build_dir
    from kiln.catalogue.site import publish_site

    folder = build_dir() / "catalogue"
    make_catalogue(place, regions, aws_flags, folder)
    publish_site(folder, url, place, note)
