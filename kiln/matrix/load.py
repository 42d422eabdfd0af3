"""`amis.yaml` → recipes."""

from __future__ import annotations

from pathlib import Path
from string import Formatter
from typing import Any

from kiln import components, facts
from kiln.base.errors import KilnError, did_you_mean
from kiln.base.findings import Place
from kiln.base.located import Located, Path_, load
from kiln.base.paths import matrix_file
from kiln.base.recipe import Distro, Recipe, Row, SourceAmi, Volume
from kiln.base.vocabulary import DEB_ARCH
from kiln.facts import table
from kiln.matrix.schema import (
    DistroModel,
    MatrixModel,
    RowModel,
    SourceAmiModel,
    StackFields,
    VolumeModel,
    json_schema,
    validated,
)
from kiln.telemetry.settings import Telemetry

__all__ = ["json_schema", "load_recipes"]


def load_recipes(path: Path | None = None) -> list[Recipe]:
    """Read the matrix and expand its rows to recipes, in their order.

    Raises KilnError (exit status 2) with one line per mistake, each beginning with
    file:line:column.
    """
    path = path or matrix_file()
    document = load(path)
    model = validated(document)
    mistakes = _bad_distros(document, model)
    recipes: list[Recipe] = []
    for index, row in enumerate(model.amis):
        here: Path_ = ("amis", index)
        wrong = _bad_references(document, model, row, here)
        mistakes += wrong
        if not wrong:
            for flavor in row.flavors:
                for arch in row.arches:
                    recipe = _recipe(document, model, row, index, flavor, arch, mistakes)
                    if recipe:
                        recipes.append(recipe)
    mistakes += _duplicates(document, recipes)
    if mistakes:  # rows that share a distro share its mistakes
        raise KilnError("\n".join(dict.fromkeys(mistakes)))
    return recipes


def _bad_distros(document: Located, model: MatrixModel) -> list[str]:
    repositories = table("cuda")["repos"]
    known = facts.distro_names(with_parents=True)
    wrong = []
    for name, override in model.distros.items():
        if name not in known:
            wrong.append(
                f"{document.at_key(('distros', name))}: unknown distribution {name!r}: "
                + did_you_mean(name, known)
                + " A new one is an entry in kiln/facts/knowledge/distros.yaml."
            )
        if override.cuda_repo is not None and override.cuda_repo not in repositories:
            wrong.append(
                f"{document.at(('distros', name, 'cuda_repo'))}: NVIDIA has no repository "
                f"{override.cuda_repo!r}: {did_you_mean(override.cuda_repo, repositories)} A new "
                "one is an entry in kiln/facts/knowledge/cuda.yaml."
            )
    return wrong


def _bad_references(document: Located, model: MatrixModel, row: RowModel, here: Path_) -> list[str]:
    wrong = []
    known_distros = facts.distro_names(with_parents=True)
    if row.distro not in known_distros:
        wrong.append(
            f"{document.at((*here, 'distro'))}: AMI Kiln does not build on distribution "
            f"{row.distro!r}: " + did_you_mean(row.distro, known_distros)
        )
    if row.stack not in model.stacks:
        wrong.append(
            f"{document.at((*here, 'stack'))}: stack {row.stack!r} is not among `stacks`: "
            + did_you_mean(row.stack, model.stacks)
        )
    known = components.names()
    for place, settings in ((here, row), (("defaults",), model.defaults)):
        for index, name in enumerate(settings.without):
            if name not in known:
                wrong.append(
                    f"{document.at((*place, 'without', index))}: component {name!r} does not "
                    "exist: " + did_you_mean(name, known)
                )
            elif not components.get(name).optional:
                wrong.append(
                    f"{document.at((*place, 'without', index))}: component {name!r} cannot be "
                    "left out: the AMI could not be verified"
                )
    return wrong


