"""Compatibility: rules over facts.

`rules.yaml` is the table of the rules: id, level, what clashes, source. Each rule has a function
under its id in the module of its subject: `driver`, `libraries`, `network`, `system`, `flavors`. It
gets the recipe and the `Case`, and yields an `Objection` for each clash. The values that it
compares come from `kiln.facts`: no rule holds a version of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict

from kiln import facts
from kiln.base import versions
from kiln.base.errors import KilnError, nearest
from kiln.base.recipe import Recipe
from kiln.facts import Branch, InstanceType, table


@dataclass(frozen=True)
class Kernel:
    """A kernel as far as known. `release` is None if only the series is known; `measured` and
    `proxy` name a kernel in kernel_builds.yaml."""

    name: str
    series: str
    release: str | None = None
    measured: str | None = None
    proxy: str | None = None

    def __str__(self) -> str:
        return self.release or self.series


@dataclass(frozen=True)
class Case:
    """A recipe on a day for some instance types, and what the facts say about it.

    `build_types` names the types that bake and check. `complete` is true for a row of a matrix:
    what is None is not on the image. On the command line it is only unspecified, and no rule judges
    it.
    """

    recipe: Recipe
    today: date
    types: tuple[InstanceType, ...] = ()
    build_types: tuple[str, ...] = ()
    complete: bool = True

    @property
    def distro(self) -> dict[str, Any]:
        """The distribution's entry in distros.yaml."""
        return facts.distro(self.recipe.distro.id)

    @property
    def cuda_repo(self) -> dict[str, Any]:
        """The entry in cuda.yaml of the CUDA repository that the image installs from."""
        return dict(table("cuda")["repos"][self.recipe.distro.cuda_repo])

    @property
    def branch(self) -> Branch | None:
        """The driver's branch, if known."""
        return facts.branch(self.recipe.driver)

    @property
    def branch_name(self) -> str:
        """The driver's major number: 510.47.03 → 510; empty without a driver."""
        return versions.major(self.recipe.driver or "")

    @property
    def cuda_major(self) -> str:
        """11.6.2 → 11; empty without CUDA."""
        return versions.major(self.recipe.cuda or "")

    @property
    def modules(self) -> frozenset[str]:
        """The kernel modules on the image: open, proprietary or both; empty if unspecified."""
        both = frozenset({"open", "proprietary"})
        module = self.recipe.kernel_module
        return both if module == "both" else both & {module}

    @property
    def fabric_manager(self) -> bool | None:
        """True if the image has fabric manager; None if unspecified."""
        has = "nvidia-fabricmanager" in self.recipe.components
        return has if has or self.complete else None

    @property
    def plugin(self) -> str | None:
        """The version of aws-ofi-nccl on the image: built from source, or bundled with EFA."""
        recipe = self.recipe
        if recipe.ofi_nccl:
            return recipe.ofi_nccl
        if recipe.efa and facts.bundles_plugin(recipe.efa, recipe.arch, recipe.distro.id):
            return facts.efa_plugin(recipe.efa)
        return None

    @property
    def repo_has_driver(self) -> bool:
        """True if the CUDA repository has packages of the driver's branch."""
        held = self.cuda_repo.get("drivers", {})
        return not (
            ("first" in held and versions.below(self.branch_name, held["first"]))
            or ("last" in held and not versions.at_least(held["last"], self.branch_name))
        )

    @property
    def distro_has_driver(self) -> bool:
        """True if the distribution itself packages exactly this driver, as far as known."""
        return self.recipe.driver in self.distro.get("packaged_drivers", {}).values()

    @property
    def driver_source(self) -> str:
        """The driver's origin: as specified, or the first that has it of repo, distro, runfile."""
        if self.recipe.driver_source:
            return self.recipe.driver_source
        if self.repo_has_driver:
            return "repo"
        return "distro" if self.distro_has_driver else "runfile"

    @property
    def kernel(self) -> Kernel | None:
        """The kernel that the image boots: the pinned one, or its parent AMI's; None if unknown."""
        kernels = self.distro.get("kernels")
        if kernels is None:
            return None
        entries: dict[str, dict[str, Any]] = kernels["entries"]
        if wanted := self.recipe.kernel:
            return _pinned_kernel(wanted, entries)
        image = self.recipe.source_ami.ssm_parameter if self.recipe.source_ami else None
        for name, entry in entries.items():
            if image and "parameter" in entry and f"/{entry['parameter']}-" in image:
                return _kernel(name, entry)
        name = _parent_kernel(self.recipe) or kernels["default"]
        return _kernel(name, entries[name])


