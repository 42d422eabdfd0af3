"""Channels, AMI tags, statements and records → the catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from kiln import facts
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.base.tags import VERIFIED, says_verified
from kiln.base.vocabulary import now
from kiln.catalog.model import (
    Catalog,
    CatalogdImage,
    CatalogdLine,
    ChannelInRegion,
    ChannelMove,
    CheckCounts,
    Gathered,
    ServedType,
    Signed,
    Trust,
)
from kiln.cloud.images import Image, own_images
from kiln.cloud.target import Target
from kiln.compat.which import judged_rows, rows_on
from kiln.facts import InstanceType
from kiln.image.diff import Change, compare_records, severity_counts
from kiln.image.version_info import read_version_info
from kiln.matrix.model import Publish
from kiln.pipeline import records
from kiln.pipeline.record import Record
from kiln.publish import channels, provenance
from kiln.publish.channels import Release
from kiln.publish.lines import ChannelRow, channel_rows

Say = Callable[[str], None]


def gather_catalog(
    target: Target,
    recipes: Sequence[Recipe],
    settings: Mapping[str, Publish],
    regions: Sequence[str],
    say: Say,
) -> Gathered:
    """Return the catalog of the target's account, with the records that are here.

    `settings` are the lines' own. `say` gets what cannot be shown, such as a statement that nobody
    may read.
    """
    rows = channel_rows(target, regions, settings)
    own = {image.ami_id: image for image in own_images(target)}
    by_line = {recipe.channel_line: recipe for recipe in recipes}
    known: dict[str, Record] = {}
    lines = []
    for line in dict.fromkeys([*by_line, *(row.line for row in rows)]):
        here = [row for row in rows if row.line == line]
        past = {
            channel: list(channels.past(target, line, channel))
            for channel in dict.fromkeys(row.channel for row in here)
        }
        releases = _releases(past)
        found = {key: _record(release, say) for key, release in releases.items()}
        known |= {key: record for key, record in found.items() if record}
        held = {row.ami_id for row in here}
        images = _images(target, own, releases, found, held, settings.get(line, Publish()), say)
        lines.append(
            line_about(
                line,
                by_line.get(line),
                releases,
                channels=tuple(_channel(row, past[row.channel]) for row in here),
                history=tuple(_moves(past)),
                images=tuple(images),
            )
        )
    offered = [kind for kind in facts.instances().values() if kind.offered]
    # What can be had stands before what the matrix only promises.
    lines.sort(key=lambda line: not line.channels)
    return Gathered(
        Catalog(
            made=now(),
            place=target.where,
            target=target.kind,
            region=target.region,
            regions=tuple(dict.fromkeys([target.region, *regions])),
            lines=tuple(lines),
            types=served_types(list(by_line.values()), [line.line for line in lines], offered),
        ),
        known,
    )


def _releases(past: Mapping[str, Sequence[Release]]) -> dict[str, Release]:
    """Return each image that a line's channels have held, newest first, by its last move."""
    every = sorted(
        (move for each in past.values() for move in each), key=lambda move: move.moved.at
    )
    last = {release.run_id: release for release in every}
    return dict(sorted(last.items(), key=lambda pair: (pair[1].built, pair[0]), reverse=True))


def _record(release: Release, say: Say) -> Record | None:
    """Return the record that judged the image last, or that of its build; None if none is here."""
    every = records.all_of(release.recipe)
    ids = set(release.images.values())
    judged = (
        record
        for record in every
        if record.ami_id in ids and not record.is_inconclusive and record.checks
    )
    built = (record for record in every if record.run_id == release.run_id)
    record = next(judged, next(built, None))
    try:
        if record and record.versions:
            read_version_info(record.versions, "its version-info")
    except KilnError as error:
        say(f"{release.ami_name}: its record is left out: {error}")
        return None
    return record


def _images(
    target: Target,
    own: Mapping[str, Image],
    releases: Mapping[str, Release],
    records: Mapping[str, Record | None],
    held: set[str],
    settings: Publish,
    say: Say,
) -> Iterator[CatalogdImage]:
    """Yield a line's images, newest first; `held` are the AMIs that its channels hold."""
    older = dict(pairwise(releases))
    for key, release in releases.items():
        before = older.get(key)
        record = records[key]
        versions = record.versions if record else None
        ami_id = release.images.get(target.region, "")
        trust, why_not = _trust(own.get(ami_id))
        signed: Signed = "unknown"
        signed_why = "only images that a channel holds are checked"
        if held.intersection(release.images.values()):
            signed, signed_why = _signed(target, ami_id, trust, settings, say)
        yield CatalogdImage(
            key=key,
            ami_name=release.ami_name,
            images=release.images,
            built=release.built,
            trust=trust,
            why_not=why_not,
            signed=signed,
            signed_why=signed_why,
            installed=release.installed.model_dump(),
            recipe=release.recipe,
            recipe_digest=release.recipe_digest,
            git_commit=release.git_commit,
            checks=_check_counts(record),
            packages=len(versions["packages"]) if versions else None,
            record=f"images/{key}.record.json" if record else None,
            sbom=f"images/{key}.sbom.json" if versions else None,
            before=before,
            changes=_change_counts(records.get(before or ""), record),
        )


