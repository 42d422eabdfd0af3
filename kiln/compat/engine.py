"""Recipe → findings: what clashes in a GPU stack, why, and the nearest combination that works."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, replace
from datetime import date
from typing import Any

from kiln import components, facts
from kiln.base import times, versions, vocabulary
from kiln.base.errors import KilnError, did_you_mean, nearest
from kiln.base.findings import Finding, by_cause, errors
from kiln.base.recipe import Recipe
from kiln.compat.accepted_warnings import with_accepted
from kiln.compat.alternatives import Rebuild, Suggestion, suggest, together
from kiln.compat.judge import Clash, clashes, served
from kiln.compat.rules.combination import Combination, recipe_combination
from kiln.compat.rules.driver import nearest_driver as meant_driver
from kiln.compat.rules.registry import Rule
from kiln.compat.unconfirmed import unconfirmed_facts
from kiln.components import Step, environment, rendered_files

LATEST = "latest"
_CHOICES = {
    "arch": vocabulary.ARCHES,
    "flavor": vocabulary.FLAVORS,
    "kernel_module": vocabulary.KERNEL_MODULES,
    "driver_source": vocabulary.DRIVER_SOURCES,
}
# Errors with `strict`: such a stack may run, but gets no fixes, or nobody has seen it run.
_STRICT = {"DRV-EOL", "OS-EOL", "UNTRIED"}


def check_recipe(
    recipe: Recipe, *, today: date | None = None, strict: bool = False, **more: Any
) -> list[Finding]:
    """The findings on one recipe, in the order of the rules, each at the value it is about.

    `more` sets fields of `Combination` that a recipe lacks, such as `mig=("1g.5gb",)`. Raises
    KilnError (exit status 2) for an unknown distribution, and for an instance type without a GPU.
    """
    day = today or times.today()
    try:
        facts.distro(recipe.distro.id)
    except KilnError as error:
        raise KilnError(
            f"{recipe.row.place_of('distro')}: {error.message}", hint=error.hint
        ) from None
    try:
        combination = recipe_combination(recipe, day, **more)
    except KilnError as error:
        raise KilnError(
            f"{recipe.row.place_of('target_instance_types')}: {error.message}", hint=error.hint
        ) from None

    def changed(change: dict[str, Any]) -> Combination:
        if "distro" in change:  # packages and repository belong to the row's distribution
            return replace(combination, cuda_repo=None, packages=(), downloads=(), **change)
        return recipe_combination(recipe.changed(**change), day, **more)

    findings = [
        finding.at(recipe.row.place_of(*rule.about))
        for rule, finding in _findings(combination, changed)
    ]
    findings += [finding.at(recipe.row.place_of("telemetry")) for finding in _telemetry(recipe)]
    if strict:
        findings += unconfirmed_facts(combination, recipe)
    if not errors(findings):
        # Components can be checked only for a combination that the rules accept.
        findings += _environment(recipe)
    once = list(dict.fromkeys(findings))
    judged = with_accepted(recipe, once, _strictly(once) if strict else once, day)
    return [replace(finding, rows=(recipe.name,)) for finding in judged]


def _strictly(findings: Iterable[Finding]) -> list[Finding]:
    """The findings as `--strict` judges them."""
    return [
        replace(finding, level="error") if finding.rule in _STRICT else finding
        for finding in findings
    ]


def _environment(recipe: Recipe) -> list[Finding]:
    """Findings where the variables that a component gives are not those that its script
    declares, at the script; and a component that the recipe cannot have, at the row. Raises
    KilnError (exit status 2) for a mistake in an overlay's component."""
    findings: list[Finding] = []
    steps: list[Step] = []
    for name in recipe.components:
        try:
            step = components.get(name).for_recipe(recipe)
        except KilnError as error:
            # What is wrong in a file, an overlay's, is one message and not a matter of each row.
            if error.place:
                raise
            finding = Finding("error", environment.RULE, error.message, error.hint)
            findings.append(finding.at(recipe.row.place))
            continue
        steps.append(step)
        findings += environment.environment_problems(name, environment.component_variables(step))
    findings += rendered_files.name_problems(recipe, steps)
    return findings


def _telemetry(recipe: Recipe) -> list[Finding]:
    """What the image's CloudWatch agent would refuse, or not do as the row says."""
    if "cloudwatch-agent" not in recipe.components:
        return []
    from kiln.telemetry import Telemetry, agent_config_problems

    return [
        Finding(
            problem.level,
            problem.rule,
            problem.message,
            problem.hint,
            source="docs/telemetry-cloudwatch.md",
        )
        for problem in agent_config_problems(
            Telemetry(**recipe.telemetry),
            recipe.driver,
            recipe.cloudwatch_agent,
            mig=recipe.mig_config not in (None, "all-disabled"),
            exporter="dcgm-exporter" in recipe.components,
        )
    ]


