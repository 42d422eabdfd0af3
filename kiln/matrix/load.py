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
from kiln.base.account import Account, key_elsewhere
from kiln.base.errors import Finding, KilnError, Place, by_cause, did_you_mean
from kiln.base.paths import matrix_file
from kiln.base.recipe import Accepted, Recipe, Row, SourceAmi, Stack, Volume
from kiln.base.vocabulary import DEB_ARCH, names_in
from kiln.base.yaml_files import Located, Path_, dotted, invalid, load_yaml, mistake, validated
from kiln.matrix.model import DistroSettings, Matrix, MatrixRow, Publish, Settings
from kiln.telemetry.settings import Telemetry

# A file of rows, and what it says.
_File = tuple[Located, Matrix]
_OF_DISTRO = ("name", "family", "package_manager", "ssh_user", "root_device", "cuda_repo")


def load_recipes(path: Path | None = None) -> list[Recipe]:
    """Read the matrix, and those of the overlays, and expand their rows to recipes, in their order.

    The mistakes are in one error, each with its place.
    """
    return [recipe for recipe, _ in _load(path)]


def load_publishing() -> dict[str, Publish]:
    """The `publish` settings of each row, by the name of its recipe."""
    return {recipe.name: publish for recipe, publish in _load(None)}


def load_account(name: str) -> Account:
    """The `aws` settings of the row of that name; those of `defaults` if there is none."""
    accounts = {recipe.name: recipe.row.account for recipe in load_recipes()}
    return accounts[name] if name in accounts else default_account()


def default_account() -> Account:
    """The `aws` settings of `defaults`."""
    document, model = _files(None)[0]
    return _with_aws(Account(), _Layer(document, ("defaults",), model.defaults), None)


def default_telemetry() -> Telemetry:
    """The `telemetry` settings of `defaults`, with the overlays'."""
    found = [model.defaults.telemetry for _, model in _files(None) if model.defaults.telemetry]
    return found[-1] if found else Telemetry()


def default_publishing() -> Publish:
    """The `publish` settings of `defaults`, with the overlays'."""
    return _publish(model.defaults for _, model in _files(None))


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
    findings = []
    for recipe in recipes:
        lacking = publishing[recipe.name].regions_without_own_key(recipe.row.account)
        where = ", ".join(region or "the region that bakes" for region in lacking)
        finding = Finding(
            "error" if strict else "warning",
            "SHARE-KEY",
            f"`share` needs a KMS key of your own, and there is none in {where}",
            why="EC2 shares no AMI that AWS's own EBS key encrypts; a key of yours that is the "
            "account's default there does as well",
            hint="name it in aws.kms_key_id, and for each region of a copy in publish.kms_keys",
            rows=(recipe.name,),
            source="https://github.com/hashicorp/packer/issues/7410",
        )
        findings += [finding.at(recipe.row.place_of("publish"))] if lacking else []
    return by_cause(findings)


def unknown_component(name: str) -> str:
    """Return why a time limit is for no component; "" if it is for one."""
    names = components.names()
    if name in ("all", *names):
        return ""
    return f"there is no component {name}: {did_you_mean(name, names)}"


def _load(path: Path | None) -> list[tuple[Recipe, Publish]]:
    files = _files(path)
    _refuse(wrong for number in range(len(files)) for wrong in _bad_names(files[: number + 1]))
    variants = [
        _Variant(files[:number], index, row, flavor, arch)
        for number, (_, model) in enumerate(files, 1)
        for index, row in enumerate(model.amis)
        for flavor in row.flavors
        for arch in row.arches
    ]
    _refuse(wrong for variant in variants for wrong in variant.mistakes())
    loaded = [(variant.recipe(), variant.publish) for variant in variants]
    _refuse(_duplicates([recipe for recipe, _ in loaded]))
    return loaded


def _refuse(mistakes: Iterable[Finding]) -> None:
    if found := list(mistakes):
        raise invalid(found)


def _files(path: Path | None) -> list[_File]:
    """The matrix, then the `amis.yaml` of each overlay; of a `path` only itself."""
    paths = [path] if path else [matrix_file(), *overlay.own_files("amis.yaml")]
    documents = [load_yaml(file, None if path else overlay.shown_path(file)) for file in paths]
    return [(document, validated(Matrix, document)) for document in documents]


@dataclass(frozen=True)
class _Layer:
    """Values that hold for a row, and where they stand: `defaults`, a stack, or the row itself."""

    document: Located
    path: Path_
    values: Any

    def has(self, *path: str | int) -> bool:
        """Return True if the layer sets the value at a path in it."""
        return (*self.path, *path) in self.document

    def place(self, *path: str | int) -> Place:
        """Return the place of the value at a path in it."""
        return self.document.place((*self.path, *path))


