"""What a build will do, before it does anything: shown by --dry-run and kept in the record."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kiln import components
from kiln.base import tags
from kiln.base.paths import ROOT, packer_dir
from kiln.base.recipe import Recipe
from kiln.cloud import parents
from kiln.cloud.target import ParentAmi, Target
from kiln.packer import render


@dataclass(frozen=True)
class Options:
    """How a build is run; none of it changes the image."""

    instance_type: str | None = None
    verify_instance_type: str | None = None
    subnet_id: str | None = None
    iam_instance_profile: str | None = None
    kms_key_id: str | None = None
    keep: bool = False


@dataclass(frozen=True)
class Plan:
    """One recipe, its parent AMI as it is today, and where it will be built and checked."""

    recipe: Recipe
    target: Target
    source: ParentAmi
    instance_type: str
    verify_instance_type: str
    digest: str
    options: Options

    @property
    def steps(self) -> list[str]:
        """What happens, in order, in words."""
        baked = [f"bake {name}: {components.get(name).what}" for name in self.recipe.components]
        return [
            f"launch {self.instance_type} from {self.source.ami_id}",
            *baked,
            "stop the instance and make the AMI",
            f"boot a fresh {self.verify_instance_type} from the AMI and run tests/ami",
            f"tag the AMI {tags.VERIFIED}, write the record and the report, remove everything else",
        ]

    def as_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {
            "recipe": self.recipe.as_json(),
            "digest": self.digest,
            "target": self.target.kind,
            "why": self.target.why,
            "region": self.target.region,
            "hcl": _shown(self.recipe),
            "source_ami": asdict(self.source),
            "instance_type": self.instance_type,
            "verify_instance_type": self.verify_instance_type,
            "steps": self.steps,
        }

    def as_text(self) -> str:
        """The plan for a person."""
        return "\n".join(
            [
                self.recipe.name,
                f"  HCL         {_shown(self.recipe)}",
                f"  source AMI  {self.source.ami_id} {self.source.name} ({self.source.found_by})",
                f"  builder     {self.instance_type} in {self.target.region}",
                f"  checked on  {self.verify_instance_type}",
                f"  digest      {self.digest}",
                *(f"  {number:2}. {step}" for number, step in enumerate(self.steps, 1)),
            ]
        )


def plan(recipe: Recipe, target: Target, options: Options) -> Plan:
    """Resolve what a build needs to know. Starts nothing.

    Raises KilnError: source AMI not found, a provisioner is missing, AWS refuses.
    """
    return Plan(
        recipe=recipe,
        target=target,
        source=parents.resolve(recipe, target),
        instance_type=options.instance_type or recipe.instance_type,
        verify_instance_type=options.verify_instance_type or recipe.verify_instance_type,
        digest=render.digest(recipe),
        options=options,
    )


def _shown(recipe: Recipe) -> str:
    folder = packer_dir() / recipe.line
    return str(folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder)
