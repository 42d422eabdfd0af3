"""`amis.yaml`, and those of the overlays → recipes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kiln import components, facts
from kiln.base import overlay
from kiln.base.account import Account, Aws, key_elsewhere
from kiln.base.errors import Finding, KilnError, Place, did_you_mean
from kiln.base.paths import matrix_file
from kiln.base.recipe import Accepted, Recipe, Row, SourceAmi, Stack, Volume
from kiln.base.vocabulary import DEB_ARCH, names_in
from kiln.base.yaml_files import Located, Path_, dotted, invalid, load_yaml, mistake, validated
from kiln.matrix.model import DistroSettings, Matrix, MatrixRow, Settings
from kiln.matrix.publishing import Publish, inconsistent, without_own_key
from kiln.telemetry.settings import Telemetry

# A file of rows, and what it says.
_File = tuple[Located, Matrix]
# What holds for a row, a file's `defaults` first and the row itself last: file, path, values.
_Layer = tuple[Located, Path_, Settings | Stack]
_OF_DISTRO = ("name", "family", "package_manager", "ssh_user", "root_device", "cuda_repo")


def load_recipes(path: Path | None = None) -> list[Recipe]:
    """Read the matrix, and those of the overlays, and expand their rows to recipes, in their order.

    All mistakes are in one error, each with its place.
    """
    return [recipe for recipe, _ in _load(path)]


def load_publishing(path: Path | None = None) -> dict[str, Publish]:
    """The `publish` settings of each row, by the name of its recipe."""
    return {recipe.name: publish for recipe, publish in _load(path)}


def load_account(name: str, path: Path | None = None) -> Account:
    """The `aws` settings of the row of that name; those of `defaults` if there is none."""
    accounts = {recipe.name: recipe.row.account for recipe in load_recipes(path)}
    return accounts[name] if name in accounts else default_account(path)


def default_account(path: Path | None = None) -> Account:
    """The `aws` settings of `defaults`."""
    document, model = _files(path)[0]
    return _with_aws(Account(), (document, ("defaults",), model.defaults), None)


def default_telemetry(path: Path | None = None) -> Telemetry:
    """The `telemetry` settings of `defaults`, with the overlays'."""
    set_ones = [model.defaults.telemetry for _, model in _files(path)]
    return next((settings for settings in reversed(set_ones) if settings), Telemetry())


def default_publishing() -> Publish:
    """The `publish` settings of `defaults`, with the overlays'."""
    return _publish([model.defaults for _, model in _files(None)])


def default_region() -> str | None:
    """The region that `defaults` sets; None if it sets none, or if the matrix cannot be read."""
    try:
        return default_account().region
    except KilnError:
        return None


def sharing_warnings(
    recipes: Iterable[Recipe], publishing: Mapping[str, Publish], *, strict: bool
) -> list[Finding]:
    """Rows whose AMIs EC2 would not share, unless the account's default EBS key is its own; errors
    with `strict`."""
    documents = {document.file: document for document, _ in _files(None)}
    rows: dict[tuple[Place, tuple[str | None, ...]], list[str]] = {}
    for recipe in recipes:
        lacking = tuple(without_own_key(publishing[recipe.name], recipe.row.account))
        if lacking:
            document = documents[recipe.row.file]
            own = ("amis", recipe.row.index, "publish", "share")
            path = own if own in document else ("defaults", "publish", "share")
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


def no_such_component(name: str, recipes: Sequence[Recipe]) -> str:
    """Why a time limit holds for none of the rows, with the components that they have; "" if it
    does."""
    names = dict.fromkeys(component for recipe in recipes for component in recipe.components)
    if name == "all" or name in names:
        return ""
    whose = f"{recipes[0].name} has no" if len(recipes) == 1 else "none of the rows has a"
    return f"{whose} component {name}: {did_you_mean(name, names)}"