def _with_aws(account: Account, layer: _Layer, arch: str | None) -> Account:
    """The settings with the layer's `aws` over them."""
    block = getattr(layer.values, "aws", None)
    return account.with_block(block, lambda key: str(layer.place("aws", *key)), arch)


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

    @cached_property
    def layers(self) -> list[_Layer]:
        """The layers that hold for the row, the row last; of stacks of one name that of the last
        file."""
        name = self.row.stack
        defaults = [_Layer(file, ("defaults",), model.defaults) for file, model in self.files]
        stacks = [
            _Layer(document, ("stacks", name), model.stacks[name])
            for document, model in self.files
            if name in model.stacks
        ]
        return [*defaults, stacks[-1], _Layer(self.files[-1][0], ("amis", self.index), self.row)]

    @cached_property
    def set_by(self) -> dict[str, _Layer]:
        """Each setting, and the closest layer that sets it; one per arch, of this arch."""
        closest = {}
        for layer in self.layers:
            for name in layer.values.model_fields_set:
                if not name.endswith("instance_type") or self.arch in getattr(layer.values, name):
                    closest[name] = layer
        return closest

    def get(self, name: str) -> Any:
        """A setting; None if no layer sets it."""
        if name not in self.set_by:
            return None
        value = getattr(self.set_by[name].values, name)
        return value[self.arch] if name.endswith("instance_type") else value

    @cached_property
    def distro(self) -> _Layer:
        """The overrides for the row's distribution, of the last file that has any."""
        name = self.row.distro
        having = [(document, model) for document, model in self.files if name in model.distros]
        document, model = (having or self.files)[-1]
        return _Layer(document, ("distros", name), model.distros.get(name, DistroSettings()))

    @cached_property
    def parents(self) -> dict[str, SourceAmi]:
        """The distribution's parent AMIs by flavor; those of the matrix override the known."""
        known = facts.distro(self.row.distro)["parents"]
        known = {flavor: SourceAmi(**source) for flavor, source in known.items()}
        return {**known, **self.distro.values.parents}

    @cached_property
    def publish(self) -> Publish:
        """The `publish` settings."""
        return _publish(layer.values for layer in self.layers)

    @cached_property
    def account(self) -> Account:
        """The `aws` settings."""
        account = Account()
        for layer in self.layers:
            account = _with_aws(account, layer, self.arch)
        return account

    @property
    def placeholders(self) -> dict[str, Any]:
        """Values of the `{…}` in a parent AMI's name; None if the row does not set it."""
        return {
            "arch": self.arch,
            "deb_arch": DEB_ARCH[self.arch],
            "kubernetes": self.get("kubernetes"),
            "parallelcluster": self.get("parallelcluster"),
        }

    def recipe(self) -> Recipe:
        """The recipe of a variant without mistakes."""
        row, stack = self.row, {name: self.get(name) for name in Stack.model_fields}
        known = {key: facts.distro(row.distro)[key] for key in _OF_DISTRO}
        replaced = self.distro.values.model_dump(exclude={"parents"}, exclude_unset=True)
        source = self.parents[self.flavor].model_dump(exclude_none=True)
        telemetry = self.get("telemetry") or Telemetry()
        without = {n for layer in self.layers for n in getattr(layer.values, "without", ())}
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
            "instance_type": self.get("instance_type"),
            "verify_instance_type": self.get("verify_instance_type") or self.get("instance_type"),
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
            raise invalid([mistake(self.layers[-1].place(), what)]) from None

    def _row(self) -> Row:
        layer = self.layers[-1]
        line, column = layer.document.mark(layer.path)
        accepted = tuple(
            Accepted(**entry.model_dump(), place=layer.place("accept", index))
            for index, entry in enumerate(self.row.accept)
        )
        return Row(
            file=layer.document.file,
            line=line,
            index=self.index,
            column=column,
            origins=self._origins(),
            accepted=accepted,
            account=self.account,
        )

    def _origins(self) -> dict[str, Place]:
        """The place in the matrix that sets each field of the recipe."""
        row, distro = self.layers[-1], self.distro
        fields: dict[str, tuple[_Layer, tuple[str | int, ...]]] = {
            name: (layer, (name, self.arch) if name.endswith("instance_type") else (name,))
            for name, layer in self.set_by.items()
        }
        fields["flavor"] = (row, ("flavors", self.row.flavors.index(self.flavor)))
        fields["arch"] = (row, ("arches", self.row.arches.index(self.arch)))
        fields["cuda_repo"] = (distro, ("cuda_repo",))
        fields["source_ami"] = (distro, ("parents", self.flavor))
        return {
            name: layer.place(*path) for name, (layer, path) in fields.items() if layer.has(*path)
        }

    def mistakes(self) -> list[Finding]:
        """Return why the variant is not a recipe; the first kind of mistake only."""
        kinds = (self._bad_snapshot, self._conflicts, self._lacking)
        return next((found for kind in kinds if (found := list(kind()))), [])

    def _at(self, path: Path_, why: str) -> Finding:
        """A mistake at a path in the closest layer that has it."""
        layer = next((layer for layer in reversed(self.layers) if layer.has(*path)), None)
        layer = layer or self.layers[-1]
        return mistake(layer.place(*path), f"{dotted((*layer.path, *path))}: {why}")

    def _bad_snapshot(self) -> Iterator[Finding]:
        """Return why the distribution cannot be pinned to the row's snapshot."""
        value, distro = self.get("package_snapshot"), self.row.distro
        if value is None:
            return
        service = facts.package_snapshots(distro)
        if service is None:
            names = facts.distro_names(with_parents=True)
            having = ", ".join(name for name in names if facts.package_snapshots(name))
            why = (
                f"no archive keeps old states of the repositories of {distro}, so its packages "
                "cannot be pinned. Remove the key, or give the row `package_snapshot: null`. "
                f"Distributions that have snapshots: {having}."
            )
            yield self._at(("package_snapshot",), why)
        elif refusal := service.refusal(value):
            yield self._at(("package_snapshot",), f"{distro}: {refusal}")

    def _lacking(self) -> Iterator[Finding]:
        """Yield the values that neither the row nor its stack nor `defaults` has."""
        row = self.layers[-1]
        for name in ("driver", "kernel_module"):
            if self.get(name) is None:
                yield mistake(row.place(), f"{name} is missing in the row and its stack")
        if self.flavor not in self.parents:
            what = f"{self.row.distro} has no parent AMI for flavor {self.flavor!r}; it has: "
            yield mistake(row.place("flavors"), what + ", ".join(self.parents))
            return
        for key, text in self.parents[self.flavor].model_dump(exclude_none=True).items():
            for name in names_in(text):
                if self.placeholders[name] is None:
                    path = ("parents", self.flavor, key)
                    place = self.distro.place(*path) if self.distro.has(*path) else row.place()
                    what = f"{{{name}}} needs a value, but the row has no `{name}`"
                    yield mistake(place, what)
        if self.get("instance_type") is None:
            what = f"no instance_type for {self.arch}: give it in the row or in `defaults`"
            yield mistake(row.place(), what)

    def _conflicts(self) -> Iterator[Finding]:
        """Yield the conflicts in the row's `publish` and `aws`."""
        for path, why in self.publish.conflicts(self.account.region):
            yield self._at(("publish", *path), why)
        for name, why in self.account.conflicts():
            yield self._at(("aws", name), why)
        if elsewhere := key_elsewhere(self.account.kms_key_id, self.account.region):
            why = f"the key is in {elsewhere}, and the build in {self.account.region}"
            yield self._at(("aws", "kms_key_id"), why)


