"""The plan of a build, made before it starts anything: shown by --dry-run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kiln import components
from kiln.base import tags
from kiln.base.account import Account
from kiln.base.errors import KilnError
from kiln.base.overlay import shown_path
from kiln.base.paths import packer_dir
from kiln.base.recipe import Recipe
from kiln.cloud import parents
from kiln.cloud.target import OwnKernel, ParentAmi, Target
from kiln.facts import table
from kiln.matrix import load
from kiln.matrix.flags import overridden
from kiln.packer.render import Rendered, recipe_digest, render
from kiln.pipeline.record import Record

_REST = "everything else: AMI Kiln's own (default)"
# The stages of a record during which an instance runs.
_BAKING = ("packer build",)
_VERIFYING = ("boot the AMI", "checks")


@dataclass(frozen=True)
class Options:
    """Options of a build that do not change the image."""

    instance_type: str | None = None
    verify_instance_type: str | None = None
    # Flags that replace `aws` settings, as text.
    aws_flags: Mapping[str, str] = field(default_factory=dict)
    keep: bool = False
    # The build instance of a bake that fails stays.
    keep_instance: bool = False
    own_kernel: OwnKernel | None = None

    def account(self, recipe: Recipe) -> Account:
        """The `aws` settings of a recipe's build."""
        return overridden(recipe.row.account, self.aws_flags, recipe.arch)

    def bake_types(self, recipe: Recipe) -> tuple[str, ...]:
        """The types that bake, in the order in which they are tried."""
        if self.instance_type:
            return (self.instance_type,)
        return self.account(recipe).instance_types or (recipe.instance_type,)

    def verify_type(self, recipe: Recipe) -> str:
        """The type that checks."""
        return self.verify_instance_type or recipe.verify_instance_type


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuild takes from a record: the parent AMI, and words for the recipe's origin."""

    source: ParentAmi
    recipe_from: str


@dataclass(frozen=True)
class Plan:
    """One recipe, its parent AMI (as it is today, or of a record), and where it will be built and
    checked."""

    rendered: Rendered
    target: Target
    source: ParentAmi
    # The types that bake, in the order in which they are tried.
    instance_types: tuple[str, ...]
    verify_instance_type: str
    account: Account
    options: Options
    recipe_from: str = "the matrix"

    @property
    def recipe(self) -> Recipe:
        """The recipe that is built."""
        return self.rendered.recipe

    @property
    def recipe_digest(self) -> str:
        """The digest of all that the bake reads, as it was when the plan was made."""
        return self.rendered.digest

    @property
    def instance_type(self) -> str:
        """The type that bakes."""
        return self.instance_types[0]

    @property
    def input_digest(self) -> str:
        """What went in: see `input_digest` of this module."""
        return input_digest(self.recipe_digest, self.source.ami_id, self.recipe.package_snapshot)

    @property
    def steps(self) -> list[str]:
        """The steps of the build in words, in order."""
        names = self.recipe.components
        own_kernel = ", with its own kernel," if self.options.own_kernel else ""
        return [
            f"launch {self.instance_type} from {self.source.ami_id}",
            *(f"bake {name}: {components.get(name).what}" for name in names),
            "stop the instance and make the AMI",
            f"boot a fresh {self.verify_instance_type} from the AMI{own_kernel} and run tests/ami",
            f"tag the AMI {tags.VERIFIED}, write the record and the report, remove everything else",
        ]

    def as_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {
            "recipe": self.recipe.as_json(),
            "recipe_from": self.recipe_from,
            "recipe_digest": self.recipe_digest,
            "input_digest": self.input_digest,
            "package_snapshot": self.recipe.package_snapshot,
            "target": self.target.kind,
            "why": self.target.why,
            "region": self.target.region,
            "hcl": _hcl(self.recipe),
            "source_ami": asdict(self.source),
            "instance_type": self.instance_type,
            "verify_instance_type": self.verify_instance_type,
            "aws": self.account.as_json(),
            "steps": self.steps,
        }

    def as_text(self) -> str:
        """The plan for a person."""
        snapshot = self.recipe.package_snapshot
        of_the_day = "the distribution's of the day (no snapshot)"
        packages = f"as of {snapshot}" if snapshot else of_the_day
        size = float(self.recipe.volume.size)
        cost = estimate_cost(self.instance_type, self.verify_instance_type, size)
        return "\n".join(
            [
                self.recipe.name,
                f"  HCL         {_hcl(self.recipe)}",
                f"  source AMI  {self.source.ami_id} {self.source.name} ({self.source.found_by})",
                f"  builder     {' or '.join(self.instance_types)} in {self.target.region}",
                f"  checked on  {self.verify_instance_type}",
                f"  packages    {packages}",
                *([f"  cost        {cost}"] if self.target.bills else []),
                *(f"  aws         {line}" for line in [*self.account.shown(), _REST]),
                f"  recipe      {self.recipe_digest} (recipe digest)",
                f"  inputs      {self.input_digest} (input digest)",
                *(f"  {number:2}. {step}" for number, step in enumerate(self.steps, 1)),
            ]
        )


