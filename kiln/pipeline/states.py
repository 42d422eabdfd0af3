"""The state of a bake before a component, kept as an AMI: `build --from` starts there.

Only where AMIs cost nothing, which is in the lab. A state is found by a digest of all that went
into it, so an AMI that is baked from it has the same inputs as one that is baked in one go.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from kiln.base import vocabulary
from kiln.base.errors import KilnError, nearest, operation_failed
from kiln.base.overlay import provisioner_file
from kiln.base.paths import TEMPLATES
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.base.stopping import Stop
from kiln.base.tags import RECIPE, STATE, STATE_USED
from kiln.base.times import now, read_time, utc_now
from kiln.cloud import aws, runs, watch
from kiln.cloud.access import make_access
from kiln.cloud.removal import Resource, delete_resource
from kiln.cloud.target import Target
from kiln.facts import lock_file
from kiln.packer import render, settings, template_values, uploads
from kiln.packer.part import Part
from kiln.packer.program import Packer
from kiln.pipeline import bake, kept_instance
from kiln.pipeline.failure import ProvisionerError
from kiln.pipeline.plan import Plan
from kiln.pipeline.record import Record
from kiln.pipeline.record_draft import Draft, cleaned_up

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef

# A state holds what its bake has installed, some hundred megabytes.
_MOST = 6
_OLDEST = timedelta(days=7)
# A bake that has chosen a state launches an instance of it within this time, on a busy machine too.
_IN_USE = timedelta(hours=1)
# A path of an upload, as a script names it. /etc/… is on the machine.
_WORD = re.compile(r"(?<![\w./])[\w.-]+(?:/[\w.@-]+)+")
# The beginning of one whose rest is in a variable.
_BEGINNING = re.compile(r"(?<![\w./])((?:[\w.@-]+/)+)[\w.@-]*\$")


@dataclass(frozen=True)
class BakeState:
    """An AMI that holds what the components before `start` have made."""

    start: str
    ami_id: str


def require_component(recipe: Recipe, name: str) -> None:
    """Raises KilnError (exit status 2) unless the recipe has a component of that name."""
    if name not in recipe.components:
        near = nearest(name, recipe.components)
        raise KilnError(
            f"--from {vocabulary.shown(name)}: {recipe.name} has no such component; it has, in "
            f"this order: {', '.join(recipe.components)}",
            hint=f"did you mean {near}?" if near else "",
        )


def state_before(
    plan: Plan, name: str, packer: Packer, first: Record, progress: Progress, stop: Stop
) -> BakeState | None:
    """The state before a component: kept, or baked now from the latest one that is; None before the
    first component. `first` is the record that a failed bake of it leaves.

    Raises what `bake.bake` raises.
    """
    order = plan.recipe.components
    if name == order[0]:
        return None
    there = kept_states(plan.target)
    wanted = digest_before(plan, name)
    if wanted in there:
        _use(plan.target, there[wanted])
        progress.say(f"from {name}: what the components before it made is kept ({there[wanted]})")
        return BakeState(name, there[wanted])
    begin = latest_state(plan, order[1 : order.index(name)], there) or BakeState(order[0], "")
    if begin.ami_id:
        _use(plan.target, begin.ami_id)
    since = f"as before {begin.start} it is kept" if begin.ami_id else "nothing fitting is kept"
    progress.say(f"from {name}: the state before it is baked first ({since})")
    made = _make(plan, begin, BakeState(name, wanted), packer, first, progress, stop)
    remove_old_states(plan.target, progress)
    return made


def latest_state(plan: Plan, names: Sequence[str], there: Mapping[str, str]) -> BakeState | None:
    """The latest of the states before these components that is kept; each digest takes its time."""
    for each in reversed(names if there else ()):
        key = digest_before(plan, each)
        if key in there:
            return BakeState(each, there[key])
    return None


def _make(
    plan: Plan,
    begin: BakeState,
    wanted: BakeState,
    packer: Packer,
    first: Record,
    progress: Progress,
    stop: Stop,
) -> BakeState:
    """Bake from a state to another one, whose `ami_id` is still its digest; a run of its own."""
    recipe, target = plan.recipe, plan.target
    order = recipe.components
    components = order[order.index(begin.start) : order.index(wanted.start)]
    with runs.started(recipe.name, target) as run, watch.watching(run.id, target, stop):
        record = replace(first, run_id=run.id, folder=str(run.folder))
        draft = Draft(record, run, target, progress, stop)

        def keeps(error: ProvisionerError) -> bool:
            return plan.options.keep_instance and kept_instance.keep(plan, draft, error)

        with cleaned_up(draft, half_made=True, keeps=keeps):
            access = make_access(run, target, plan.account)
            with progress.stage(f"state before {wanted.start}") as stage:
                baked = bake.bake(
                    plan,
                    packer,
                    draft,
                    access,
                    stage,
                    stop,
                    Part(components, again=bool(begin.ami_id)),
                    begin.ami_id,
                    f"kiln-state-{wanted.ami_id[:16]}-{run.id}",
                )
                stage.note = baked.ami_id
            # Which of the two it was baked from is not known, and the state would be kept as that
            # of the files before.
            if digest_before(plan, wanted.start) != wanted.ami_id:
                raise operation_failed(
                    f"a file of the state before {wanted.start} changed while it was baked",
                    hint="the state is not kept; run the command again",
                )
            with aws.explained(f"{baked.ami_id} could not be tagged"):
                marks = {STATE: wanted.ami_id, RECIPE: "none"}  # not an AMI of the row
                aws.ec2(target).create_tags(
                    Resources=[baked.ami_id],
                    Tags=[{"Key": key, "Value": value} for key, value in marks.items()],
                )
    return BakeState(wanted.start, baked.ami_id)


def digest_before(plan: Plan, name: str) -> str:
    """SHA-256 (hex) over all that goes into the state before a component: the parent AMI, what the
    components before it are given and run, and the uploads that only later ones name left out."""
    recipe = plan.recipe
    before = recipe.components[: recipe.components.index(name)]
    after = recipe.components[len(before) :]
    parts = template_values.recipe_values(recipe, before)["components"]
    urls = {url for part in parts.values() for url in part.get("downloads", {}).values()}
    locked = lock_file.locked_hashes()
    inputs = {
        "parent": plan.source.ami_id,
        "snapshot": recipe.package_snapshot,
        "distro": asdict(recipe.distro),
        "arch": recipe.arch,
        "before": before,
        "components": parts,
        "hashes": {url: locked[url] for url in sorted(urls) if url in locked},
        "vendors": plan.target.vendors,
        "served": plan.target.serves(recipe),
        "settings": {
            key: settings.of_account(plan.account)[key] for key in ("proxy", "no_proxy", "mirrors")
        },
        "files": _digests(recipe, before, after),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()


def _digests(recipe: Recipe, before: Sequence[str], after: Sequence[str]) -> dict[str, str]:
    """Path → SHA-256 of each file that a state depends on."""
    later = {uploads.script_path(name, apart=False) for name in after}
    contents = {
        path: file.read_bytes()
        for path, file in uploads.uploaded_files(recipe).items()
        if path not in later
    }
    contents |= {path: text.encode() for path, text in render.render_files(recipe).items()}
    contents.pop(render.RECIPE)  # its parts are in the digest
    contents["build.pkr.hcl"] = (TEMPLATES / "packer" / "build.pkr.hcl.j2").read_bytes()
    earlier, later_ones = _Named.by(before), _Named.by(after)
    return {
        path: hashlib.sha256(content).hexdigest()
        for path, content in contents.items()
        if not _only_later(path, earlier, later_ones)
    }


@dataclass(frozen=True)
class _Named:
    """The paths that scripts name, whole and as beginnings whose rest is in a variable."""

    whole: frozenset[str]
    beginnings: tuple[str, ...]

    @staticmethod
    def by(components: Iterable[str]) -> _Named:
        text = "\n".join(provisioner_file(name).read_text() for name in components)
        return _Named(frozenset(_WORD.findall(text)), tuple(_BEGINNING.findall(text)))


def _only_later(path: str, earlier: _Named, later: _Named) -> bool:
    """Whether an upload is named, itself or by a folder, by scripts that have not run yet alone.

    What no script names by its whole path counts as read by any.
    """
    top, _, below = path.partition("/")
    if top not in ("runtime", "files"):
        return False
    ways = {below, *(str(parent) for parent in PurePosixPath(below).parents)}
    read_before = ways & earlier.whole or below.startswith(earlier.beginnings)
    return bool(ways & later.whole) and not read_before


def _use(target: Target, ami_id: str) -> None:
    """Note that a bake begins on a state now, so that no other one removes it meanwhile."""
    with aws.explained(f"{ami_id} could not be tagged"):
        aws.ec2(target).create_tags(Resources=[ami_id], Tags=[{"Key": STATE_USED, "Value": now()}])


def kept_states(target: Target) -> dict[str, str]:
    """Digest → AMI of the states that are kept and not too old."""
    return {
        image["state"]: image["id"]
        for image in _images(target)
        if image["created"] > utc_now() - _OLDEST
    }


def _images(target: Target) -> list[dict[str, Any]]:
    """The states at a target, the one that was used longest ago first."""
    with aws.explained("the kept states could not be listed"):
        filters: list[FilterTypeDef] = [{"Name": "tag-key", "Values": [STATE]}]
        images = aws.ec2(target).describe_images(Owners=["self"], Filters=filters)["Images"]
    states = []
    for image in images:
        tags = {tag["Key"]: tag["Value"] for tag in image.get("Tags", [])}
        if image.get("State") == "available" and STATE in tags:
            made = read_time(str(image["CreationDate"]))
            devices = image.get("BlockDeviceMappings", [])
            snapshots = [device["Ebs"]["SnapshotId"] for device in devices if "Ebs" in device]
            used = _used(tags) or made
            state = {"id": image["ImageId"], "state": tags[STATE], "created": made, "used": used}
            states.append({**state, "snapshots": snapshots})
    return sorted(states, key=lambda image: image["used"])


def _used(tags: Mapping[str, str]) -> datetime | None:
    """When a bake last began on a state; None if its tags do not say it."""
    with suppress(KeyError, ValueError):
        return read_time(tags[STATE_USED])
    return None


def remove_old_states(target: Target, progress: Progress) -> None:
    """Remove the states that are too old, or more than are kept, and in use by no bake."""
    images = _images(target)
    oldest, idle_since = utc_now() - _OLDEST, utc_now() - _IN_USE
    gone = [
        image
        for number, image in enumerate(reversed(images))
        if (number >= _MOST or image["created"] < oldest) and image["used"] < idle_since
    ]
    for image in gone:
        with suppress(KilnError), aws.explained(f"{image['id']} could not be removed"):
            delete_resource(aws.ec2(target), Resource("AMI", image["id"]))
            for snapshot in image["snapshots"]:
                delete_resource(aws.ec2(target), Resource("snapshot", snapshot))
            progress.say(f"removed the state {image['id']}: {_MOST} are kept, for a week at most")
