"""Channels, AMI tags, statements and records → the catalogue."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from kiln import facts
from kiln.base import vocabulary
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.base.tags import VERIFIED
from kiln.base.times import now
from kiln.base.verdict_tag import says_verified
from kiln.catalogue.fleet_xids import groups_of_events, xids_by_ami
from kiln.catalogue.model import (
    Catalogue,
    CataloguedImage,
    CataloguedLine,
    ChannelInRegion,
    ChannelMove,
    CheckCounts,
    Gathered,
    SeenXid,
    Signed,
    Trust,
)
from kiln.catalogue.serving_lines import served_types
from kiln.cloud.images import Image, own_images
from kiln.cloud.target import Target
from kiln.image import diff
from kiln.matrix.publishing import Publish
from kiln.pipeline import kept_records
from kiln.pipeline.record import Record
from kiln.publish import channels, provenance
from kiln.publish.channels import Release
from kiln.publish.lines import ChannelRow, channel_rows

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

Say = Callable[[str], None]
_NEWEST_CHECKED = 3


def gather_catalogue(
    target: Target,
    recipes: Sequence[Recipe],
    settings: Mapping[str, Publish],
    regions: Sequence[str],
    say: Say,
    *,
    types: Sequence[str] | None = None,
) -> Gathered:
    """What the channels of the target's account hold and have held, with the records that are here.

    `settings` are the lines' own; `types` the instance types that can be chosen, by default all
    that are offered. `say` gets what cannot be shown, such as a statement that nobody may read.
    Raises KilnError (exit status 1) if AWS does not answer.
    """
    rows = channel_rows(target, regions, settings)
    mine = {image.ami_id: image for image in own_images(target)}
    past = {
        line: {
            channel: list(channels.past(target, line, channel))
            for channel in dict.fromkeys(row.channel for row in rows if row.line == line)
        }
        for line in dict.fromkeys(row.line for row in rows)
    }
    by_line = {recipe.channel_line: recipe for recipe in recipes}
    keys = _keys(settings, target, say)
    seen = None
    if past:
        seen = xids_by_ami(target, groups_of_events(recipes), [target.region, *regions], say)
    by_run: dict[str, Record] = {}
    lines = []
    for line in dict.fromkeys([*by_line, *past]):
        releases = _releases(past.get(line, {}))
        records = {
            key: release
            for key, release in ((k, _record(r)) for k, r in releases.items())
            if release
        }
        by_run |= records
        here = [row for row in rows if row.line == line]
        keys_to_check = _to_check(releases, {row.ami_id for row in here})
        images = [
            _image(
                key,
                release,
                mine,
                records.get(key),
                target,
                keys.get(line),
                key in keys_to_check,
                say,
            )
            for key, release in releases.items()
        ]
        lines.append(
            replace(
                line_about(line, by_line.get(line), releases),
                channels=tuple(_channel(row, past[line][row.channel]) for row in here),
                history=tuple(_moves(past.get(line, {}))),
                images=tuple(_with_xids(_with_changes(images, records), seen)),
            )
        )
    # What can be had stands before what the matrix only promises.
    lines.sort(key=lambda line: not line.channels)
    return Gathered(
        Catalogue(
            made=now(),
            place=target.where,
            target=target.kind,
            region=target.region,
            regions=tuple(dict.fromkeys([target.region, *regions])),
            lines=tuple(lines),
            types=served_types(list(by_line.values()), [line.line for line in lines], types),
        ),
        by_run,
    )


def image_key(release: Release) -> str:
    """The name of an image's files: its run's id, otherwise a hash of what it is called."""
    if vocabulary.RUN_ID.fits(release.run_id):
        return release.run_id
    return hashlib.sha256(release.ami_name.encode()).hexdigest()[:16]


def _releases(past: Mapping[str, Sequence[Release]]) -> dict[str, Release]:
    """Each image that a line's channels have held, newest first."""
    every = sorted(
        (move for each in past.values() for move in each), key=lambda entry: entry.moved.at
    )
    newest_word = {image_key(release): release for release in every}
    return dict(
        sorted(newest_word.items(), key=lambda pair: (pair[1].built, pair[0]), reverse=True)
    )


