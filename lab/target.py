"""The lab as a target of builds: how Packer and boto3 reach it.

Only a variable file and the environment differ from a build in AWS; the HCL and the provisioners
are the same.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kiln.base import needs
from kiln.base.errors import KilnError, did_you_mean, operation_failed
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.cloud import aws
from kiln.cloud.target import DEFAULT_REGION, Hooks, OwnKernel, ParentAmi, Target
from lab.api import session_token
from lab.base import origin
from lab.base.settings import Lab, current
from lab.base.shell import CommandError, run
from lab.daemon import cell, control, users
from lab.machine import images
from lab.machine.own_kernel import TAG, accelerator, disk
from lab.moto import public_images
from lab.rootfs import bases, distros, emulation
from lab.vendors import mirror, recipe_cache
from lab.vendors.kinds import REAL, STAND_INS, refuse_impossible, refuse_silent
from lab.vendors.packages import system

_NEEDS_GIB = 4
_STARTING = ("build", "rebuild", "verify", "nightly")
_NOT_STARTING = {"--dry-run", "--host", "--instance"}


def endpoint() -> str:
    """The URL at which the lab of the environment answers."""
    return current().endpoint


def target(why: str, vendors: str | None) -> LabTarget:
    """The lab of the environment, for kiln/cli/targets.py.

    Tasks that start a lab go on in its cell, and others if there is one.
    """
    task, *words = [*sys.argv[1:], ""]
    cell.enter(start=task in _STARTING and not _NOT_STARTING.intersection(words))
    return LabTarget(why, endpoint=endpoint(), vendors=vendors or STAND_INS)


def is_guest(ssh: Callable[[str], tuple[int, str, str]]) -> bool:
    """Return True if what `ssh` runs commands on (exit status, output, errors) is a guest of a
    lab."""
    return ssh("test -e /usr/lib/kiln-lab")[0] == 0


@dataclass(frozen=True)
class LabTarget(Target):
    """The lab on this machine."""

    endpoint: str = ""
    vendors: str = STAND_INS

    kind = "lab"
    bills = False
    # The lab answers at once and has no rate limit.
    poll_seconds = wait_seconds = 0.05

    def __str__(self) -> str:
        real = "; guests talk to the real vendors" if self.vendors == REAL else ""
        return f"target: lab on this machine ({self.why}){real}; nothing is created in AWS"

    def record_fields(self, arch: str) -> dict[str, Any]:
        """The fields of a record that say where its run is, for AMIs of this arch."""
        real = ", baked from the vendors' real hosts" if self.vendors == REAL else ""
        return {
            **super().record_fields(arch),
            "vendors": self.vendors,
            "image_note": f"a lab AMI, which exists only on this machine{real}",
            "emulated": emulation.by(arch),
        }

    @property
    def place(self) -> str:
        """The endpoint, which identifies a lab."""
        return self.endpoint

    @property
    def where(self) -> str:
        """The endpoint in words."""
        return f"the lab at {self.endpoint}"

    @property
    def own_cidr(self) -> str:
        """The address of the bridge that all guests are on."""
        return f"{current().gateway}/32"

    @property
    def hooks(self) -> LabHooks:
        """The calls of the pipeline around builds."""
        return LabHooks(self)

    def client_settings(self) -> Mapping[str, str]:
        """Endpoint and keys of the lab."""
        return {
            "endpoint_url": self.endpoint,
            "aws_access_key_id": session_token.KEY_ID,
            "aws_secret_access_key": session_token.SECRET_KEY,
            "aws_session_token": session_token.require(current()),
        }

    def in_region(self, region: str) -> LabTarget:
        """The same lab in another region, which must be one that boto3 knows."""
        if region != DEFAULT_REGION and region not in aws.regions():
            raise KilnError(
                f"the lab has no region {region}", hint=did_you_mean(region, aws.regions())
            )
        return replace(self, region=region)

    def identified(self) -> LabTarget:
        """The target itself: the endpoint identifies a lab."""
        return self


@dataclass(frozen=True)
class LabHooks(Hooks):
    """Starts and prepares the lab, and explains its failures."""

    target: LabTarget

    def in_use(self, run_id: str, what: str) -> AbstractContextManager[None]:
        """While inside, `lab.down` refuses, and the lab is not started anew for other code."""
        return users.using(current(), run_id, what)

    @contextmanager
    def prepared(
        self,
        what: str,
        recipes: Sequence[Recipe],
        progress: Progress,
        *,
        own_kernel: OwnKernel | None = None,
        ami_id: str | None = None,
    ) -> Iterator[list[Recipe]]:
        """Start the lab, make root filesystems and the vendors' files; while inside, `lab.down`
        refuses. Recipes that run here natively come before those whose processor has to be
        emulated."""
        for recipe in recipes if own_kernel else ():
            _require_own_kernel(recipe)
        slow = [recipe for recipe in recipes if emulation.needed(recipe.arch)]
        native = [recipe for recipe in recipes if recipe not in slow]
        archs: set[str] = {recipe.arch for recipe in slow}
        if ami_id and (image := _own_image(ami_id)) and emulation.needed(image.architecture):
            archs.add(image.architecture)
        for arch in sorted({recipe.arch for recipe in slow}):
            how = f"{arch} by {emulation.by(arch)}"
            progress.say(f"emulated: {how}, many times slower than the rest of the lab")
        if slow and native:
            arch = native[0].arch
            progress.say(f"{len(slow)} rows, after the others; --arch {arch} leaves them out")
        real = ("lab_import", "preflight") if self.target.vendors == REAL else ()
        groups = ("lab", *real, *(f"emulate_{arch}" for arch in sorted(archs)))
        groups += ("own_kernel",) if own_kernel else ()
        needs.ensure(*groups, install=False, say=progress.say)  # this is not root: `cell.enter` did
        with users.preparing(current(), what):
            with progress.stage("lab"):
                self._prepare(recipes, progress.say)
            yield [*native, *slow]

    def _prepare(self, recipes: Sequence[Recipe], say: Callable[[str], None]) -> None:
        """Making a root filesystem mostly uses one core, so the lab is started and the vendors'
        files are made in parallel."""
        system.overlay_stand_ins()  # a mistake in them is known before anything starts
        _require_disk(current().root)
        if self.target.vendors == REAL:
            # Slow to import: it asks vendors.
            from lab.rootfs import real_bases

            refuse_impossible(recipes)
            refuse_silent(recipes)
            for recipe in recipes:
                real_bases.ensure(recipe, say)
            running = control.up(kind_of_vendors=REAL)
        else:
            for recipe in recipes:
                distros.spec(recipe.distro.id)
                _require_snapshot(recipe)
            with ThreadPoolExecutor(2) as pool:
                lab = pool.submit(control.up, kind_of_vendors=STAND_INS)
                vendors = pool.submit(_make_vendor_files, recipes)
                for recipe in recipes:
                    bases.ensure(recipe.distro.id, recipe.arch, progress=say)
                running = lab.result()
                vendors.result()
        if difference := origin.difference(running):
            say(f"the lab runs and is in use; {difference} (./invoke lab.down ends it)")

    def gone(self) -> KilnError | None:
        """A lab that was taken down or has died keeps none of its instances."""
        if control.is_running(current()):
            return None
        ended = control.exit_reason(current())
        return operation_failed(
            f"the lab at {self.target.endpoint} is down: {ended}", hint="./invoke lab.up starts it"
        )

    def parent(self, recipe: Recipe) -> ParentAmi | None:
        """While the lab is down, its stand-in, so that a plan starts nothing."""
        if control.status():
            return None
        image = public_images.parent(recipe)
        return ParentAmi(image.id, image.name, image.created, str(recipe.source_ami))

    def missing(self, ami_ids: Collection[str]) -> set[str]:
        """Return those of the AMIs that no lab has."""
        root = current().root
        return {name for name in ami_ids if not [*root.glob(f"lab*/images/{name}/image.json")]}

    @contextmanager
    def own_kernel(
        self, ami_id: str, recipe: Recipe, wanted: OwnKernel
    ) -> Iterator[tuple[dict[str, str], str]]:
        """Make the AMI's disk, and remove or keep it at the end."""
        _require_own_kernel(recipe)
        lab = current()
        _require_disk(lab.root)
        image = _own_image(ami_id)
        if image is None:
            raise operation_failed(f"{ami_id} was not made in this lab")
        made = disk.make(lab, image, distros.on_own_kernel())
        try:
            yield {TAG: "qemu"}, f"qemu ({accelerator.name()})"
            if wanted.keep:
                _keep(made, wanted.keep)
        finally:
            disk.remove(lab, ami_id)

    def packer_inputs(self, folder: Path, recipe: Recipe) -> tuple[list[Path], dict[str, str]]:
        """lab.pkrvars.json, and the lab's credentials instead of the user's."""
        path = folder / "lab.pkrvars.json"
        path.write_text(json.dumps(self.variables(recipe), indent=2) + "\n")
        environment = {**control.without_aws(), **control.environment(current())}
        return [path], environment

    def variables(self, recipe: Recipe) -> dict[str, object]:
        """The HCL variables of a bake in this lab."""
        if self.target.vendors == REAL:
            return _lab_variables(self.target.endpoint)
        hashes = recipe_cache.hashes(recipe)
        if _other_than_running():
            hashes |= control.served_hashes(list(hashes))
        return {**_row_variables(self.target.endpoint), "sha256": hashes}

    def about_failure(self, missing: Sequence[str], recipe: Recipe) -> tuple[str, ...]:
        """Return hints: the lab or the distribution lacks a package; this lab may not have the
        row's files."""
        if self.target.vendors == REAL:
            return ()
        hints = [system.about_missing(missing, recipe.distro, recipe.arch)] if missing else []
        if other := _other_than_running():
            hints.append(
                f"the lab may not have what the row needs: {other}; ./invoke lab.down ends it (its "
                "AMIs stay), then build again"
            )
        return tuple(hints)


