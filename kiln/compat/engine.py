"""Recipe → findings: what clashes in a GPU stack, why, and the nearest that works."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from typing import Any

from kiln import components, facts
from kiln.base import overlay, paths, versions, vocabulary
from kiln.base.errors import Finding, KilnError, by_cause, did_you_mean, errors
from kiln.base.recipe import Distro, Recipe, Row
from kiln.compat import CHECKS, READS_TYPES, TYPE_CHECKS, Case, Objection, Rule, row_case, rules
from kiln.compat import driver as _driver  # noqa: F401 - they register their rules
from kiln.compat import flavors as _flavors  # noqa: F401
from kiln.compat import libraries as _libraries  # noqa: F401
from kiln.compat import network as _network  # noqa: F401
from kiln.compat import system as _system  # noqa: F401
from kiln.components import Step, rendered
from kiln.facts import InstanceType, packages, table

UNCONFIRMED = "FACT-UNCONFIRMED"
_CHOICES = {
    "arch": vocabulary.ARCHES,
    "flavor": vocabulary.FLAVORS,
    "kernel_module": vocabulary.KERNEL_MODULES,
    "driver_source": vocabulary.DRIVER_SOURCES,
}
# Errors with `strict`: such a stack may run, but gets no fixes, or nobody has seen it run.
_STRICT = {"DRV-EOL", "OS-EOL", "UNTRIED"}
# The fields that `check` varies to find the nearest that works, as hints show them.
_MOVES = {"driver": "driver", "cuda": "CUDA"}


@dataclass(frozen=True)
class Clash:
    """A rule that objects."""

    rule: Rule
    objection: Objection

    @property
    def blocks(self) -> bool:
        """True if the image fails, even if uncertain. Advice and warnings do not block."""
        return self.rule.level == "error" and not self.objection.advice

    @property
    def certain(self) -> bool:
        """True if it rests on confirmed facts."""
        return self.rule.confirmed and not self.objection.unsure

    @property
    def text(self) -> str:
        """Message and reason in one line."""
        parts = (self.objection.message, self.objection.why)
        return ": ".join(part for part in parts if part)

    def finding(self, nearest_that_works: str) -> Finding:
        """The clash as `check` reports it."""
        source = self.objection.source or self.rule.source
        return Finding(
            level="error" if self.blocks and self.certain else "warning",
            rule=self.rule.id,
            message=self.objection.message,
            hint="; ".join(part for part in (self.objection.hint, nearest_that_works) if part),
            why=self.objection.why,
            source=source if self.certain else f"{source} (unconfirmed)",
        )


def general_clashes(case: Case) -> list[Clash]:
    """The clashes that are the same whatever the instance types are."""
    return list(_clashes(case, CHECKS.keys() - READS_TYPES))


def clashes(case: Case, general: Sequence[Clash] | None = None) -> list[Clash]:
    """All clashes, in the order of the rules. `general` are the general ones, if known already."""
    found = list(general_clashes(case) if general is None else general)
    found += _clashes(case, READS_TYPES)
    found += (clash for kind in case.types for clash in _type_clashes(case, kind))
    order = list(rules())
    return sorted(found, key=lambda clash: order.index(clash.rule.id))


def _clashes(case: Case, rule_ids: Iterable[str]) -> Iterator[Clash]:
    for rule_id in rule_ids:
        for objection in CHECKS[rule_id](case.recipe, case):
            yield Clash(rules()[rule_id], objection)


def _type_clashes(case: Case, kind: InstanceType) -> Iterator[Clash]:
    for rule_id, check in TYPE_CHECKS.items():
        for objection in check(case.recipe, case, kind):
            yield Clash(rules()[rule_id], objection)


def working_types(case: Case) -> list[InstanceType]:
    """The instance types that EC2 offers on which the image works, whichever it names itself. A
    clash about one type counts even if it is uncertain."""
    if any(clash.blocks and clash.certain for clash in general_clashes(case)):
        return []
    return [kind for kind in facts.instances().values() if kind.offered and _runs_on(case, kind)]


def _runs_on(case: Case, kind: InstanceType) -> bool:
    if any(clash.blocks for clash in _type_clashes(case, kind)):
        return False
    on_type = _clashes(replace(case, types=(kind,)), READS_TYPES)
    return not any(clash.blocks and clash.certain for clash in on_type)


def check_recipe(
    recipe: Recipe, *, today: date | None = None, strict: bool = False
) -> list[Finding]:
    """The findings on one row, in the order of the rules, each at the value it is about.

    Exit status 2 for an unknown distribution, and for an instance type without a GPU.
    """
    case = row_case(recipe, today or vocabulary.today())
    findings = [
        clash.finding(hint).at(recipe.row.place_of(*clash.rule.about))
        for clash, hint in _with_way_out(case)
    ]
    findings += [finding.at(recipe.row.place_of("telemetry")) for finding in _telemetry(recipe)]
    if strict:
        findings += unconfirmed_facts(case)
    if not errors(findings):
        # Components can be checked only for a stack that the rules accept.
        findings += _environment(recipe)
    once = list(dict.fromkeys(findings))
    judged = _accepted(recipe, once, case.today, strict=strict)
    return [replace(finding, rows=(recipe.name,)) for finding in judged]


def check_matrix(
    recipes: Iterable[Recipe], *, today: date | None = None, strict: bool = False
) -> list[Finding]:
    """The findings on all rows, one per cause, in the order of the matrix."""
    return by_cause(
        finding
        for recipe in recipes
        for finding in check_recipe(recipe, today=today, strict=strict)
    )


def _strictly(finding: Finding) -> Finding:
    """The finding as `--strict` judges it."""
    return replace(finding, level="error") if finding.rule in _STRICT else finding


def _accepted(
    recipe: Recipe, findings: Sequence[Finding], day: date, *, strict: bool
) -> Iterator[Finding]:
    """The findings with those that the row accepts at level `accepted`.

    What is an error without `strict` cannot be accepted. An acceptance past its last day is an
    error, one without its warning a warning.
    """
    entries = {entry.rule: entry for entry in recipe.row.accepted}
    for finding in findings:
        entry = entries.get(finding.rule)
        if entry and finding.level != "error" and day <= entry.until:
            hint = f"accepted until {entry.until}: {entry.reason}"
            yield replace(finding, level="accepted", hint=hint)
        else:
            yield _strictly(finding) if strict else finding
    warned = {finding.rule for finding in findings if finding.level != "error"}
    for entry in recipe.row.accepted:
        if day > entry.until:
            yield Finding(
                "error",
                "ACCEPT-EXPIRED",
                f"{entry.rule} was accepted until {entry.until} only: {entry.reason}",
                hint="resolve it, or accept it anew with a later day",
            ).at(entry.place)
        elif entry.rule not in warned:
            yield Finding(
                "warning",
                "ACCEPT-UNUSED",
                f"the row accepts {entry.rule}, and `check` has no such warning about it",
                hint="remove the entry"
                + (f"; {did_you_mean(entry.rule, warned)}" if warned else ""),
            ).at(entry.place)


def _environment(recipe: Recipe) -> list[Finding]:
    """Components that the recipe cannot have, at the row; variables and files of components that do
    not fit their scripts and the image. A mistake in an overlay's component is raised."""
    findings: list[Finding] = []
    steps: list[Step] = []
    for component in map(components.get, recipe.components):
        try:
            steps.append(component.for_recipe(recipe))
        except KilnError as error:  # noqa: PERF203 - the others are judged all the same
            # What is wrong in a file, an overlay's, is one message and not a matter of each row.
            if error.place:
                raise
            finding = Finding("error", rendered.RULE, error.message, error.hint)
            findings.append(finding.at(recipe.row.place))
    for step in steps:
        findings += rendered.environment_problems(step)
    return [*findings, *rendered.name_problems(recipe, steps)]


