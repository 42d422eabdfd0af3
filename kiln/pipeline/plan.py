"""The plan of a build, made before it starts anything: shown by --dry-run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kiln import components
from kiln.base import tags
from kiln.base.account import Account
from kiln.base.overlay import shown_path
from kiln.base.paths import packer_dir
from kiln.base.recipe import Recipe
from kiln.cloud import parents
from kiln.cloud.target import OwnKernel, ParentAmi, Target
from kiln.matrix.flags import overridden
from kiln.packer.digest import recipe_digest
from kiln.pipeline import cost

_REST = "everything else: AMI Kiln's own (default)"


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


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuild takes from a record: the parent AMI, and words for the recipe's origin."""

    source: ParentAmi
    recipe_from: str


@dataclass(frozen=True)
class Plan:
    """One recipe, its parent AMI (as it is today, or of a record), and where it will be built and
    checked."""

    recipe: Recipe
    target: Target
    source: ParentAmi
    # The types that bake, in the order in which they are tried.
    instance_types: tuple[str, ...]
    verify_instance_type: str
    recipe_digest: str
    account: Account
    options: Options
    recipe_from: str = "the matrix"

    @property
    def instance_type(self) -> str:
        """The type that bakes."""
        return self.instance_types[0]

    @property
    def input_digest(self) -> str:
        """What went in: see `input_digest` of this module."""
        return input_digest(self.recipe_digest, self.source.ami_id, self.recipe.package_snapshot)

    @property
    def _packages(self) -> str:
        snapshot = self.recipe.package_snapshot
        return f"as of {snapshot}" if snapshot else "the distribution's of the day (no snapshot)"

    @property
    def _cost(self) -> str:
        size = float(self.recipe.volume.size)
        return cost.estimate(self.instance_type, self.verify_instance_type, size)

    @property
    def steps(self) -> list[str]:
        """The steps of the build in words, in order."""
        names = self.recipe.components
        baked = [f"bake {name}: {components.get(name).what}" for name in names]
        return [
            f"launch {self.instance_type} from {self.source.ami_id}",
            *baked,
            "stop the instance and make the AMI",
            f"boot a fresh {self.verify_instance_type} from the AMI"
            f"{', with its own kernel,' if self.options.own_kernel else ''} and run tests/ami",
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
            "hcl": _shown(self.recipe),
            "source_ami": asdict(self.source),
            "instance_type": self.instance_type,
            "verify_instance_type": self.verify_instance_type,
            "aws": self.account.as_json(),
            "steps": self.steps,
        }

    def as_text(self) -> str:
        """The plan for a person."""
        return "\n".join(
            [
                self.recipe.name,
                f"  HCL         {_shown(self.recipe)}",
                f"  source AMI  {self.source.ami_id} {self.source.name} ({self.source.found_by})",
                f"  builder     {' or '.join(self.instance_types)} in {self.target.region}",
                f"  checked on  {self.verify_instance_type}",
                f"  packages    {self._packages}",
                *([f"  cost        {self._cost}"] if self.target.bills else []),
                *(f"  aws         {line}" for line in [*self.account.shown(), _REST]),
                f"  recipe      {self.recipe_digest} (recipe digest)",
                f"  inputs      {self.input_digest} (input digest)",
                *(f"  {number:2}. {step}" for number, step in enumerate(self.steps, 1)),
            ]
        )


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
    find: Callable[[Recipe, Target], ParentAmi] | None = None,
) -> Plan:
    """Plan a build; starts nothing.

    `rebuilt`: the parent AMI is that of a record, and not looked up by the recipe. `find` looks it
    up; plans that are made together share `parents.once()`.
    Raises KilnError if the parent AMI is not found, a provisioner is missing, or AWS refuses.
    """
    account = overridden(recipe.row.account, options.aws_flags, recipe.arch)
    target = target.in_region(account.region or target.region)
    if rebuilt is None:
        source = (find or parents.resolve)(recipe, target)
    else:
        source = parents.again(rebuilt.source, recipe, target)
    return Plan(
        recipe=recipe,
        target=target,
        source=source,
        instance_types=types_in_order(recipe, account, options),
        verify_instance_type=options.verify_instance_type or recipe.verify_instance_type,
        recipe_digest=recipe_digest(recipe),
        account=account,
        options=options,
        recipe_from=rebuilt.recipe_from if rebuilt else "the matrix",
    )


def as_it_is_now(plan: Plan) -> Plan:
    """The plan with the digest of the files as they are now: other rows may have been built for an
    hour since it was made, and somebody may have edited a script."""
    return replace(plan, recipe_digest=recipe_digest(plan.recipe))


def types_in_order(recipe: Recipe, account: Account, options: Options) -> tuple[str, ...]:
    """The types that bake: the flag's one, those of the settings, or the row's."""
    if options.instance_type:
        return (options.instance_type,)
    return account.instance_types or (recipe.instance_type,)


def _shown(recipe: Recipe) -> str:
    return shown_path(packer_dir() / recipe.line)