def check_matrix(
    recipes: Iterable[Recipe], *, today: date | None = None, strict: bool = False
) -> list[Finding]:
    """The findings on all recipes, one per cause, in the order of the matrix."""
    return by_cause(
        finding
        for recipe in recipes
        for finding in check_recipe(recipe, today=today, strict=strict)
    )


def check_combination(
    distro: str,
    driver: str | None = None,
    *,
    arch: str | None = None,
    instance_type: str | None = None,
    instance_types: Iterable[str] = (),
    today: date | None = None,
    strict: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """Check a combination that need not be in the matrix.

    `more` holds any other field of `Combination` (cuda, nccl, efa, kernel_module, flavor …); None
    means unspecified. A component may be `latest`. Returns `{"findings": [Finding as JSON …],
    "instance_types": [names of the offered types that it serves …], "unconfirmed_facts": how many
    it rests on}`; there are no types if an error is not about an instance type.

    Raises KilnError (exit status 2) for an unknown distribution, instance type or field.
    """
    facts.distro(distro)
    types = [facts.instance(name) for name in (instance_type, *instance_types) if name]
    if arch is None:
        arch = types[0].arch if types else "x86_64"
    values = {"driver": driver, "arch": arch, **more}
    values = {name: value for name, value in values.items() if value is not None}
    _known_fields(values)
    latest = tuple(name for name, value in values.items() if value == LATEST)
    combination = Combination(
        distro=distro,
        today=today or times.today(),
        instance_types=tuple(types),
        latest=latest,
        **{name: value for name, value in values.items() if value != LATEST},
    )
    findings = list(dict.fromkeys(finding for _, finding in _findings(combination)))
    rests_on = unconfirmed_facts(combination)
    if strict:
        findings = [*_strictly(findings), *rests_on]
    return {
        "findings": [finding.as_json() for finding in findings],
        "instance_types": serves(combination),
        "unconfirmed_facts": len(rests_on),
    }


def nearest_version(name: str, wrong: str) -> str | None:
    """The version of driver, cuda, nccl or efa that a mistyped one most likely means, or None."""
    if name == "driver":
        return meant_driver(wrong)
    tables = {
        "cuda": ("cuda", "releases"),
        "nccl": ("nccl", "versions"),
        "efa": ("efa", "releases"),
    }
    if name not in tables:
        return None
    file, key = tables[name]
    known_versions = facts.table(file)[key]
    number = re.search(r"[0-9][0-9.]*", wrong)
    if number and number[0] in known_versions:  # v2.28.9, 2.28.9-1+cuda13.0
        return number[0]
    completed = [version for version in known_versions if version.startswith(f"{wrong}.")]
    return versions.newest(completed) or nearest(wrong, known_versions, likeness=0.7)


def serves(combination: Combination) -> list[str]:
    """The offered instance types that the combination works on; none if it does not work at all."""
    if "driver" in combination.latest:
        return []  # unknown: the types depend on the driver's version
    return [instance_type.type for instance_type in served(combination) if instance_type.offered]


def _known_fields(values: dict[str, Any]) -> None:
    names = {field.name for field in fields(Combination)}
    for name, value in values.items():
        if name not in names:
            raise KilnError(f"`check` has no field {name}", hint=did_you_mean(name, names))
        if name in _CHOICES and value not in _CHOICES[name]:
            raise KilnError(
                f"{name.replace('_', '-')} {value} does not exist",
                hint=did_you_mean(str(value), _CHOICES[name]),
            )


def _findings(
    combination: Combination, rebuild: Rebuild | None = None
) -> list[tuple[Rule, Finding]]:
    all_clashes = clashes(combination)
    suggestions = [
        suggest(combination, clash, rebuild) if clash.blocks else None for clash in all_clashes
    ]
    # If no single change resolves every clash, a combination of changes may.
    partial = any(suggestion and not suggestion.whole for suggestion in suggestions)
    everything = together(combination, rebuild) if partial else None
    return [
        (clash.rule, _finding(clash, suggestion, everything))
        for clash, suggestion in zip(all_clashes, suggestions, strict=True)
    ]


def _finding(clash: Clash, suggestion: Suggestion | None, everything: str | None) -> Finding:
    hints = [clash.verdict.hint] if clash.verdict.hint else []
    if suggestion:
        hints.append(str(suggestion))
    if suggestion and not suggestion.whole and everything:
        hints.append(f"nearest that works: {everything}")
    return Finding(
        level="error" if clash.blocks and clash.certain else "warning",
        rule=clash.rule.id,
        message=clash.verdict.message,
        hint="; ".join(hints),
        why=clash.verdict.why,
        source=(clash.verdict.source or clash.rule.source)
        + ("" if clash.certain else " (unconfirmed)"),
    )