def row_case(recipe: Recipe, today: date) -> Case:
    """A row with the instance types that it names. An instance type that the facts do not know is
    an error (exit status 2) at its place."""
    try:
        types = tuple(facts.instance(name) for name in recipe.target_instance_types)
    except KilnError as error:
        message = f"{recipe.row.place_of('target_instance_types')}: {error.message}"
        raise KilnError(message, hint=error.hint) from None
    baking = recipe.row.account.instance_types or (recipe.instance_type,)
    build_types = tuple(dict.fromkeys((*baking, recipe.verify_instance_type)))
    return Case(recipe, today, types, build_types)


def _kernel(name: str, entry: dict[str, Any]) -> Kernel:
    keys = ("series", "release", "measured", "proxy")
    return Kernel(name, **{key: entry[key] for key in keys if key in entry})


def _pinned_kernel(wanted: str, entries: dict[str, dict[str, Any]]) -> Kernel | None:
    """The kernel that a key, package, release or series names. An unknown one has the series in its
    name; None if there is none."""
    for name, entry in entries.items():
        if wanted in {name, entry.get("release"), entry["series"], *entry.get("packages", ())}:
            return _kernel(name, entry)
    number = versions.key(wanted)[:2]
    return Kernel(wanted, ".".join(map(str, number))) if len(number) > 1 else None


def _parent_kernel(recipe: Recipe) -> str | None:
    """The kernel of an EKS, ECS or ParallelCluster parent, as a key of the distro's kernels."""
    flavor = table("distros")["flavors"].get(recipe.flavor, {})
    kernels: str | list[dict[str, str]] | None = flavor.get("kernels", {}).get(recipe.distro.id)
    if kernels is None or isinstance(kernels, str):
        return kernels
    reached = versions.last_reached(kernels, "from", recipe.kubernetes or "")
    return reached["kernel"] if reached else None


@dataclass(frozen=True)
class Objection:
    """One clash: what clashes, what to do about it, and why it matters.

    `unsure`: it rests on an unconfirmed fact and only warns. `advice`: the combination works, but a
    person should know; it only warns and blocks nothing. `source` replaces the rule's.
    """

    message: str
    hint: str = ""
    why: str = ""
    unsure: bool = False
    advice: bool = False
    source: str = ""


class Rule(BaseModel):
    """A rule as in rules.yaml.

    `about` names the fields of a recipe that it judges, the likeliest culprit first; `moves` those
    of driver and cuda whose change can resolve a clash; `limits` holds the rule's own thresholds.
    `confirmed` is false if the fact that the rule itself states is unconfirmed. A `spare` rule is
    about something that an image has but does not need, an `ended` one about something without
    further fixes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    level: str
    what: str
    example: str
    source: str
    about: tuple[str, ...]
    limits: dict[str, Any] = {}
    moves: tuple[str, ...] = ()
    confirmed: bool = True
    spare: bool = False
    ended: bool = False


@cache
def rules() -> dict[str, Rule]:
    """All rules by id, in the order of rules.yaml."""
    names = table("rules")["sources"]
    return {
        entry["id"]: Rule(**{**entry, "source": facts.full_source(entry["source"], names)})
        for entry in table("rules")["rules"]
    }


def unknown(version: str, what: str, known: Iterable[str]) -> str:
    """Say that a version is none of the known ones, and which was likely meant."""
    guess = nearest(version, known, likeness=0.7)
    return f"{version} is not a known {what}" + (f"; did you mean {guess}?" if guess else "")


Objections: TypeAlias = Iterator[Objection]
_Check = Callable[[Recipe, Case], Objections]
_TypeCheck = Callable[[Recipe, Case, InstanceType], Objections]

# The functions of the rules by id: those that judge a case as a whole, those of them whose verdict
# depends on the instance types, and those that judge one instance type at a time.
CHECKS: dict[str, _Check] = {}
READS_TYPES: set[str] = set()
TYPE_CHECKS: dict[str, _TypeCheck] = {}


def rule(rule_id: str, *, reads_types: bool = False) -> Callable[[_Check], _Check]:
    """Register a function as the check of a rule. `reads_types`: it looks at `case.types`, so that
    it runs again for each type that the image may serve."""
    READS_TYPES.update({rule_id} if reads_types else ())
    return lambda check: CHECKS.setdefault(rule_id, check)


def type_rule(rule_id: str) -> Callable[[_TypeCheck], _TypeCheck]:
    """Register a function as the check of a rule on each instance type."""
    return lambda check: TYPE_CHECKS.setdefault(rule_id, check)
