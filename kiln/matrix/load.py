"""`amis.yaml` → recipes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from kiln import components, facts
from kiln.base import overlay
from kiln.base.account import Account
from kiln.base.errors import KilnError
from kiln.base.findings import Finding, Place
from kiln.base.located import Located, load_yaml
from kiln.base.paths import matrix_file
from kiln.base.recipe import Acceptance, Distro, Recipe, Row, SourceAmi, Volume
from kiln.matrix.mistakes import refused
from kiln.matrix.publishing import Publish, without_own_key
from kiln.matrix.references import (
    bad_defaults,
    bad_distros,
    bad_row,
    bad_variant,
    duplicates,
    useless_limits,
)
from kiln.matrix.schema import MatrixModel, VolumeModel
from kiln.matrix.variant import Variant, account_of_defaults
from kiln.matrix.violations import validated
from kiln.telemetry.settings import Telemetry


@dataclass(frozen=True)
class _File:
    """A file of rows; `model` also has the stacks, distros and defaults of the files before it."""

    document: Located
    model: MatrixModel
    written: MatrixModel
    below: tuple[tuple[Located, MatrixModel], ...] = ()

    def variant(self, index: int, flavor: str, arch: str) -> Variant:
        """A row of the file for a flavour and an arch."""
        layers = (*self.below, (self.document, self.written)) if self.below else ()
        return Variant(self.document, self.model, index, flavor, arch, layers)


def load_recipes(path: Path | None = None) -> list[Recipe]:
    """Read the matrix, and those of the overlays, and expand their rows to recipes, in their order.

    Raises KilnError (exit status 2) with one line and one finding per mistake; each line begins
    with file:line:column.
    """
    recipes: list[Recipe] = []
    mistakes: list[Finding] = []
    files = _files(path)
    for file in files:
        of_file, wrong = _expanded(file)
        recipes += of_file
        mistakes += wrong
    mistakes += duplicates(recipes)
    # A row with a mistake is not among the recipes, and may be the one that has the component.
    if not mistakes:
        mistakes += useless_limits([(file.document, file.written) for file in files], recipes)
    if mistakes:
        raise refused(mistakes)
    return recipes


def _files(path: Path | None) -> list[_File]:
    """The matrix, then the `amis.yaml` of each overlay; of a `path` only itself."""
    document = _matrix(path)
    first = validated(document)
    files = [_File(document, first, first)]
    for own in [] if path else overlay.own_files("amis.yaml"):
        document = load_yaml(own, overlay.shown_path(own))
        above, written = files[-1].model, validated(document, needs_stacks=False)
        defaults = {
            name: getattr(written.defaults, name) for name in written.defaults.model_fields_set
        }
        model = written.model_copy(
            update={
                "stacks": {**above.stacks, **written.stacks},
                "distros": {**above.distros, **written.distros},
                "defaults": above.defaults.model_copy(update=defaults),
            }
        )
        below = tuple((file.document, file.written) for file in files)
        files.append(_File(document, model, written, below))
    return files


def _matrix(path: Path | None) -> Located:
    """The YAML of the matrix, or of a `path`; messages name the one of KILN_MATRIX by its path."""
    return load_yaml(path) if path else load_yaml(file := matrix_file(), overlay.shown_path(file))


def _expanded(file: _File) -> tuple[list[Recipe], list[Finding]]:
    """The recipes of a file's rows, and the mistakes in it."""
    document, model = file.document, file.model
    mistakes: list[Finding] = [*bad_distros(document, file.written)]
    # A row cannot be expanded while `defaults` leaves out what it must not.
    of_defaults = bad_defaults(document, file.written)
    mistakes += of_defaults
    recipes: list[Recipe] = []
    for index, row in enumerate(model.amis):
        wrong = bad_row(document, model, index)
        mistakes += wrong
        if wrong or of_defaults:
            continue
        for variant in (
            file.variant(index, flavor, arch) for flavor in row.flavors for arch in row.arches
        ):
            wrong = bad_variant(variant)
            mistakes += wrong
            if not wrong:
                recipes.append(_recipe(variant))
    return recipes, mistakes


def load_publishing(path: Path | None = None) -> dict[str, Publish]:
    """The `publish` settings of each row, by the name of its recipe.

    Raises KilnError (exit status 2) as `load_recipes` does.
    """
    recipes = load_recipes(path)
    files = {file.document.file: file for file in _files(path)}
    settings = {}
    for recipe in recipes:
        file = files[recipe.row.file]
        variant = file.variant(recipe.row.index, recipe.flavor, recipe.arch)
        settings[recipe.name] = variant.publish
    return settings