def _signed(
    target: Target, ami_id: str, trust: Trust, settings: Publish, say: Say
) -> tuple[Signed, str]:
    """Return whether an AMI is what its statement says, and why that is not known."""
    if settings.sign is None:
        return "unsigned", "the matrix names no key for this line"
    if trust == "gone":
        return "unknown", "the AMI is not there any more"
    try:
        key = provenance.public_key(settings.sign, target)
        statement = provenance.verify_image(target, ami_id, key)
    except KilnError as error:
        say(f"{ami_id}: its statement was not checked: {error}")
        return "unknown", "its statement could not be read"
    return ("does not match", "; ".join(statement.wrong)) if statement.wrong else ("matches", "")


def _check_counts(record: Record | None) -> CheckCounts | None:
    if record is None or record.checks is None:
        return None
    checks = record.checks
    return CheckCounts(checks.passed, checks.failed, checks.skipped, record.verify_instance_type)


def _change_counts(before: Record | None, after: Record | None) -> dict[str, int] | None:
    changes = changes_between(before, after)
    return None if changes is None else severity_counts(changes)


def _trust(image: Image | None) -> tuple[Trust, str]:
    """Return whether an AMI is verified: by its own tag, and it can be launched."""
    if image is None:
        return "gone", "the AMI is not there any more"
    if image.state != "available":
        return "gone", f"the AMI is {image.state}"
    verdict = image.tags.get(VERIFIED, "")
    if says_verified(verdict):
        return "verified", ""
    why = f"its tag {VERIFIED} says {verdict!r}" if verdict else "nothing verified it"
    return "not verified", why


_GONE = "the image is not available here"
# The region's AMI is not the one that its release describes, or is not there.
_BROKEN = (_GONE, "no release describes it", "a move was interrupted")


def _channel(row: ChannelRow, past: Sequence[Release]) -> ChannelInRegion:
    """Return a channel in a region; what is not whole there is not verified."""
    verified = row.verified and row.drift not in _BROKEN
    why = row.drift or f"its tag {VERIFIED} does not say that it is"
    held = next((move for move in past if row.ami_id in move.images.values()), None)
    return ChannelInRegion(
        channel=row.channel,
        region=row.region,
        ami_id=row.ami_id,
        ami_name=held.ami_name if held else None,
        trust="gone" if row.drift == _GONE else "verified" if verified else "not verified",
        why_not="" if verified else why,
        since=row.since,
        drift=row.drift,
        parameter=channels.image_parameter(row.line, row.channel),
    )


def _moves(past: Mapping[str, Sequence[Release]]) -> Iterator[ChannelMove]:
    every = [(move.moved.at, channel, move) for channel, each in past.items() for move in each]
    # What a channel held in one second stays in its own order.
    for at, channel, release in sorted(every, key=lambda each: each[0], reverse=True):
        moved = release.moved
        yield ChannelMove(
            channel, at, moved.by, moved.action, release.ami_name, release.run_id, moved.why
        )


def changes_between(before: Record | None, after: Record | None) -> list[Change] | None:
    """Return what differs between two records' images; None where one has no version-info."""
    if not (before and after and before.versions and after.versions):
        return None
    return compare_records(before.versions, after.versions)


def line_about(
    line: str, recipe: Recipe | None, releases: Mapping[str, Release], **filled: Any
) -> CatalogdLine:
    """Return a line as in the matrix, otherwise as in its last release; `filled` is the rest."""
    distro, stack, flavor, arch = line.split("/")
    newest = next(iter(releases.values()), None)
    driver = recipe.driver if recipe else newest.installed.driver if newest else None
    branch = facts.branch(driver)
    ends = branch.end_of_life if branch else None
    return CatalogdLine(
        line=line,
        page=f"lines/{line.replace('/', '-')}.html",
        in_matrix=recipe is not None,
        recipe=recipe.name if recipe else newest.recipe if newest else "",
        distro=distro,
        distro_name=recipe.distro.name if recipe else distro,
        stack=stack,
        flavor=flavor,
        arch=arch,
        driver=driver,
        kernel_module=recipe.kernel_module if recipe else None,
        cuda=recipe.cuda if recipe else newest.installed.cuda if newest else None,
        driver_ends=ends.isoformat() if ends else None,
        **filled,
    )


def served_types(
    recipes: Sequence[Recipe], lines: Sequence[str], types: Sequence[InstanceType]
) -> tuple[ServedType, ...]:
    """Return an entry for each of the types that a recipe serves; `lines` gives the indices."""
    index = {recipe.name: lines.index(recipe.channel_line) for recipe in recipes}
    rows = judged_rows(recipes)
    answers = [(kind.type, rows_on(kind, rows)) for kind in types]
    return tuple(
        ServedType(
            name,
            answer["gpus"],
            tuple((index[entry["row"]], len(entry["warnings"])) for entry in answer["serves"]),
        )
        for name, answer in answers
        if answer["serves"]
    )