def _to_check(releases: Mapping[str, Release], held: Set[str]) -> set[str]:
    """The images whose statements are checked, which takes three requests each: those that a
    channel holds, and the newest."""
    newest = list(releases)[:_NEWEST_CHECKED]
    return {
        *newest,
        *(key for key, release in releases.items() if held & {*release.images.values()}),
    }


def _record(release: Release) -> Record | None:
    """The record that judged the image last, otherwise that of its build; None if none is here."""
    if not vocabulary.RECIPE_NAME.fits(release.recipe):
        return None
    every = kept_records.all_of(release.recipe)
    ids = set(release.images.values())
    judged = (
        record
        for record in every
        if record.ami_id in ids and not record.says_nothing and record.checks
    )
    built = (record for record in every if record.run_id == release.run_id)
    return next(judged, next(built, None))


def _trust(image: Image | None) -> tuple[Trust, str]:
    """Whether an AMI is verified: by its own tag, and it can be launched."""
    if image is None:
        return "gone", "the AMI is not there any more"
    if image.state != "available":
        return "gone", f"the AMI is {image.state}"
    verdict = image.tags.get(VERIFIED, "")
    if says_verified(verdict):
        return "verified", ""
    return (
        "not verified",
        f"its tag {VERIFIED} says {verdict!r}" if verdict else "nothing verified it",
    )


def _channel(row: ChannelRow, past: Sequence[Release]) -> ChannelInRegion:
    """A channel in a region; what is not whole there is not verified."""
    trust: Trust = "verified" if row.verified and not _broken(row) else "not verified"
    why = "" if trust == "verified" else row.drift or f"its tag {VERIFIED} does not say that it is"
    if row.drift == "the image is not available here":
        trust = "gone"
    held = next((move for move in past if row.ami_id in move.images.values()), None)
    return ChannelInRegion(
        channel=row.channel,
        region=row.region,
        ami_id=row.ami_id,
        ami_name=held.ami_name if held else None,
        trust=trust,
        why_not=why,
        since=row.since,
        drift=row.drift,
        parameter=channels.image_parameter(row.line, row.channel),
    )


def _broken(row: ChannelRow) -> bool:
    """Whether the region's AMI is not the one that its release describes, or is not there."""
    return row.drift in (
        "the image is not available here",
        "no release describes it",
        "a move was interrupted",
    )


def _moves(past: Mapping[str, Sequence[Release]]) -> Iterator[ChannelMove]:
    every = [(move.moved.at, channel, move) for channel, each in past.items() for move in each]
    # What a channel held in one second stays in its own order.
    for at, channel, release in sorted(every, key=lambda each: each[0], reverse=True):
        moved = release.moved
        yield ChannelMove(
            channel, at, moved.by, moved.action, release.ami_name, image_key(release), moved.why
        )


def _image(
    key: str,
    release: Release,
    mine: Mapping[str, Image],
    record: Record | None,
    target: Target,
    signer: SSlibKey | None,
    check: bool,
    say: Say,
) -> CataloguedImage:
    ami_id = release.images.get(target.region)
    trust, why = _trust(mine.get(ami_id or ""))
    signed: Signed = "unknown"
    signed_why = "of images that no channel holds only the newest are checked"
    if check or signer is None:
        signed, signed_why = _signed(target, ami_id, trust, signer, say)
    checks = record.checks if record else None
    return CataloguedImage(
        key=key,
        ami_name=release.ami_name,
        images=release.images,
        built=release.built,
        trust=trust,
        why_not=why,
        signed=signed,
        signed_why=signed_why,
        installed=asdict(release.installed),
        recipe=release.recipe,
        recipe_digest=release.recipe_digest,
        git_commit=release.git_commit,
        checks=CheckCounts(
            checks.passed, checks.failed, checks.skipped, record.verify_instance_type
        )
        if checks and record
        else None,
        packages=len(record.versions.get("packages") or ()) if record and record.versions else None,
        record=f"images/{key}.record.json" if record else None,
        sbom=f"images/{key}.sbom.json" if record and record.versions else None,
    )