def sharing_warnings(
    recipes: Iterable[Recipe], publishing: Mapping[str, Publish], *, strict: bool
) -> list[Finding]:
    """Rows whose AMIs EC2 would not share, unless the account's default EBS key is its own; errors
    with `strict`."""
    documents = {file.document.file: file.document for file in _files(None)}
    rows: dict[tuple[Place, tuple[str | None, ...]], list[str]] = {}
    for recipe in recipes:
        lacking = tuple(without_own_key(publishing[recipe.name], recipe.row.account))
        if lacking:
            document = documents[recipe.row.file]
            own = ("amis", recipe.row.index, "publish", "share")
            path = own if own in document.values else ("defaults", "publish", "share")
            rows.setdefault((document.place(path), lacking), []).append(recipe.name)
    return [
        Finding(
            "error" if strict else "warning",
            "SHARE-KEY",
            "`share` needs a KMS key of your own, and there is none in "
            + ", ".join(region or "the region that bakes" for region in lacking),
            why="EC2 shares no AMI that AWS's own EBS key encrypts; a key of yours that is the "
            "account's default there does as well",
            hint="; ".join(
                f"publish.kms_keys: {{{region}: alias/…}}" if region else "aws.kms_key_id: alias/…"
                for region in lacking
            ),
            rows=tuple(names),
            source="https://github.com/hashicorp/packer/issues/7410",
        ).at(place)
        for (place, lacking), names in rows.items()
    ]


def load_account(name: str, path: Path | None = None) -> Account:
    """The `aws` settings of the row of that name; those of `defaults` if there is none.

    Raises KilnError (exit status 2) as `load_recipes` does.
    """
    accounts = {recipe.name: recipe.row.account for recipe in load_recipes(path)}
    return accounts[name] if name in accounts else default_account(path)


def default_account(path: Path | None = None) -> Account:
    """The `aws` settings of `defaults`.

    Raises KilnError (exit status 2) as `load_recipes` does.
    """
    document = _matrix(path)
    return account_of_defaults(document, validated(document), None)


def default_telemetry(path: Path | None = None) -> Telemetry:
    """The `telemetry` settings of `defaults`, with the overlays'.

    Raises KilnError (exit status 2) as `load_recipes` does.
    """
    return _files(path)[-1].model.defaults.telemetry or Telemetry()


def default_publishing() -> Publish:
    """The `publish` settings of `defaults`, with the overlays'.

    Raises KilnError (exit status 2) as `load_recipes` does.
    """
    return _files(None)[-1].model.defaults.publish or Publish()


def default_region() -> str | None:
    """The region that `defaults` sets; None if it sets none, or if the matrix cannot be read."""
    try:
        return default_account().region
    except KilnError:
        return None


def _recipe(variant: Variant) -> Recipe:
    """The recipe of a variant that has no mistakes."""
    row, stack = variant.row, variant.stack
    flavor, arch = variant.flavor, variant.arch
    instance_type = str(variant.per_arch("instance_type"))
    volume = variant.setting("volume") or VolumeModel()
    telemetry = variant.setting("telemetry") or Telemetry()
    without = {*row.without, *variant.model.defaults.without}
    return Recipe(
        name=_name(row.distro, stack, flavor, arch),
        line="-".join([row.distro, row.line or row.stack, flavor, arch]),
        distro=_distro(variant),
        arch=arch,
        flavor=flavor,
        stack=row.stack,
        source_ami=_source_ami(variant),
        **{
            **stack,
            "driver_source": stack["driver_source"] or "repo",
            "imex": bool(stack["imex"]),
        },
        components=components.selected(stack, without, row.distro, arch),
        instance_type=instance_type,
        verify_instance_type=variant.per_arch("verify_instance_type") or instance_type,
        target_instance_types=tuple(variant.setting("target_instance_types")),
        volume=Volume(**volume.model_dump()),
        kubernetes=variant.setting("kubernetes") if flavor == "eks" else None,
        parallelcluster=(
            variant.setting("parallelcluster") if flavor == "parallelcluster" else None
        ),
        telemetry=telemetry.model_dump(mode="json", exclude_unset=True),
        mig_config=variant.setting("mig_config"),
        extended_support=bool(variant.setting("extended_support")),
        row=_row(variant),
    )


_OF_DISTRO = ("name", "family", "package_manager", "ssh_user", "root_device", "cuda_repo")


def _distro(variant: Variant) -> Distro:
    """A known distribution with the matrix's overrides."""
    entry = {key: facts.distro(variant.row.distro)[key] for key in _OF_DISTRO}
    replaced = variant.distro.model_dump(exclude={"parents"}, exclude_unset=True)
    return Distro(id=variant.row.distro, **{**entry, **replaced})


def _source_ami(variant: Variant) -> SourceAmi:
    """How to find the parent AMI, its placeholders filled in."""
    fields = variant.parents[variant.flavor].model_dump(exclude_none=True)
    return SourceAmi(**{key: text.format(**variant.placeholders) for key, text in fields.items()})


def _row(variant: Variant) -> Row:
    line, column = variant.document.mark(variant.path)
    accepted = tuple(
        Acceptance(
            entry.rule,
            entry.reason,
            date.fromisoformat(entry.until),
            variant.document.place((*variant.path, "accept", index)),
        )
        for index, entry in enumerate(variant.row.accept)
    )
    return Row(
        variant.document.file,
        line,
        variant.index,
        column,
        variant.origins,
        accepted,
        variant.account,
    )


def _name(distro: str, stack: dict[str, Any], flavor: str, arch: str) -> str:
    """The AMI's name in the matrix; a run appends its id to make the name unique in EC2."""
    cuda = stack["cuda"]
    parts = [distro, stack["driver"]]
    if stack["kernel_module"] != "proprietary":
        parts.append(stack["kernel_module"])
    if cuda:
        parts.append("cuda" + ".".join(cuda.split(".")[:2]))
    return "-".join([*parts, flavor, arch])