def _bad_names(files: Sequence[_File]) -> Iterator[Finding]:
    """Names in the last file that nothing has: of distributions, stacks, components, NVIDIA's
    repositories."""
    document, model = files[-1]
    repositories = facts.table("cuda")["repos"]
    distros = facts.distro_names(with_parents=True)
    stacks = list(dict.fromkeys(name for _, each in files for name in each.stacks))
    for name, override in model.distros.items():
        if name not in distros:
            what = f"unknown distribution {name!r}: {did_you_mean(name, distros)}"
            yield mistake(document.key_place(("distros", name)), what)
        if override.cuda_repo is not None and override.cuda_repo not in repositories:
            hint = did_you_mean(override.cuda_repo, repositories)
            place = document.place(("distros", name, "cuda_repo"))
            yield mistake(place, f"NVIDIA has no repository {override.cuda_repo!r}: {hint}")
    yield from _bad_components(document, ("defaults",), model.defaults)
    for index, row in enumerate(model.amis):
        if row.distro not in distros:
            hint = did_you_mean(row.distro, distros)
            what = f"AMI Kiln does not build on distribution {row.distro!r}: {hint}"
            yield mistake(document.place(("amis", index, "distro")), what)
        if row.stack not in stacks:
            what = f"stack {row.stack!r} is not among `stacks`: {did_you_mean(row.stack, stacks)}"
            yield mistake(document.place(("amis", index, "stack")), what)
        yield from _bad_components(document, ("amis", index), row)


def _bad_components(document: Located, path: Path_, settings: Settings) -> Iterator[Finding]:
    """Components that settings name and cannot leave out, or that nothing has."""
    names = components.names()
    for index, name in enumerate(settings.without):
        place = document.place((*path, "without", index))
        if name not in names:
            yield mistake(place, f"component {name!r} does not exist: {did_you_mean(name, names)}")
        elif not components.get(name).optional:
            why = f"component {name!r} cannot be left out: the AMI could not be verified"
            yield mistake(place, why)
    for name in settings.aws.time_limits if settings.aws else ():
        if why := unknown_component(name):
            limit = (*path, "aws", "time_limits", name)
            yield mistake(document.key_place(limit), f"{dotted(limit)}: {why}")


def _duplicates(recipes: Iterable[Recipe]) -> Iterator[Finding]:
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


def _name(distro: str, stack: Mapping[str, Any], flavor: str, arch: str) -> str:
    """The AMI's name in the matrix; a run appends its id to make the name unique in EC2."""
    parts = [distro, stack["driver"]]
    if stack["kernel_module"] != "proprietary":
        parts.append(stack["kernel_module"])
    if stack["cuda"]:
        parts.append("cuda" + ".".join(stack["cuda"].split(".")[:2]))
    return "-".join([*parts, flavor, arch])