def _load(path: Path | None) -> list[tuple[Recipe, Publish]]:
    files = _files(path)
    loaded: list[tuple[Recipe, Publish]] = []
    mistakes = [wrong for file in files for wrong in _bad_names(*file)]
    bad_names = bool(mistakes)
    for number, (_, model) in enumerate(files, 1):
        for index, row in enumerate(model.amis):
            wrong = list(_bad_row(files[:number], index, row))
            mistakes += wrong
            if wrong or bad_names:
                continue
            for flavor in row.flavors:
                for arch in row.arches:
                    variant = _Variant(files[:number], index, row, flavor, arch)
                    wrong = variant.mistakes()
                    mistakes += wrong
                    if not wrong:
                        loaded.append((variant.recipe(), variant.publish))
    recipes = [recipe for recipe, _ in loaded]
    mistakes += _duplicates(recipes)
    # A row with a mistake is not among the recipes, and may be the one that has the component.
    if not mistakes:
        mistakes += _unused_time_limits(files, recipes)
    if mistakes:
        raise invalid(mistakes)
    return loaded


def _files(path: Path | None) -> list[_File]:
    """The matrix, then the `amis.yaml` of each overlay; of a `path` only itself."""
    file = matrix_file()
    document = load_yaml(path) if path else load_yaml(file, overlay.shown_path(file))
    files = [(document, validated(Matrix, document))]
    for own in [] if path else overlay.own_files("amis.yaml"):
        document = load_yaml(own, overlay.shown_path(own))
        data = document.data
        # An overlay needs no stacks of its own.
        data = {"stacks": {}, **data} if isinstance(data, dict) else data
        files.append((document, validated(Matrix, document, data)))
    return files


def _layers(files: Sequence[_File], index: int, row: MatrixRow) -> list[_Layer]:
    """What holds for a row of the last file; a stack of that name in a later file replaces one of
    an earlier file."""
    defaults = [(document, ("defaults",), model.defaults) for document, model in files]
    stacks = [
        (document, ("stacks", row.stack), model.stacks[row.stack])
        for document, model in files
        if row.stack in model.stacks
    ]
    return [*defaults, *stacks[-1:], (files[-1][0], ("amis", index), row)]


def _with_aws(account: Account, layer: _Layer, arch: str | None) -> Account:
    document, path, values = layer
    block: Aws | None = getattr(values, "aws", None)
    return account.with_block(block, lambda key: str(document.place((*path, "aws", *key))), arch)


def _publish(layers: Iterable[Settings | Stack]) -> Publish:
    """The `publish` settings of the layers: a key replaces that key of the layers before it."""
    blocks = [block for layer in layers if (block := getattr(layer, "publish", None))]
    return Publish(**{key: getattr(each, key) for each in blocks for key in each.model_fields_set})