def _require_disk(folder: Path) -> None:
    """Require that a lab build's space is free on the disk of `folder`."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    if free < _NEEDS_GIB:
        raise operation_failed(
            f"the disk is full: {free:.1f} GiB are free at {folder}, a build needs {_NEEDS_GIB}",
            hint="free some space (`./invoke lab.clean` deletes the lab's AMIs), or point "
            "KILN_LAB_STATE at another disk",
        )


def _other_than_running() -> str:
    """Return how the lab that runs differs from what this checkout would start; empty if it does
    not."""
    running = control.status()
    return origin.difference(running) if running else ""


def _own_image(ami_id: str) -> images.Image | None:
    """An AMI that was made in this lab."""
    return next((image for image in images.load(current()) if image.id == ami_id), None)


def _require_own_kernel(recipe: Recipe) -> None:
    """Refuse AMIs whose kernel or kernel modules are not the vendors' own."""
    if why := _no_own_kernel(recipe):
        raise KilnError(
            f"{recipe.name} cannot boot its own kernel: {why}",
            hint="docs/verify.md#an-ami-on-its-own-kernel names the rows that can",
        )


def _no_own_kernel(recipe: Recipe) -> str:
    """Return why an AMI of this recipe cannot boot its own kernel; empty if it can."""
    spec = distros.spec(recipe.distro.id)
    if spec["stand_in"]:
        return f"in the lab the kernel of {spec['name']} is a stand-in and not a program"
    if recipe.arch != "x86_64" or emulation.needed(recipe.arch):
        return f"{recipe.arch}: only an x86_64 machine starts one, for x86_64 images"
    if recipe.driver_source != "distro":
        return (
            "in the lab NVIDIA's kernel module is a stand-in; only the distribution's driver "
            "(driver_source: distro) is real"
        )
    return ""


