"""Mistakes in a matrix that fits its schema: what a row refers to must exist, be complete and be
unambiguous."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kiln import components, facts
from kiln.base.errors import did_you_mean
from kiln.base.findings import Finding, Place
from kiln.base.located import Located, Path_, dotted
from kiln.base.placeholders import names_in
from kiln.base.recipe import Recipe
from kiln.facts import table
from kiln.matrix.account import Aws, empty_lists, key_elsewhere, unfit
from kiln.matrix.mistakes import mistake
from kiln.matrix.publishing import inconsistent
from kiln.matrix.schema import MatrixModel, RowSettings, SourceAmiModel
from kiln.matrix.variant import Variant


def bad_distros(document: Located, model: MatrixModel) -> Iterator[Finding]:
    """Overrides of unknown distributions, and CUDA repositories that NVIDIA does not have."""
    repositories = table("cuda")["repos"]
    distros = facts.distro_names(with_parents=True)
    for name, override in model.distros.items():
        if name not in distros:
            yield mistake(
                document.key_place(("distros", name)),
                f"unknown distribution {name!r}: {did_you_mean(name, distros)} A new one is an "
                "entry in kiln/facts/knowledge/distros.yaml.",
            )
        if override.cuda_repo is not None and override.cuda_repo not in repositories:
            yield mistake(
                document.place(("distros", name, "cuda_repo")),
                f"NVIDIA has no repository {override.cuda_repo!r}: "
                f"{did_you_mean(override.cuda_repo, repositories)} A new one is an entry in "
                "kiln/facts/knowledge/cuda.yaml.",
            )


def bad_defaults(document: Located, model: MatrixModel) -> list[Finding]:
    """Components that `defaults` cannot leave out."""
    return list(_bad_without(document, ("defaults",), model.defaults))


def bad_row(document: Located, model: MatrixModel, index: int) -> list[Finding]:
    """A row's unknown distribution, stack, and components to leave out."""
    row, path = model.amis[index], ("amis", index)
    known_distros = facts.distro_names(with_parents=True)
    wrong = []
    if row.distro not in known_distros:
        wrong.append(
            mistake(
                document.place((*path, "distro")),
                f"AMI Kiln does not build on distribution {row.distro!r}: "
                + did_you_mean(row.distro, known_distros),
            )
        )
    if row.stack not in model.stacks:
        wrong.append(
            mistake(
                document.place((*path, "stack")),
                f"stack {row.stack!r} is not among `stacks`: "
                + did_you_mean(row.stack, model.stacks),
            )
        )
    return [*wrong, *_bad_without(document, path, row)]


def _bad_without(document: Located, path: Path_, settings: RowSettings) -> Iterator[Finding]:
    component_names = components.names()
    for index, name in enumerate(settings.without):
        place = document.place((*path, "without", index))
        if name not in component_names:
            yield mistake(
                place, f"component {name!r} does not exist: {did_you_mean(name, component_names)}"
            )
        elif not components.get(name).optional:
            yield mistake(
                place, f"component {name!r} cannot be left out: the AMI could not be verified"
            )


def bad_variant(variant: Variant) -> list[Finding]:
    """Why a row for a flavour and an arch is not a recipe; the first kind of mistake only."""
    wrong = _bad_snapshot(variant)
    if wrong:
        return wrong
    row_place = variant.document.place(variant.path)
    for name in ("driver", "kernel_module"):
        if variant.stack[name] is None:
            return [mistake(row_place, f"{name} is missing in the row and its stack")]
    parents = variant.parents
    if variant.flavor not in parents:
        return [
            mistake(
                variant.document.place((*variant.path, "flavors")),
                f"{variant.row.distro} has no parent AMI for flavour {variant.flavor!r}; it has: "
                + ", ".join(parents),
            )
        ]
    wrong = [*bad_publish(variant), *_bad_aws(variant)]
    if wrong:
        return wrong
    if variant.per_arch("instance_type") is None:
        return [
            mistake(
                row_place,
                f"no instance_type for {variant.arch}: give it in the row or in `defaults`",
            )
        ]
    return _bad_placeholders(variant, parents[variant.flavor])


def _bad_snapshot(variant: Variant) -> list[Finding]:
    """Why the distribution cannot be pinned to the row's snapshot."""
    value, distro = variant.stack["package_snapshot"], variant.row.distro
    if value is None:
        return []
    path = variant.snapshot_path
    place, shown = variant.document.place(path), dotted(path)
    service = facts.package_snapshots(distro)
    if service is None:
        distros = facts.distro_names(with_parents=True)
        having = [name for name in distros if facts.package_snapshots(name)]
        return [
            mistake(
                place,
                f"{shown}: no archive keeps old states of the repositories of {distro}, so its "
                "packages cannot be pinned. Remove the key, or give the row "
                "`package_snapshot: null`. Distributions that have snapshots: "
                f"{', '.join(having)}.",
            )
        ]
    refusal = service.refusal(value)
    return [mistake(place, f"{shown}: {distro}: {refusal}")] if refusal else []


