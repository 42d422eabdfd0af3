"""The lab as a target of builds: how Packer and boto3 reach it.

Only a variable file and the environment differ from a build in AWS; the HCL and the provisioners
are the same. The protocol is `kiln/cloud/target.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kiln.base import needs
from kiln.base.errors import KilnError, did_you_mean, operation_failed
from kiln.base.recipe import Recipe
from kiln.cloud import aws
from kiln.cloud.target import (
    DEFAULT_REGION,
    OwnBoot,
    OwnKernel,
    PackageArchive,
    PackerInputs,
    ParentAmi,
)
from lab import control, host, mirror, origin, recipe_cache, users
from lab.access import session_token
from lab.amis import images, public_images
from lab.own_kernel import TAG, accelerator, disk
from lab.packages import system
from lab.rootfs import aptsources, bases, distros, emulation
from lab.settings import Lab, current
from lab.shell import CommandError, run
from lab.vendors import REAL, STAND_INS, refuse_impossible, refuse_silent

_NEEDS_GIB = 4
# Distribution and arch → the root filesystem that `prepare` has found or made.


def is_guest(ssh: Callable[[str], tuple[int, str, str]]) -> bool:
    """Whether what `ssh` runs commands on (exit status, output, errors) is a guest of a lab."""
    return ssh("test -e /usr/lib/kiln-lab")[0] == 0


@dataclass(frozen=True)
class LabTarget:
    """The lab on this machine. See `kiln.cloud.target.Target`.

    `other` is known after `prepare`: how a lab in use that was not started from this checkout as it
    is differs from it, in words.
    """

    why: str
    region: str = DEFAULT_REGION
    endpoint: str = ""
    vendors: str = STAND_INS
    other: str = ""

    kind = "lab"
    bills = False
    # The lab answers at once and has no rate limit.
    poll_seconds = wait_seconds = 0.05
    missing_parent_hint = (
        "the lab may have been started before the matrix changed: ./invoke lab.down"
    )
    preparation = "lab"

    def __str__(self) -> str:
        real = "; guests talk to the real vendors" if self.vendors == REAL else ""
        return f"target: lab on this machine ({self.why}){real}; nothing is created in AWS"

    @property
    def image_note(self) -> str:
        """See `Target`."""
        real = ", baked from the vendors' real hosts" if self.vendors == REAL else ""
        return f"an AMI of the lab on this machine{real}"

    @property
    def place(self) -> str:
        """See `Target`."""
        return self.endpoint

    @property
    def where(self) -> str:
        """See `Target`."""
        return f"the lab at {self.endpoint}"

    def client_settings(self) -> Mapping[str, str]:
        """See `Target`."""
        return {
            "endpoint_url": self.endpoint,
            "aws_access_key_id": session_token.KEY_ID,
            "aws_secret_access_key": session_token.SECRET_KEY,
            "aws_session_token": session_token.require(current()),
        }

    def check_region(self, name: str, called: str) -> None:
        """See `Target`: the lab has those that boto3 here knows."""
        if name != DEFAULT_REGION and name not in aws.regions():
            raise KilnError(
                f"{called} {name}: the lab has no region of that name",
                hint=did_you_mean(name, aws.regions()),
            )

    def in_region(self, region: str) -> LabTarget:
        """See `Target`."""
        return replace(self, region=region)

    def identified(self) -> LabTarget:
        """See `Target`: the endpoint identifies a lab."""
        return self

    def emulates(self, arch: str) -> str | None:
        """See `Target`."""
        return emulation.by(arch)

    def check_host(self) -> None:
        """See `Target`."""
        host.can_run()

    def host_packages(self, arches: Sequence[str]) -> tuple[str, ...]:
        """See `Target`."""
        emulated = sorted({arch for arch in arches if self.emulates(arch)})
        more = ("lab_import", "preflight") if self.vendors == REAL else ()
        return ("lab", *more, *(f"emulate_{arch}" for arch in emulated))

    def in_use(self, run_id: str, recipe: str) -> AbstractContextManager[None]:
        """See `Target`: `lab.down` refuses while a run is inside."""
        return users.using(current(), run_id, recipe)

    def preparing(self, what: Sequence[str]) -> AbstractContextManager[None]:
        """See `Target`: `lab.down` refuses from here on."""
        more = f" and {len(what) - 1} more" if len(what) > 1 else ""
        return users.preparing(current(), f"{what[0] if what else 'a run'}{more}")

    def gone(self) -> str:
        """See `Target`: a lab that was taken down or has died keeps none of its instances."""
        if control.is_running(current()):
            return ""
        return f"the lab at {self.endpoint} is down: {control.how_it_ended(current())}"

    def prepare(self, recipes: Sequence[Recipe], say: Callable[[str], None]) -> LabTarget:
        """See `Target`: starts the lab, makes root filesystems and the vendors' files.

        Making a root filesystem mostly uses one core, so the lab is started and the vendors'
        files are made in parallel.
        """
        system.overlay_stand_ins()  # a mistake in them is known before anything starts
        needs.free_disk(current().root, _NEEDS_GIB)
        if self.vendors == REAL:
            return replace(self, other=self._prepare_real(recipes, say))
        for recipe in recipes:
            distros.spec(recipe.distro.id)
            _require_snapshot(recipe)
        with ThreadPoolExecutor(2) as pool:
            lab = pool.submit(control.up, kind_of_vendors=STAND_INS)
            vendors = pool.submit(_make_vendor_files, recipes)
            for recipe in recipes:
                bases.ensure(recipe.distro.id, recipe.arch, progress=say)
            other = _other_than(lab.result(), say)
            vendors.result()
        return replace(self, other=other)

    def _prepare_real(self, recipes: Sequence[Recipe], say: Callable[[str], None]) -> str:
        # Slow to import: it asks vendors.
        from lab.rootfs import real_bases

        refuse_impossible(recipes)
        refuse_silent(recipes)
        for recipe in recipes:
            real_bases.ensure(recipe, say)
        return _other_than(control.up(kind_of_vendors=REAL), say)

    def parent_without_request(self, recipe: Recipe) -> ParentAmi | None:
        """See `Target`: while the lab is down, its stand-in, so that a plan starts nothing."""
        if control.status():
            return None
        image = public_images.parent(recipe)
        return ParentAmi(image.id, image.name, image.created, str(recipe.source_ami))

    def check_own_kernel(self, recipe: Mapping[str, Any]) -> None:
        """See `Target`: only where kernel and kernel modules are the vendors' own."""
        why = _no_own_kernel(recipe)
        if why:
            raise KilnError(
                f"{recipe.get('name', 'this AMI')} cannot boot its own kernel: {why}",
                hint="docs/own-kernel.md names the rows that can",
            )

    @contextmanager
    def own_kernel(self, ami_id: str, wanted: OwnKernel) -> Iterator[OwnBoot]:
        """See `Target`: makes the AMI's disk, and removes or keeps it at the end."""
        lab = current()
        needs.free_disk(lab.root, _NEEDS_GIB)
        image = next((image for image in images.load(lab) if image.id == ami_id), None)
        if image is None:
            raise operation_failed(f"{ami_id} was not made in this lab")
        made = disk.make(lab, image)
        try:
            yield OwnBoot({TAG: "qemu"}, f"qemu ({accelerator.name()})")
            if wanted.keep:
                _keep(made, wanted.keep)
        finally:
            disk.remove(lab, ami_id)

    def about_failure(self, missing: Sequence[str], recipe: Recipe) -> tuple[str, ...]:
        """See `Target`: is it the lab that lacks a package, or the distribution? And is it a lab
        that may not know what the row needs?"""
        if self.vendors == REAL:
            return ()
        hints = [system.about_missing(missing, recipe.distro, recipe.arch)] if missing else []
        if self.other:
            hints.append(
                f"the lab may not have what the row needs: {self.other}; ./invoke "
                "lab.down ends it (its AMIs stay), then build again"
            )
        return tuple(hints)

    def archive_of(self, recipe: Recipe) -> PackageArchive:
        """See `Target`: Amazon Linux's repositories are the lab's; packages of a Debian or Ubuntu
        guest are those of this machine's archive, whichever of the two it is."""
        if self.vendors == REAL:
            return PackageArchive(recipe.distro.id, recipe.arch)
        if recipe.distro.family == "al":
            return PackageArchive(recipe.distro.id, recipe.arch, mirror.reached(current().gateway))
        return PackageArchive(aptsources.distribution(), recipe.arch)

    def own_cidr(self, block: str | None = None) -> str:
        """See `Target`: all guests are on the bridge, and see this machine at its address."""
        return f"{current().gateway}/32"

    def packer_inputs(self, folder: Path, recipe: Recipe) -> PackerInputs:
        """See `Target`: lab.pkrvars.json, and the lab's credentials instead of the user's."""
        path = folder / "lab.pkrvars.json"
        path.write_text(json.dumps(self.variables(recipe), indent=2) + "\n")
        environment = {**control.without_aws(), **control.environment(current())}
        return PackerInputs((path,), environment)

    def variables(self, recipe: Recipe) -> dict[str, object]:
        if self.vendors == REAL:
            return _of_the_lab(self.endpoint)
        hashes = recipe_cache.hashes(recipe)
        if self.other:
            hashes |= control.served_hashes(list(hashes))
        return {**_of_all_rows(self.endpoint), "sha256": hashes}