@dataclass(frozen=True)
class _Variant:
    """A row of the last file for one of its flavors and arches."""

    files: Sequence[_File]
    index: int
    row: MatrixRow
    flavor: str
    arch: str

    @property
    def document(self) -> Located:
        """The row's file."""
        return self.files[-1][0]

    @property
    def path(self) -> Path_:
        """Where the row stands."""
        return ("amis", self.index)

    @cached_property
    def layers(self) -> list[_Layer]:
        """What holds for the row."""
        return _layers(self.files, self.index, self.row)

    @cached_property
    def set_at(self) -> dict[str, tuple[Any, Located, Path_]]:
        """Each setting: its value, and the file and path of the closest layer that sets it."""
        return {
            name: (getattr(values, name), document, (*path, name))
            for document, path, values in self.layers
            for name in sorted(values.model_fields_set)
        }

    def get(self, name: str) -> Any:
        """A setting; None if no layer sets it."""
        return self.set_at[name][0] if name in self.set_at else None

    def per_arch(self, name: str) -> tuple[str, Place] | None:
        """A setting that is given per arch, and its place."""
        for document, path, values in reversed(self.layers):
            chosen = getattr(values, name, {}).get(self.arch)
            if chosen:
                return chosen, document.place((*path, name, self.arch))
        return None

    @cached_property
    def distro(self) -> tuple[Located, DistroSettings]:
        """The last overrides for the row's distribution."""
        found = [(each, model.distros.get(self.row.distro)) for each, model in self.files]
        return next(
            ((each, own) for each, own in reversed(found) if own), (self.document, DistroSettings())
        )

    @cached_property
    def parents(self) -> dict[str, SourceAmi]:
        """The distribution's parent AMIs by flavor; those of the matrix override the known."""
        known = facts.distro(self.row.distro)["parents"]
        return {
            **{flavor: SourceAmi(**source) for flavor, source in known.items()},
            **self.distro[1].parents,
        }

    @cached_property
    def publish(self) -> Publish:
        """The `publish` settings."""
        return _publish(values for _, _, values in self.layers)

    @cached_property
    def account(self) -> Account:
        """The `aws` settings."""
        account = Account()
        for layer in self.layers:
            account = _with_aws(account, layer, self.arch)
        return account

    @property
    def placeholders(self) -> dict[str, Any]:
        """What the `{…}` of a parent AMI's name stand for; None if the row does not set it."""
        return {
            "arch": self.arch,
            "deb_arch": DEB_ARCH[self.arch],
            "kubernetes": self.get("kubernetes"),
            "parallelcluster": self.get("parallelcluster"),
        }

    def recipe(self) -> Recipe:
        """The recipe of a variant without mistakes."""
        stack = {name: self.get(name) for name in Stack.model_fields}
        row, override = self.row, self.distro[1]
        bakes, checks = self.per_arch("instance_type"), self.per_arch("verify_instance_type")
        assert bakes  # noqa: S101 - `mistakes` has looked
        known = {key: facts.distro(row.distro)[key] for key in _OF_DISTRO}
        replaced = override.model_dump(exclude={"parents"}, exclude_unset=True)
        source = self.parents[self.flavor].model_dump(exclude_none=True)
        telemetry = self.get("telemetry") or Telemetry()
        without = {name for _, _, values in self.layers for name in getattr(values, "without", ())}
        fields = {
            **stack,
            "name": _name(row.distro, stack, self.flavor, self.arch),
            "line": "-".join([row.distro, row.line or row.stack, self.flavor, self.arch]),
            "distro": {"id": row.distro, **known, **replaced},
            "arch": self.arch,
            "flavor": self.flavor,
            "stack": row.stack,
            "source_ami": {k: text.format(**self.placeholders) for k, text in source.items()},
            "components": components.selected(stack, without, row.distro, self.arch),
            "instance_type": bakes[0],
            "verify_instance_type": (checks or bakes)[0],
            "target_instance_types": self.get("target_instance_types") or (),
            "volume": self.get("volume") or Volume(),
            "kubernetes": self.get("kubernetes") if self.flavor == "eks" else None,
            "parallelcluster": (
                self.get("parallelcluster") if self.flavor == "parallelcluster" else None
            ),
            "telemetry": telemetry.model_dump(mode="json", exclude_unset=True),
            "mig_config": self.get("mig_config"),
            "extended_support": self.get("extended_support"),
            "row": self._row(),
        }
        try:
            return Recipe.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            what = f"{dotted(first['loc'])}: {first['msg'].removeprefix('Value error, ')}"
            raise invalid([mistake(self.document.place(self.path), what)]) from None

    def _row(self) -> Row:
        line, column = self.document.mark(self.path)
        accepted = tuple(
            Accepted(**entry.model_dump(), place=self.document.place((*self.path, "accept", index)))
            for index, entry in enumerate(self.row.accept)
        )
        return Row(
            file=self.document.file,
            line=line,
            index=self.index,
            column=column,
            origins=self._origins(),
            accepted=accepted,
            account=self.account,
        )

    def _origins(self) -> dict[str, Place]:
        """The place in the matrix that sets each field of the recipe."""
        paths: dict[str, tuple[Located, Path_]] = {
            name: (document, path) for name, (_, document, path) in self.set_at.items()
        }
        own, distro = self.document, self.distro[0]
        paths["flavor"] = (own, (*self.path, "flavors", self.row.flavors.index(self.flavor)))
        paths["arch"] = (own, (*self.path, "arches", self.row.arches.index(self.arch)))
        paths["cuda_repo"] = (distro, ("distros", self.row.distro, "cuda_repo"))
        paths["source_ami"] = (distro, ("distros", self.row.distro, "parents", self.flavor))
        origins = {
            name: document.place(path)
            for name, (document, path) in paths.items()
            if path in document
        }
        per_arch = {name: self.per_arch(name) for name in ("instance_type", "verify_instance_type")}
        return {**origins, **{name: found[1] for name, found in per_arch.items() if found}}

    def mistakes(self) -> list[Finding]:
        """Why the variant is not a recipe; the first kind of mistake only."""
        if wrong := self._bad_snapshot():
            return wrong
        row_place = self.document.place(self.path)
        for name in ("driver", "kernel_module"):
            if self.get(name) is None:
                return [mistake(row_place, f"{name} is missing in the row and its stack")]
        if self.flavor not in self.parents:
            what = f"{self.row.distro} has no parent AMI for flavor {self.flavor!r}; it has: "
            place = self.document.place((*self.path, "flavors"))
            return [mistake(place, what + ", ".join(self.parents))]
        if wrong := [*self._bad_publish(), *self._bad_aws()]:
            return wrong
        if self.per_arch("instance_type") is None:
            what = f"no instance_type for {self.arch}: give it in the row or in `defaults`"
            return [mistake(row_place, what)]
        return list(self._bad_placeholders())

    def _bad_snapshot(self) -> list[Finding]:
        """Why the distribution cannot be pinned to the row's snapshot."""
        value, distro = self.get("package_snapshot"), self.row.distro
        if value is None:
            return []
        _, document, path = self.set_at["package_snapshot"]
        service = facts.package_snapshots(distro)
        if service is None:
            names = facts.distro_names(with_parents=True)
            having = ", ".join(name for name in names if facts.package_snapshots(name))
            why = (
                f"no archive keeps old states of the repositories of {distro}, so its packages "
                "cannot be pinned. Remove the key, or give the row `package_snapshot: null`. "
                f"Distributions that have snapshots: {having}."
            )
            return [mistake(document.place(path), f"{dotted(path)}: {why}")]
        refusal = service.refusal(value)
        what = f"{dotted(path)}: {distro}: {refusal}"
        return [mistake(document.place(path), what)] if refusal else []

    def _place_of(self, *path: str | int) -> tuple[Place, str]:
        """Where a path in a block of settings stands: in the row, else in `defaults`."""
        for document, layer, _ in reversed(self.layers):
            if (*layer, *path) in document:
                return document.place((*layer, *path)), dotted((*layer, *path))
        here = (*self.path, path[0])
        return self.document.place(here), dotted(here)

    def _bad_publish(self) -> Iterator[Finding]:
        """What does not fit together in the row's `publish`, where it is set."""
        for path, why in inconsistent(self.publish, self.account.region):
            place, shown = self._place_of("publish", *path)
            yield mistake(place, f"{shown}: {why}")

    def _bad_aws(self) -> Iterator[Finding]:
        """What does not fit together in the row's `aws`, where it is set."""
        account = self.account
        wrong = list(account.conflicts())
        if elsewhere := key_elsewhere(account.kms_key_id, account.region):
            why = f"the key is in {elsewhere}, and the build in {account.region}"
            wrong.append(("kms_key_id", why))
        for name, why in wrong:
            place, shown = self._place_of("aws", name)
            yield mistake(place, f"{shown}: {why}")

    def _bad_placeholders(self) -> Iterator[Finding]:
        """Mistakes in the `{…}` of the parent AMI's name for this row."""
        document, values = self.distro[0], self.placeholders
        for key, text in self.parents[self.flavor].model_dump(exclude_none=True).items():
            path: Path_ = ("distros", self.row.distro, "parents", self.flavor, key)
            known = path in document
            place = document.place(path) if known else self.document.place(self.path)
            try:
                names = names_in(text)
            except ValueError as error:
                yield mistake(place, str(error))
                continue
            for name in names:
                if name not in values:
                    hint = did_you_mean(name, values)
                    yield mistake(place, f"unknown placeholder {{{name}}}: {hint}")
                elif values[name] is None:
                    needs = f"{{{name}}} needs a value, but the row has no `{name}`"
                    yield mistake(place, needs)