def bad_publish(variant: Variant) -> Iterator[Finding]:
    """What does not fit together in a row's `publish`, where it is set."""
    for path, why in inconsistent(variant.publish, variant.account.region):
        own = (*variant.path, "publish", *path)
        place = own if own in variant.document.values else ("defaults", "publish", *path)
        if place not in variant.document.values:
            place = (*variant.path, "publish")
        yield mistake(variant.document.place(place), f"{dotted(place)}: {why}")


def _bad_aws(variant: Variant) -> Iterator[Finding]:
    """What does not fit together in a row's `aws`, where it is set, and what is empty there."""
    for document, below, block, path in variant.aws_layers:
        for within, why in empty_lists(below, block, variant.arch):
            place = (*path, *within)
            yield mistake(document.place(place), f"{dotted(place)} {why}")
    account = variant.account
    elsewhere = key_elsewhere(account.kms_key_id, account.region)
    why_not = f"the key is in {elsewhere}, and the build in {account.region}"
    wrong_key = [("kms_key_id", why_not)] if elsewhere else []
    for name, why in (*unfit(account), *wrong_key):
        own = (*variant.path, "aws", name)
        place = own if own in variant.document.values else ("defaults", "aws", name)
        yield mistake(variant.document.place(place), f"{dotted(place)}: {why}")


def _bad_placeholders(variant: Variant, source: SourceAmiModel) -> list[Finding]:
    """Mistakes in the `{…}` of a parent AMI's name for this row."""
    document, wrong = variant.document, []
    for key, text in source.model_dump(exclude_none=True).items():
        path: Path_ = ("distros", variant.row.distro, "parents", variant.flavor, key)
        place = document.place(path if path in document.values else variant.path)
        wrong += _bad_text(place, text, variant.placeholders)
    return wrong


def _bad_text(place: Place, text: str, values: dict[str, Any]) -> list[Finding]:
    try:
        names = names_in(text)
    except ValueError as error:
        return [mistake(place, str(error))]
    wrong = []
    for name in names:
        if name not in values:
            hint = did_you_mean(name, values)
            wrong.append(mistake(place, f"unknown placeholder {{{name}}}: {hint}"))
        elif values[name] is None:
            needs = f"{{{name}}} needs a value, but the row has no `{name}`"
            wrong.append(mistake(place, needs))
    return wrong


def duplicates(recipes: Sequence[Recipe]) -> Iterator[Finding]:
    """Two AMIs of one name, and two different ones that share a line."""
    names: dict[str, Recipe] = {}
    lines: dict[str, Recipe] = {}
    for recipe in recipes:
        place = recipe.row.place
        twin = names.setdefault(recipe.name, recipe)
        other = lines.setdefault(recipe.line, recipe)
        if twin is not recipe:
            yield mistake(
                place,
                f"{recipe.name} exists already ({_line(twin, recipe)}): remove one of the rows, or "
                "change its stack",
            )
        elif other is not recipe:
            yield mistake(
                place,
                f"{recipe.name} shares the line {recipe.line} with {other.name} ("
                f"{_line(other, recipe)}): give one of the rows its own `line`, such as "
                f"`line: {recipe.stack}-2`, which replaces the stack in that name",
            )


def useless_limits(
    files: Sequence[tuple[Located, MatrixModel]], recipes: Sequence[Recipe]
) -> Iterator[Finding]:
    """`time_limits` of components that no row has for which they hold. The `defaults` of a file
    hold for its rows and for those of the files after it."""
    names = [document.file for document, _ in files]
    for number, (document, model) in enumerate(files):
        rows = [recipe for recipe in recipes if recipe.row.file in names[number:]]
        blocks: list[tuple[Path_, Aws | None, list[Recipe]]] = [
            (("defaults", "aws"), model.defaults.aws, rows)
        ]
        blocks += [
            (
                ("amis", index, "aws"),
                row.aws,
                [own for own in rows if (own.row.file, own.row.index) == (document.file, index)],
            )
            for index, row in enumerate(model.amis)
        ]
        for path, block, having in blocks:
            for name in block.time_limits if block and having else ():
                if why := no_such_component(name, having):
                    place = (*path, "time_limits", name)
                    yield mistake(document.key_place(place), f"{dotted(place)}: {why}")


def no_such_component(name: str, recipes: Sequence[Recipe]) -> str:
    """Why a time limit holds for none of the rows, with the components that they have; "" if it
    does."""
    component_names = dict.fromkeys(
        component for recipe in recipes for component in recipe.components
    )
    if name == "all" or name in component_names:
        return ""
    whose = recipes[0].name if len(recipes) == 1 else "none of the rows"
    has = "has no" if len(recipes) == 1 else "has a"
    return f"{whose} {has} component {name}: {did_you_mean(name, component_names)}"


def _line(other: Recipe, seen_from: Recipe) -> str:
    """Where another row stands: its line, with the file if that is another one."""
    line = f"line {other.row.line}"
    return line if other.row.file == seen_from.row.file else f"{other.row.file}, {line}"