def _keys(settings: Mapping[str, Publish], target: Target, say: Say) -> dict[str, SSlibKey]:
    """The key that must have signed each line's statements, where the matrix names one."""
    by_id = {}
    for line, chosen in settings.items():
        if chosen.sign is None:
            continue
        try:
            by_id[line] = provenance.public_key(chosen.sign, target)
        except KilnError as error:
            say(f"{line}: its statements are not checked: {error}")
    return by_id


def _signed(
    target: Target, ami_id: str | None, trust: Trust, signer: SSlibKey | None, say: Say
) -> tuple[Signed, str]:
    if signer is None:
        return "unsigned", "the matrix names no key for this line"
    if ami_id is None or trust == "gone":
        return "unknown", "the AMI is not there any more"
    try:
        statement = provenance.verify_image(target, ami_id, signer)
    except KilnError as error:
        say(f"{ami_id}: its statement was not checked: {error}")
        return "unknown", "its statement could not be read"
    return ("does not match", "; ".join(statement.wrong)) if statement.wrong else ("matches", "")


def _with_changes(
    images: Sequence[CataloguedImage], records: Mapping[str, Record]
) -> Iterator[CataloguedImage]:
    """Each image with the one built before it and the count of what differs."""
    for at, image in enumerate(images):
        before = images[at + 1].key if at + 1 < len(images) else None
        counts = None
        changes = changes_between(records.get(before or ""), records.get(image.key))
        if changes is not None:
            counts = {
                severity: sum(change.severity == severity for change in changes)
                for severity in ("high", "medium", "low")
            }
        yield replace(image, before=before, changes=counts)


def _with_xids(
    images: Iterable[CataloguedImage], seen: Mapping[str, tuple[SeenXid, ...]] | None
) -> Iterator[CataloguedImage]:
    """Each image with the Xids of its AMIs in all regions."""
    for image in images:
        if seen is None:
            yield image
            continue
        codes: dict[int, SeenXid] = {}
        for entry in (entry for ami in set(image.images.values()) for entry in seen.get(ami, ())):
            other = codes.get(entry.xid, SeenXid(entry.xid, 0, 0, ""))
            codes[entry.xid] = SeenXid(
                entry.xid,
                entry.count + other.count,
                entry.instances + other.instances,
                max(entry.last, other.last),
            )
        ordered = sorted(codes.values(), key=lambda entry: (-entry.count, entry.xid))
        yield replace(image, xids=tuple(ordered))


def changes_between(before: Record | None, after: Record | None) -> list[diff.Change] | None:
    """What differs between two records' images, grave first; None where one tells too little."""
    if not (before and after and before.versions and after.versions):
        return None
    try:
        return diff.compare_records(before.versions, after.versions)
    except (KilnError, AttributeError, KeyError, TypeError, ValueError):
        return None


def line_about(line: str, recipe: Recipe | None, releases: Mapping[str, Release]) -> CataloguedLine:
    """A line without its channels: as the matrix has it, otherwise as its last release says."""
    distro, stack, flavor, arch = line.split("/")
    page = f"lines/{line.replace('/', '-')}.html"
    newest = next(iter(releases.values()), None)
    driver = recipe.driver if recipe else newest.installed.driver if newest else None
    branch = facts.branch(driver)
    ends = branch.end_of_life if branch else None
    return CataloguedLine(
        line=line,
        page=page,
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
    )