def _bad_names(document: Located, model: Matrix) -> Iterator[Finding]:
    """Overrides of unknown distributions, CUDA repositories that NVIDIA does not have, and
    components that `defaults` cannot leave out."""
    repositories = facts.table("cuda")["repos"]
    known = facts.distro_names(with_parents=True)
    for name, override in model.distros.items():
        if name not in known:
            what = f"unknown distribution {name!r}: {did_you_mean(name, known)}"
            yield mistake(document.key_place(("distros", name)), what)
        if override.cuda_repo is not None and override.cuda_repo not in repositories:
            hint = did_you_mean(override.cuda_repo, repositories)
            place = document.place(("distros", name, "cuda_repo"))
            yield mistake(place, f"NVIDIA has no repository {override.cuda_repo!r}: {hint}")
    yield from _bad_without(document, ("defaults",), model.defaults)


def _bad_row(files: Sequence[_File], index: int, row: MatrixRow) -> Iterator[Finding]:
    """A row's unknown distribution, stack, and components to leave out."""
    document, path = files[-1][0], ("amis", index)
    known = {
        "distro": facts.distro_names(with_parents=True),
        "stack": list(dict.fromkeys(name for _, model in files for name in model.stacks)),
    }
    for key, names in known.items():
        name = getattr(row, key)
        if name not in names:
            what = f"stack {name!r} is not among `stacks`"
            if key == "distro":
                what = f"AMI Kiln does not build on distribution {name!r}"
            hint = did_you_mean(name, names)
            yield mistake(document.place((*path, key)), f"{what}: {hint}")
    yield from _bad_without(document, path, row)