def _recipe(
    document: Located,
    model: MatrixModel,
    row: RowModel,
    index: int,
    flavor: str,
    arch: str,
    mistakes: list[str],
) -> Recipe | None:
    here: Path_ = ("amis", index)
    override = model.distros.get(row.distro, DistroModel())
    distro = _distro(row.distro, override)
    given = row.model_fields_set
    stack = {
        name: getattr(row if name in given else model.stacks[row.stack], name)
        for name in StackFields.model_fields
    }
    stack["package_snapshot"] = _package_snapshot(model, row)
    wrong = _bad_snapshot(document, model, row, here, stack["package_snapshot"])
    if wrong:
        mistakes += wrong
        return None
    for name in ("driver", "kernel_module"):
        if stack[name] is None:
            mistakes.append(f"{document.at(here)}: {name} is missing in the row and its stack")
            return None
    parents = _parents(row.distro, override)
    source = parents.get(flavor)
    if source is None:
        mistakes.append(
            f"{document.at((*here, 'flavors'))}: {row.distro} has no parent AMI for flavour "
            f"{flavor!r}; it has: {', '.join(parents)}"
        )
        return None

    def setting(name: str) -> Any:
        return getattr(row if name in given else model.defaults, name)

    def per_arch(name: str) -> str | None:
        chosen = getattr(row, name).get(arch) or getattr(model.defaults, name).get(arch)
        return chosen if chosen is None else str(chosen)

    instance_type = per_arch("instance_type")
    if instance_type is None:
        mistakes.append(
            f"{document.at(here)}: no instance_type for {arch}: give it in the row or in `defaults`"
        )
        return None
    values = {
        "arch": arch,
        "deb_arch": DEB_ARCH[arch],
        "kubernetes": setting("kubernetes"),
        "parallelcluster": setting("parallelcluster"),
    }
    wrong = _bad_placeholders(document, here, row.distro, flavor, source, values)
    if wrong:
        mistakes += wrong
        return None
    line, column = document.mark(here)
    volume = setting("volume") or VolumeModel()
    telemetry = setting("telemetry") or Telemetry()
    without = {*row.without, *model.defaults.without}
    return Recipe(
        name=_name(row.distro, stack, flavor, arch),
        line="-".join([row.distro, row.line or row.stack, flavor, arch]),
        distro=distro,
        arch=arch,
        flavor=flavor,
        stack=row.stack,
        source_ami=SourceAmi(
            **{key: value and value.format(**values) for key, value in source.model_dump().items()}
        ),
        **{
            **stack,
            "driver_source": stack["driver_source"] or "repo",
            "imex": bool(stack["imex"]),
        },
        components=components.selected(stack, without, row.distro),
        instance_type=instance_type,
        verify_instance_type=per_arch("verify_instance_type") or instance_type,
        target_instance_types=tuple(setting("target_instance_types")),
        volume=Volume(**volume.model_dump()),
        kubernetes=values["kubernetes"] if flavor == "eks" else None,
        parallelcluster=values["parallelcluster"] if flavor == "parallelcluster" else None,
        telemetry=telemetry.model_dump(mode="json", exclude_unset=True),
        mig_config=setting("mig_config"),
        extended_support=bool(setting("extended_support")),
        row=Row(
            document.file, line, index, column, _origins(document, model, row, here, flavor, arch)
        ),
    )


def _snapshot_path(model: MatrixModel, row: RowModel, here: Path_) -> Path_:
    """Where a row's `package_snapshot` stands: in the row, else its stack, else `defaults`."""
    name = "package_snapshot"
    if name in row.model_fields_set:
        return (*here, name)
    if name in model.stacks[row.stack].model_fields_set:
        return ("stacks", row.stack, name)
    return ("defaults", name)


def _package_snapshot(model: MatrixModel, row: RowModel) -> str | None:
    """The value that stands at `_snapshot_path`."""
    place = _snapshot_path(model, row, ("amis",))[0]
    if place == "amis":
        return row.package_snapshot
    stack = model.stacks[row.stack]
    return stack.package_snapshot if place == "stacks" else model.defaults.package_snapshot


def _bad_snapshot(
    document: Located, model: MatrixModel, row: RowModel, here: Path_, value: str | None
) -> list[str]:
    """Why the distribution cannot be pinned to this snapshot."""
    if value is None:
        return []
    path = _snapshot_path(model, row, here)
    shown = ".".join(map(str, path))
    service = facts.package_snapshots(row.distro)
    if service is None:
        known = facts.distro_names(with_parents=True)
        having = [name for name in known if facts.package_snapshots(name)]
        return [
            f"{document.at(path)}: {shown}: nobody keeps old states of the repositories of "
            f"{row.distro}, so its packages cannot be pinned. Remove the key, or give the row "
            f"`package_snapshot: null`. Distributions that have snapshots: {', '.join(having)}."
        ]
    refusal = service.refusal(value)
    return [f"{document.at(path)}: {shown}: {row.distro}: {refusal}"] if refusal else []


def _distro(name: str, override: DistroModel) -> Distro:
    """A known distribution with the matrix's overrides."""
    replaced = override.model_dump(exclude={"parents"}, exclude_unset=True)
    known = {key: facts.distro(name)[key] for key in _OF_DISTRO}
    return Distro(id=name, **{**known, **replaced})


