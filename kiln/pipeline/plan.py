"""The plan of a build, made before it starts anything: shown by --dry-run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from kiln import components
from kiln.base import overlay, tags
from kiln.base.account import Account, key_elsewhere
from kiln.base.errors import KilnError, refuse_errors
from kiln.base.overlay import shown_path
from kiln.base.paths import packer_dir
from kiln.base.recipe import Recipe
from kiln.cloud.images import find_parent, parent_finder
from kiln.cloud.instance import require_types
from kiln.cloud.target import OwnKernel, ParentAmi, Target
from kiln.compat import engine
from kiln.facts import table
from kiln.matrix import flags, load
from kiln.packer.render import Rendered, recipe_digest, render
from kiln.packer.validate import check_scripts

if TYPE_CHECKING:
    from kiln.pipeline.record import Record

_REST = "all other settings: default"
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
        return flags.overridden(recipe.row.account, self.aws_flags, recipe.arch)

    def bake_types(self, recipe: Recipe) -> tuple[str, ...]:
        """The types that bake, in the order in which they are tried."""
        if self.instance_type:
            return (self.instance_type,)
        return self.account(recipe).instance_types or (recipe.instance_type,)

    def verify_type(self, recipe: Recipe) -> str:
        """The type that checks."""
        return self.verify_instance_type or recipe.verify_instance_type


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
    def input_digest(self) -> str:
        """Digest of the inputs: see `input_digest` of this module."""
        return input_digest(self.recipe_digest, self.source.ami_id, self.recipe.package_snapshot)

    @property
    def steps(self) -> list[str]:
        """The steps of the build in words, in order."""
        own_kernel = ", with its own kernel," if self.options.own_kernel else ""
        return [
            f"launch {self.instance_types[0]} from {self.source.ami_id}",
            *(f"bake {name}: {components.get(name).what}" for name in self.recipe.components),
            "stop the instance and make the AMI",
            f"boot a fresh {self.verify_instance_type} from the AMI{own_kernel} and run tests/ami",
            f"tag the AMI {tags.VERIFIED}, write the record and the report, "
            "delete temporary resources",
        ]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {
            "recipe": self.recipe.to_dict(),
            "recipe_from": self.recipe_from,
            "recipe_digest": self.recipe_digest,
            "input_digest": self.input_digest,
            "package_snapshot": self.recipe.package_snapshot,
            "target": self.target.kind,
            "why": self.target.why,
            "region": self.target.region,
            "hcl": self._hcl,
            "source_ami": asdict(self.source),
            "instance_type": self.instance_types[0],
            "verify_instance_type": self.verify_instance_type,
            "aws": self.account.to_dict(),
            "steps": self.steps,
        }

    def rows(self) -> list[tuple[str, str]]:
        """The plan for a person, without its steps: names and values."""
        snapshot = self.recipe.package_snapshot
        size = float(self.recipe.volume.size)
        cost = estimate_cost(self.instance_types[0], self.verify_instance_type, size)
        return [
            ("HCL", self._hcl),
            ("source AMI", f"{self.source.ami_id} {self.source.name} ({self.source.found_by})"),
            ("builder", f"{' or '.join(self.instance_types)} in {self.target.region}"),
            ("checked on", self.verify_instance_type),
            ("OS packages", f"as of {snapshot}" if snapshot else "latest (no snapshot pinned)"),
            *([("cost", cost)] if self.target.bills else []),
            *(("aws", line) for line in [*self.account.shown(), _REST]),
            ("recipe digest", self.recipe_digest),
            ("input digest", self.input_digest),
        ]

    @property
    def _hcl(self) -> str:
        return shown_path(packer_dir() / self.recipe.line)


def input_digest(recipe_digest: str, parent_ami: str, package_snapshot: str | None) -> str:
    """SHA-256 (hex) over the recipe digest, the parent AMI's id and the package snapshot.

    Of a recipe that is pinned to a snapshot, two builds with one input digest install the same
    packages. Without a snapshot ("none") the distribution's packages are those of the day.
    """
    parts = [recipe_digest, parent_ami, package_snapshot or "none"]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def announce(
    recipes: Sequence[Recipe],
    options: Options,
    target: Target,
    say: Callable[[str], None],
    rebuilt: Record | None = None,
) -> Target:
    """Refuse recipes that cannot work, and say where and on which instance types to build.

    A recipe of a record (`rebuilt`) was judged when it was first built: today's knowledge does not
    refuse it. Returns the target with its account known.
    """
    say(str(target))
    for folder in overlay.overlays():
        say(f"overlay: {shown_path(folder)}")
    for recipe in recipes:
        require_types([*options.bake_types(recipe), options.verify_type(recipe)], target, say)
    if rebuilt is None:
        _require_compatible(recipes, options)
    if options.own_kernel and options.own_kernel.keep and len(recipes) > 1:
        raise KilnError(
            f"--disk keeps the disk of one AMI, and {len(recipes)} rows match",
            hint=f"select one: --name {recipes[0].name}",
        )
    accounts = {recipe.name: options.account(recipe) for recipe in recipes}
    for account in accounts.values():
        _require_region(account, target)
    for line in _settings(accounts):
        say(line)
    if target.bills:
        for recipe in recipes:
            bakes = " or ".join(options.bake_types(recipe))
            kinds = " and ".join(dict.fromkeys([bakes, options.verify_type(recipe)]))
            region = accounts[recipe.name].region or target.region
            say(f"will launch: {kinds} in {region} for {recipe.name}")
        target = target.identified()
        say(f"account: {target.place}")
    return target


def _require_compatible(recipes: Sequence[Recipe], options: Options) -> None:
    """Refuse recipes and options that cannot work, before anything is launched."""
    # A value from the command line has no place in the matrix.
    types = ("instance_type", "verify_instance_type")
    typed = any(getattr(options, name) for name in types) or "instance_types" in options.aws_flags
    chosen = []
    for recipe in recipes:
        bakes, verifies = options.bake_types(recipe), options.verify_type(recipe)
        account = options.account(recipe).changed(instance_types=bakes)
        row = recipe.row.without(*(types if typed else ())).changed(account=account)
        chosen.append(
            recipe.changed(instance_type=bakes[0], verify_instance_type=verifies, row=row)
        )
    refuse_errors(engine.check_matrix(chosen))


def _require_region(account: Account, target: Target) -> None:
    """Refuse a region that is not there, and a key of another one."""
    if account.region:
        target.in_region(account.region)
    # A key of AWS serves in the lab too, in whatever region that says it is.
    region = account.region or (target.region if target.bills else None)
    if elsewhere := key_elsewhere(account.kms_key_id, region):
        raise KilnError(
            f"kms_key_id ({account.origins['kms_key_id']}): the key is in {elsewhere}, and the "
            f"build in {region}",
            hint="name a key of that region, or alias/NAME, of which each region has its own",
        )


def _settings(accounts: Mapping[str, Account]) -> list[str]:
    """The `aws` settings of all rows as lines; those that not every row has name their rows."""
    rows: dict[str, list[str]] = {}
    for name, account in accounts.items():
        # The target's line names the caller's region.
        for line in account.shown(without=("region",) if account.region_of_caller else ()):
            rows.setdefault(line, []).append(name)
    return [
        f"aws: {line}" + (f" for {', '.join(names)}" if len(names) < len(accounts) else "")
        for line, names in rows.items()
    ]


def require_scripts(recipes: Sequence[Recipe]) -> None:
    """Refuse provisioners that bash cannot parse, before anything is launched."""
    names = (name for recipe in recipes for name in recipe.components)
    refuse_errors(check_scripts(dict.fromkeys(names)))


def plan_builds(
    recipes: Sequence[Recipe], options: Options, target: Target, rebuilt: Record | None = None
) -> list[Plan]:
    """Plan the builds of these recipes; starts nothing.

    `rebuilt`: the parent AMI is that of a record, and not looked up by the recipe.
    """
    find = parent_finder()
    return [plan_build(recipe, target, options, rebuilt, find) for recipe in recipes]


def plan_build(
    recipe: Recipe,
    target: Target,
    options: Options,
    rebuilt: Record | None = None,
    find: Callable[[Recipe, Target, ParentAmi | None], ParentAmi] = find_parent,
) -> Plan:
    """Plan one build. `find` looks the parent AMI up; plans that are made together share one."""
    account = options.account(recipe)
    target = target.in_region(account.region or target.region)
    return Plan(
        rendered=render(recipe),
        target=target,
        source=find(recipe, target, rebuilt.source_ami if rebuilt else None),
        instance_types=options.bake_types(recipe),
        verify_instance_type=options.verify_type(recipe),
        account=account,
        options=options,
        recipe_from=f"the record of run {rebuilt.run_id}" if rebuilt else "the matrix",
    )


def require_rebuildable(record: Record) -> Recipe:
    """The recipe of a record, if this checkout still bakes the same for it and its parent AMI is
    known."""
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
        clean = commit.removesuffix("-dirty")
        way = f"bake from the record's commit: git worktree add ../kiln-{clean[:9]} {clean}"
        if clean != commit:
            way += "; its checkout had changes that were not committed, and those are not in it"
        raise KilnError(
            f"this checkout does not bake what run {run} baked: for the same recipe its recipe "
            f"digest is {digest}, the record's is {record.recipe_digest}",
            hint=way if commit != "unknown" else "the record names no git commit to check out",
        )
    return recipe


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
    seconds = {"packer build": float(expected["bake"]), "checks": float(expected["verify"])}
    usd = run_usd(seconds, instance_type, verify_instance_type)
    month = gib * float(prices["snapshots"]["usd_per_gb_month"])
    instances = "unknown price" if usd is None else f"about ${usd:,.2f}"
    return (
        f"{instances} for instances, at most ${month:,.2f} a month per region for the snapshot "
        f"(us-east-1 list prices of {prices['instances']['as_of']})"
    )