def _bad_without(document: Located, path: Path_, settings: Settings) -> Iterator[Finding]:
    names = components.names()
    for index, name in enumerate(settings.without):
        place = document.place((*path, "without", index))
        if name not in names:
            yield mistake(place, f"component {name!r} does not exist: {did_you_mean(name, names)}")
        elif not components.get(name).optional:
            why = f"component {name!r} cannot be left out: the AMI could not be verified"
            yield mistake(place, why)


def _duplicates(recipes: Sequence[Recipe]) -> Iterator[Finding]:
    """Two AMIs of one name, and two different ones that share a line."""
    names: dict[str, Recipe] = {}
    lines: dict[str, Recipe] = {}
    for recipe in recipes:
        twin = names.setdefault(recipe.name, recipe)
        other = lines.setdefault(recipe.line, recipe)
        if twin is not recipe:
            what = (
                f"{recipe.name} exists already ({twin.row.file}:{twin.row.line}): remove one of "
                "the rows, or change its stack"
            )
            yield mistake(recipe.row.place, what)
        elif other is not recipe:
            what = (
                f"{recipe.name} shares the line {recipe.line} with {other.name} ("
                f"{other.row.file}:{other.row.line}): give one of the rows its own `line`, such as "
                f"`line: {recipe.stack}-2`, which replaces the stack in that name"
            )
            yield mistake(recipe.row.place, what)


def _unused_time_limits(files: Sequence[_File], recipes: Sequence[Recipe]) -> Iterator[Finding]:
    """`time_limits` of components that no row has for which they hold. The `defaults` of a file
    hold for its rows and for those of the files after it."""
    names = [document.file for document, _ in files]
    for number, (document, model) in enumerate(files):
        rows = [recipe for recipe in recipes if recipe.row.file in names[number:]]
        own = [recipe for recipe in rows if recipe.row.file == document.file]
        blocks: list[tuple[Path_, Aws | None, list[Recipe]]] = [
            (("defaults", "aws"), model.defaults.aws, rows)
        ]
        blocks += [
            (("amis", index, "aws"), row.aws, [each for each in own if each.row.index == index])
            for index, row in enumerate(model.amis)
        ]
        for path, block, having in blocks:
            for name in block.time_limits if block and having else ():
                if why := no_such_component(name, having):
                    place = (*path, "time_limits", name)
                    yield mistake(document.key_place(place), f"{dotted(place)}: {why}")


def _name(distro: str, stack: Mapping[str, Any], flavor: str, arch: str) -> str:
    """The AMI's name in the matrix; a run appends its id to make the name unique in EC2."""
    parts = [distro, stack["driver"]]
    if stack["kernel_module"] != "proprietary":
        parts.append(stack["kernel_module"])
    if stack["cuda"]:
        parts.append("cuda" + ".".join(stack["cuda"].split(".")[:2]))
    return "-".join([*parts, flavor, arch])