def _telemetry(recipe: Recipe) -> list[Finding]:
    """Return the settings that the image's CloudWatch agent would refuse or ignore."""
    if "cloudwatch-agent" not in recipe.components:
        return []
    from kiln.telemetry.agent import agent_config_problems
    from kiln.telemetry.settings import Telemetry

    return agent_config_problems(
        Telemetry(**recipe.telemetry),
        recipe.driver,
        recipe.cloudwatch_agent,
        mig=recipe.mig_config not in (None, "all-disabled"),
        exporter="dcgm-exporter" in recipe.components,
    )


def check_combination(
    distro: str,
    driver: str | None = None,
    *,
    instance_types: Iterable[str] = (),
    today: date | None = None,
    strict: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """Check a combination that need not be in the matrix.

    `more` holds any other field of a recipe (cuda, nccl, efa, kernel_module, flavor …); None means
    unspecified. Returns `{"findings": [Finding as JSON …], "instance_types": [names of the offered
    types that it serves …], "unconfirmed_facts": how many it rests on}`; there are no types if an
    error is not about an instance type.

    Exit status 2 for an unknown distribution, instance type or choice.
    """
    case = combination_case(
        distro,
        {"driver": driver, **more},
        tuple(map(facts.instance, instance_types)),
        today or vocabulary.today(),
    )
    findings = list(dict.fromkeys(clash.finding(hint) for clash, hint in _with_way_out(case)))
    rests_on = unconfirmed_facts(case)
    if strict:
        findings = [*map(_strictly, findings), *rests_on]
    return {
        "findings": [finding.to_dict() for finding in findings],
        "instance_types": [kind.type for kind in working_types(case)],
        "unconfirmed_facts": len(rests_on),
    }


def combination_case(
    distro: str, values: dict[str, Any], types: tuple[InstanceType, ...], today: date
) -> Case:
    """A case of which only some fields are known; the others are None."""
    values = {name: value for name, value in values.items() if value is not None}
    for name, choices in _CHOICES.items():
        value = values.get(name, choices[0])
        if value not in choices:
            shown = name.replace("_", "-")
            raise KilnError(f"{shown} {value} does not exist", hint=did_you_mean(value, choices))
    about = facts.distro(distro)
    known: dict[str, Any] = {
        "distro": Distro.model_construct(
            **{**{name: about.get(name, "") for name in Distro.model_fields}, "id": distro}
        ),
        "arch": types[0].arch if types else "x86_64",
        "flavor": "base",
        "components": (),
        "row": Row(file="", line=0, index=0),
        **values,
    }
    recipe = Recipe.model_construct(**{**dict.fromkeys(Recipe.model_fields), **known})
    return Case(recipe, today, types, complete=False)


def _with_way_out(case: Case) -> Iterator[tuple[Clash, str]]:
    """Each clash with the nearest driver and the nearest CUDA that resolve it; an empty text for
    one that blocks nothing, or that neither resolves."""
    found = clashes(case)
    for clash in found:
        yield clash, _way_out(case, clash, found) if clash.blocks else ""


def _way_out(case: Case, clash: Clash, present: Sequence[Clash]) -> str:
    """The nearest driver and the nearest CUDA that resolve a clash and break nothing else, of each
    the one with the fewest clashes; empty if there is neither."""
    others = _blocking(present) - {clash.rule.id}
    ways: dict[str, bool] = {}
    for field in clash.rule.moves:
        left = {
            value: clashes(replace(case, recipe=case.recipe.changed(**{field: value})))
            for value in _values(case, field)
        }
        fitting = [value for value in left if _blocking(left[value]) <= others]
        if fitting:
            best = min(fitting, key=lambda value: len(left[value]))
            ways[f"{_MOVES[field]} {best}"] = not _blocking(left[best])
    if works := [way for way, whole in ways.items() if whole]:
        return f"nearest that works: {', or '.join(works)}"
    return f"resolves this one: {', or '.join(ways)}" if ways else ""


def _blocking(found: Iterable[Clash]) -> set[str]:
    return {clash.rule.id for clash in found if clash.blocks}


def _values(case: Case, field: str) -> list[str]:
    """The values to try for driver or cuda, nearest to the present one first."""
    if field == "cuda":
        options = list(table("cuda")["releases"])
    else:
        newest = [branch.newest for branch in facts.branches().values() if branch.newest]
        packaged = case.distro.get("packaged_drivers", {}).values()
        same_branch = case.branch.versions if case.branch else ()
        options = list(dict.fromkeys([*same_branch, *packaged, *newest]))
    present = getattr(case.recipe, field) or ""
    ranked = sorted((value for value in options if value != present), key=versions.key)
    place = sum(versions.below(value, present) for value in ranked)
    return sorted(ranked, key=lambda value: abs(ranked.index(value) - place))


# ------------------------------------------------------------------------- unconfirmed facts


def unconfirmed_of_row(recipe: Recipe) -> list[Finding]:
    """The unconfirmed facts that a row rests on, each an error."""
    return unconfirmed_facts(row_case(recipe, vocabulary.today()))


def unconfirmed_facts(case: Case) -> list[Finding]:
    """The entries of `kiln/facts/knowledge` and hashes of amis.lock.yaml with `confirmed: false`
    that a case rests on, each an error, of a row at the value that requests it.

    The case passes because of them. A rule that objects because of one warns by itself.
    """
    found = list(_unconfirmed(_used_facts(case.recipe, case)))
    found += _unconfirmed_of_components(case.recipe) if case.complete else ()
    once: dict[str, Finding] = {}
    for fields, entry, source in found:
        finding = Finding(
            "error",
            UNCONFIRMED,
            f"{entry} is not confirmed",
            hint="compare the entry with the vendor's own statement and give it a source",
            source="" if source == "none" else source,
        )
        place = case.recipe.row.place_of(*fields.split()) if case.complete else None
        once.setdefault(entry, finding.at(place) if place else finding)
    return list(once.values())


def _used_facts(recipe: Recipe, case: Case) -> dict[str, str]:
    """Each fact that a case may rest on, FILE/PATH → the fields that request it. A path that leads
    nowhere, such as that of a version None, is no fact."""
    branch, distro, kernel = case.branch_name, recipe.distro.id, case.kernel
    release = facts.cuda_release(recipe.cuda) if recipe.cuda else None
    used = {
        f"drivers/branches.{branch}": "driver",
        _reached("drivers", "minimum_kernel", "from_branch", branch): "driver",
        f"drivers/nvlsm.versions.{recipe.nvlsm}": "nvlsm driver",
        f"cuda/repos.{recipe.distro.cuda_repo}": "distro",
        f"cuda/releases.{release}": "cuda",
        _reached("cuda", "cudnn", "from", recipe.cudnn): "cudnn",
        f"distros/distros.{distro}": "distro",
        f"distros/flavors.{recipe.flavor}": "flavors distro",
        f"distros/distros.{distro}.kernels.entries.{kernel and kernel.name}": "kernel distro",
        f"nccl/versions.{recipe.nccl}": "nccl",
        _reached("nccl", "plugin", "from", case.plugin): "ofi_nccl efa",
        f"efa/os.{distro if recipe.efa else None}": "efa",
        f"efa/releases.{recipe.efa}": "efa",
        _reached("efa", "gdr", "driver_branch", recipe.efa and branch): "efa",
        _reached("efa", "minimum_kernel", "installer", recipe.efa): "efa",
        f"services/cloudwatch_agent.builds.{recipe.cloudwatch_agent}": "cloudwatch_agent",
    }
    for name in ("container_toolkit", "dcgm", "dcgm_exporter", "gdrcopy"):
        if getattr(recipe, name):
            used[f"services/{name}"] = name
    known = facts.instances()
    build = [known[name] for name in case.build_types if name in known]
    for kind in (*case.types, *build):
        field = "target_instance_types" if kind in case.types else "instance_type"
        used.setdefault(f"instances/types[{kind.type}]", field)
        used.setdefault(f"instances/gpus.{kind.gpu}", field)
    for kind in case.types:
        gpu = table("drivers")["gpus"].get(kind.gpu, {})
        # Below `first_branch` a rule objects; from `known_from` on the branch lists the GPU.
        first, known_from = gpu.get("first_branch", "9999"), gpu.get("known_from", "9999")
        if versions.at_least(branch, first) and versions.below(branch, known_from):
            used[f"drivers/gpus.{kind.gpu}"] = "driver target_instance_types"
        if kind.mig and recipe.mig_config not in (None, "none", "all-disabled"):
            used["mig/compute_instance_sizes"] = "mig_config target_instance_types"
            used[f"mig/gpus[{kind.gpu}]"] = "mig_config target_instance_types"
    return used


def _reached(file: str, block: str, since: str, version: str | None) -> str:
    """The entry of a list that holds for a version, by the entry's key `since`."""
    entry = versions.last_reached(table(file)[block], since, version or "")
    return f"{file}/{block}[{next(iter(entry.values())) if entry else None}]"


def _unconfirmed(used: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """The used facts that are marked, or in a block that is: the fields, the entry, its source."""
    for path, fields in used.items():
        for marked, source in _marked_facts().items():
            if path == marked or path.startswith((f"{marked}.", f"{marked}[")):
                file, _, inside = path.partition("/")
                yield fields, f"{inside} in kiln/facts/knowledge/{file}.yaml", source


@cache
def _marked_facts() -> dict[str, str]:
    """FILE/PATH of each block with `confirmed: false`, and its source."""
    names = ("drivers", "cuda", "distros", "nccl", "services", "efa", "instances", "mig", "keys")
    return {
        f"{name}/{path}": facts.full_source(source, table(name).get("sources", {}))
        for name in names
        for path, source in _marks(table(name), "", "")
    }


def _marks(here: Any, path: str, source: str) -> Iterator[tuple[str, str]]:
    if isinstance(here, list):
        for entry in here:
            if isinstance(entry, dict):
                # The first value names the entry of a list: types[p2.xlarge].
                yield from _marks(entry, f"{path}[{next(iter(entry.values()))}]", source)
    elif isinstance(here, dict):
        source = str(here.get("source", source))
        if not facts.confirmed(here):
            yield path, source
        for key, value in here.items():
            inside, own = f"{path}.{key}" if path else key, here.get(f"{key}_source", source)
            if here.get(f"{key}_confirmed") is False:
                yield inside, own
            yield from _marks(value, inside, own)


def _unconfirmed_of_components(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """The unconfirmed rows of facts, keys and hashes that the components use."""
    locked = {entry["url"]: entry for entry in packages.read_lock_file()["artifacts"]}
    # Of NVIDIA's repository keys a script uses only that of the distribution's package format.
    other_key = {"al": "nvidia-cuda-deb", "debian": "nvidia-cuda-rpm"}[recipe.distro.family]
    for name in recipe.components:
        try:
            step = components.get(name).for_recipe(recipe)
        except KilnError:  # the row lacks something that the component needs: a rule reports that
            continue
        fields = components.get(name).request_field or ""
        for row in step.rows:
            if not row.confirmed:
                yield fields, f"{row.key} in kiln/facts/knowledge/{row.file}", row.source
        if any(download.env.endswith("_KEY") for download in step.downloads):
            keys = [key for key in step.keys.values() if key != other_key]
            yield from _unconfirmed({f"keys/keys.{key}": fields for key in keys})
        for download in step.downloads:
            entry = locked.get(download.url, {})
            if entry.get("sha256") and not facts.confirmed(entry):
                file = overlay.shown_path(paths.lock_file())
                yield fields, f"the hash of {download.url} in {file}", entry["source"]