def _no_own_kernel(recipe: Mapping[str, Any]) -> str:
    """Why an AMI of this recipe cannot boot its own kernel; empty if it can."""
    if not recipe:
        return "neither a record of its build nor a row of the matrix says what is on it"
    spec = distros.spec(recipe["distro"]["id"])
    if spec["stand_in"]:
        return f"in the lab the kernel of {spec['name']} is a stand-in and not a program"
    if recipe["arch"] != "x86_64" or emulation.needed(recipe["arch"]):
        return f"{recipe['arch']}: only an x86_64 machine starts one, for x86_64 images"
    if recipe["driver_source"] != "distro":
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
        **_of_all_rows(lab.endpoint),
        "ssh_source_cidrs": [f"{lab.gateway}/32"],
        "sha256": {},
    }
    path.write_text(json.dumps(variables, indent=2) + "\n")
    return path


def _of_all_rows(endpoint: str) -> dict[str, object]:
    return {**_of_the_lab(endpoint), "signing_keys": mirror.key_fingerprints()}


def _of_the_lab(endpoint: str) -> dict[str, object]:
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


def _other_than(running: dict[str, Any], say: Callable[[str], None]) -> str:
    """How the lab that runs differs from what this checkout would start; `say` gets it as well."""
    difference = origin.difference(running)
    if difference:
        say(f"the lab runs and is in use; {difference} (./invoke lab.down ends it)")
    return difference


def _make_vendor_files(recipes: Sequence[Recipe]) -> None:
    """Make the missing downloads and package repositories of these recipes."""
    for recipe in recipes:
        recipe_cache.hashes(recipe)