def _hcl(recipe: Recipe) -> str:
    return shown_path(packer_dir() / recipe.line)


def input_digest(recipe_digest: str, parent_ami: str, package_snapshot: str | None) -> str:
    """SHA-256 (hex) over the recipe digest, the parent AMI's id and the package snapshot.

    Of a recipe that is pinned to a snapshot, two builds with one input digest install the same
    packages. Without a snapshot ("none") the distribution's packages are those of the day.
    """
    parts = [recipe_digest, parent_ami, package_snapshot or "none"]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def plan_build(
    recipe: Recipe,
    target: Target,
    options: Options,
    rebuilt: Rebuilt | None = None,
    find: Callable[[Recipe, Target], ParentAmi] = parents.resolve,
) -> Plan:
    """Plan a build; starts nothing.

    `rebuilt`: the parent AMI is that of a record, and not looked up by the recipe. `find` looks it
    up; plans that are made together share `parents.once()`.
    """
    account = options.account(recipe)
    target = target.in_region(account.region or target.region)
    source = parents.again(rebuilt.source, recipe, target) if rebuilt else find(recipe, target)
    return Plan(
        rendered=render(recipe),
        target=target,
        source=source,
        instance_types=options.bake_types(recipe),
        verify_instance_type=options.verify_type(recipe),
        account=account,
        options=options,
        recipe_from=rebuilt.recipe_from if rebuilt else "the matrix",
    )


def rebuild_inputs(record: Record) -> tuple[Recipe, Rebuilt]:
    """The recipe of a record and its parent AMI, if this checkout still bakes the same for it."""
    run, commit = record.run_id, record.git_commit
    if record.source_ami is None:
        raise KilnError(
            f"the record of run {run} names no parent AMI, so its inputs are not known",
            hint="./invoke build bakes the row from today's parent",
        )
    # How the account is used is today's: the record says what is on the image.
    row = record.recipe.row.changed(account=load.load_account(record.recipe.name))
    recipe = record.recipe.changed(row=row)
    digest = recipe_digest(recipe)
    if digest != record.recipe_digest:
        raise KilnError(
            f"this checkout does not bake what run {run} baked: for the same recipe its recipe "
            f"digest is {digest}, the record's is {record.recipe_digest}",
            hint=_how_to_get_there(commit),
        )
    return recipe, Rebuilt(record.source_ami, f"the record of run {run}")


def _how_to_get_there(commit: str) -> str:
    if commit == "unknown":
        return "the record names no git commit to check out"
    clean = commit.removesuffix("-dirty")
    way = f"bake from the record's commit: git worktree add ../kiln-{clean[:9]} {clean}"
    if clean != commit:
        way += "; its checkout had changes that were not committed, and those are not in it"
    return way


def run_usd(
    seconds: Mapping[str, float], instance_type: str | None, verify_instance_type: str | None
) -> float | None:
    """US dollars of a run's instances by list prices, on demand in us-east-1; None if a price is
    not known. `seconds` by stage."""
    total = 0.0
    for name, stages in ((instance_type, _BAKING), (verify_instance_type, _VERIFYING)):
        spent = sum(seconds.get(stage, 0) for stage in stages)
        if name and spent:
            hourly = table("ec2-prices")["instances"]["hourly"].get(name)
            if hourly is None:
                return None
            total += float(hourly) * spent / 3600
    return round(total, 4)


def estimate_cost(instance_type: str, verify_instance_type: str, gib: float) -> str:
    """Estimate a build's cost in one line; `gib`: size of the AMI's volume."""
    prices = table("ec2-prices")
    expected = prices["expected_seconds"]
    usd = run_usd(
        {"packer build": float(expected["bake"]), "checks": float(expected["verify"])},
        instance_type,
        verify_instance_type,
    )
    month = gib * float(prices["snapshots"]["usd_per_gb_month"])
    instances = "unknown price" if usd is None else f"about ${usd:,.2f}"
    return (
        f"{instances} for instances, at most ${month:,.2f} a month per region for the snapshot "
        f"(us-east-1 list prices of {prices['instances']['as_of']})"
    )