def _keep(disk_image: Path, target: Path) -> None:
    """Move a disk, as sparse as it is, to where the user wants it."""
    try:
        disk_image.rename(target)
    except OSError:  # another file system
        try:
            run("cp", "--sparse=always", str(disk_image), str(target))
        except CommandError as error:
            target.unlink(missing_ok=True)
            raise operation_failed(f"{target} cannot be written: {error}") from None


def by_hand(lab: Lab) -> Path:
    """Write the variables with which `packer build` of a rendered folder works here; their file.

    A lab's files are not the vendors', so there are no hashes; signatures are checked.
    """
    path = lab.state / "by-hand.pkrvars.json"
    variables = {
        **_row_variables(lab.endpoint),
        "ssh_source_cidrs": [f"{lab.gateway}/32"],
        "sha256": {},
    }
    path.write_text(json.dumps(variables, indent=2) + "\n")
    return path


def _row_variables(endpoint: str) -> dict[str, object]:
    return {**_lab_variables(endpoint), "signing_keys": mirror.key_fingerprints()}


def _lab_variables(endpoint: str) -> dict[str, object]:
    return {
        "custom_endpoint_ec2": endpoint,
        "skip_metadata_api_check": True,
        "skip_region_validation": True,
        "skip_credential_validation": True,
        "poll_seconds": 1,
        # A guest has rebooted by then; if not, Packer tries again every two seconds.
        "reboot_pause": "2s",
    }


def _require_snapshot(recipe: Recipe) -> None:
    """Refuse a row whose snapshot the lab has no recorded state of: another state in its place
    would be a rehearsal of something else."""
    snapshot = recipe.package_snapshot
    states = system.releases(recipe.distro.id)
    if snapshot is None or snapshot in states:
        return
    having = f"it has, of {recipe.distro.id}: {', '.join(states)}" if states else ""
    raise KilnError(
        f"{recipe.name}: the lab has no state {snapshot} of the packages of {recipe.distro.id}",
        hint="; ".join(filter(None, [having, "docs/lab-stand-ins.md says what it stands in for"]))
        + "; build the row in AWS, or without package_snapshot in the lab",
    )


def _make_vendor_files(recipes: Sequence[Recipe]) -> None:
    """Make the missing downloads and package repositories of these recipes."""
    for recipe in recipes:
        recipe_cache.hashes(recipe)