_OF_DISTRO = ("name", "family", "package_manager", "ssh_user", "root_device", "cuda_repo")


def _parents(name: str, override: DistroModel) -> dict[str, SourceAmiModel]:
    """A distribution's parent AMIs by flavour; those of the matrix override the known ones."""
    known = {
        flavor: SourceAmiModel(**source) for flavor, source in facts.distro(name)["parents"].items()
    }
    return {**known, **override.parents}


def _origins(
    document: Located, model: MatrixModel, row: RowModel, here: Path_, flavor: str, arch: str
) -> dict[str, Place]:
    """The place in the matrix that sets each field of a recipe."""
    stack: Path_ = ("stacks", row.stack)
    shared: Path_ = ("defaults",)
    paths: dict[str, Path_] = {"distro": (*here, "distro"), "stack": (*here, "stack")}
    for name in StackFields.model_fields:
        paths[name] = (*(here if name in row.model_fields_set else stack), name)
    for name in type(model.defaults).model_fields:
        paths[name] = (*(here if name in row.model_fields_set else shared), name)
    paths["package_snapshot"] = _snapshot_path(model, row, here)
    for name in ("instance_type", "verify_instance_type"):
        paths[name] = (*(here if arch in getattr(row, name) else shared), name, arch)
    paths["flavor"] = (*here, "flavors", row.flavors.index(flavor))  # type: ignore[arg-type]
    paths["arch"] = (*here, "arches", row.arches.index(arch))  # type: ignore[arg-type]
    paths["cuda_repo"] = ("distros", row.distro, "cuda_repo")
    paths["source_ami"] = ("distros", row.distro, "parents", flavor)
    return {
        name: Place(document.file, *document.values[path], ".".join(map(str, path)))
        for name, path in paths.items()
        if path in document.values
    }


def _bad_placeholders(
    document: Located,
    here: Path_,
    distro: str,
    flavor: str,
    source: SourceAmiModel,
    values: dict[str, Any],
) -> list[str]:
    """Mistakes in the `{…}` placeholders of a parent AMI's name for this row."""
    wrong = []
    for key, text in source.model_dump(exclude_none=True).items():
        path: Path_ = ("distros", distro, "parents", flavor, key)
        at = document.at(path if path in document.values else here)
        try:
            parts = [part for part in Formatter().parse(text) if part[1] is not None]
        except ValueError as error:
            wrong.append(f"{at}: {text!r}: {error}")
            continue
        names = {str(name) for _, name, _, _ in parts}
        if any(form or conversion for _, _, form, conversion in parts):
            wrong.append(f"{at}: {text!r}: write a placeholder as {{arch}}, without `!` or `:`")
            continue
        for name in sorted(names):
            if name not in values:
                wrong.append(f"{at}: unknown placeholder {{{name}}}: {did_you_mean(name, values)}")
            elif values[name] is None:
                wrong.append(f"{at}: {{{name}}} needs a value, but the row has no `{name}`")
    return wrong


def _name(distro: str, stack: dict[str, Any], flavor: str, arch: str) -> str:
    """The AMI's name in the matrix; a run appends its id to make the name unique in EC2."""
    cuda = stack["cuda"]
    parts = [distro, stack["driver"]]
    if stack["kernel_module"] != "proprietary":
        parts.append(stack["kernel_module"])
    if cuda:
        parts.append("cuda" + ".".join(cuda.split(".")[:2]))
    return "-".join([*parts, flavor, arch])


def _duplicates(document: Located, recipes: list[Recipe]) -> list[str]:
    """Two AMIs of one name, and two different ones that share a line."""
    names: dict[str, Recipe] = {}
    lines: dict[str, Recipe] = {}
    wrong = []
    for recipe in recipes:
        at = document.at(("amis", recipe.row.index))
        twin = names.setdefault(recipe.name, recipe)
        other = lines.setdefault(recipe.line, recipe)
        if twin is not recipe:
            wrong.append(
                f"{at}: {recipe.name} exists already (line {twin.row.line}): remove one of the "
                "rows, or change its stack"
            )
        elif other is not recipe:
            wrong.append(
                f"{at}: {recipe.name} shares the line {recipe.line} with {other.name} (line "
                f"{other.row.line}): give one of the rows its own `line`, such as "
                f"`line: {recipe.stack}-2`, which replaces the stack in that name"
            )
    return wrong
