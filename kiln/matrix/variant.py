"""What a row of the matrix, its stack, `defaults` and `distros` set for one flavour and arch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kiln import facts
from kiln.base.account import Account
from kiln.base.findings import Place
from kiln.base.located import Located, Path_
from kiln.base.vocabulary import DEB_ARCH
from kiln.matrix.account import Aws, layered
from kiln.matrix.publishing import Publish
from kiln.matrix.schema import (
    DistroModel,
    MatrixModel,
    RowModel,
    RowSettings,
    SourceAmiModel,
    StackFields,
)


@dataclass(frozen=True)
class Variant:
    """A row for one of its flavours and one of its arches; `index` is the row's place in `amis`.

    `below` are the files whose `defaults` hold where those of this one do not, the first one last
    in rank; `model` has what they say, but not where.
    """

    document: Located
    model: MatrixModel
    index: int
    flavor: str
    arch: str
    below: tuple[tuple[Located, MatrixModel], ...] = ()

    @property
    def row(self) -> RowModel:
        """The row."""
        return self.model.amis[self.index]

    @property
    def path(self) -> Path_:
        """Where the row stands."""
        return ("amis", self.index)

    @property
    def distro(self) -> DistroModel:
        """The matrix's overrides for the row's distribution."""
        return self.model.distros.get(self.row.distro, DistroModel())

    @cached_property
    def parents(self) -> dict[str, SourceAmiModel]:
        """The distribution's parent AMIs by flavour; those of the matrix override the known."""
        sources = facts.distro(self.row.distro)["parents"]
        return {
            **{flavor: SourceAmiModel(**source) for flavor, source in sources.items()},
            **self.distro.parents,
        }

    @cached_property
    def stack(self) -> dict[str, Any]:
        """The fields of the GPU stack: the row's own, otherwise its stack's."""
        fields = {
            name: getattr(self.row if self._in_row(name) else self._stack, name)
            for name in StackFields.model_fields
        }
        fields["package_snapshot"] = self._package_snapshot
        return fields

    def setting(self, name: str) -> Any:
        """A setting of the row, otherwise of `defaults`."""
        return getattr(self.row if self._in_row(name) else self.model.defaults, name)

    @property
    def publish(self) -> Publish:
        """The `publish` settings: a key of the row replaces that key of `defaults`."""
        blocks = (self.model.defaults.publish, self.row.publish)
        fields = [
            {name: getattr(block, name) for name in block.model_fields_set}
            for block in blocks
            if block is not None
        ]
        return Publish(**{name: value for block in fields for name, value in block.items()})

    @cached_property
    def account(self) -> Account:
        """The `aws` settings: those of the row over those of `defaults`."""
        document, below, block, path = self.aws_layers[-1]
        return layered(below, block, _place_in(document, path), self.arch)

    @cached_property
    def aws_layers(self) -> list[tuple[Located, Account, Aws | None, Path_]]:
        """The blocks that make `account`, the row's last: file, the settings below the block, the
        block, its path."""
        layers: list[tuple[Located, Account, Aws | None, Path_]] = []
        settings = Account()
        for document, model in self.below or ((self.document, self.model),):
            layers.append((document, settings, model.defaults.aws, ("defaults", "aws")))
            settings = account_of_defaults(document, model, self.arch, settings)
        return [*layers, (self.document, settings, self.row.aws, (*self.path, "aws"))]

    def per_arch(self, name: str) -> str | None:
        """A setting that is given per arch."""
        chosen = getattr(self.row, name).get(self.arch)
        chosen = chosen or getattr(self.model.defaults, name).get(self.arch)
        return chosen if chosen is None else str(chosen)

    @property
    def placeholders(self) -> dict[str, Any]:
        """What the `{…}` of a parent AMI's name stand for; None if the row does not set it."""
        return {
            "arch": self.arch,
            "deb_arch": DEB_ARCH[self.arch],
            "kubernetes": self.setting("kubernetes"),
            "parallelcluster": self.setting("parallelcluster"),
        }

    @property
    def snapshot_path(self) -> Path_:
        """Where `package_snapshot` stands: in the row, otherwise its stack, otherwise `defaults`.

        It is the one field that both a stack and `defaults` have.
        """
        name = "package_snapshot"
        if self._in_row(name):
            return (*self.path, name)
        if name in self._stack.model_fields_set:
            return ("stacks", self.row.stack, name)
        return ("defaults", name)

    @property
    def origins(self) -> dict[str, Place]:
        """The place in the matrix that sets each field of the recipe."""
        paths: dict[str, Path_] = {name: (*self.path, name) for name in ("distro", "stack")}
        for name in StackFields.model_fields:
            paths[name] = (*(self.path if self._in_row(name) else ("stacks", self.row.stack)), name)
        for name in RowSettings.model_fields:
            paths[name] = (*(self.path if self._in_row(name) else ("defaults",)), name)
        paths["package_snapshot"] = self.snapshot_path
        for name in ("instance_type", "verify_instance_type"):
            own = self.arch in getattr(self.row, name)
            paths[name] = (*(self.path if own else ("defaults",)), name, self.arch)
        flavors, arches = list[str](self.row.flavors), list[str](self.row.arches)
        paths["flavor"] = (*self.path, "flavors", flavors.index(self.flavor))
        paths["arch"] = (*self.path, "arches", arches.index(self.arch))
        paths["cuda_repo"] = ("distros", self.row.distro, "cuda_repo")
        paths["source_ami"] = ("distros", self.row.distro, "parents", self.flavor)
        return {
            name: self.document.place(path)
            for name, path in paths.items()
            if path in self.document.values
        }

    @property
    def _stack(self) -> StackFields:
        return self.model.stacks[self.row.stack]

    @property
    def _package_snapshot(self) -> str | None:
        """The value at `snapshot_path`."""
        place = self.snapshot_path[0]
        if place == "amis":
            return self.row.package_snapshot
        return (self._stack if place == "stacks" else self.model.defaults).package_snapshot

    def _in_row(self, name: str) -> bool:
        return name in self.row.model_fields_set


def account_of_defaults(
    document: Located, model: MatrixModel, arch: str | None, under: Account | None = None
) -> Account:
    """The `aws` settings of `defaults`, over those of another file (`under`)."""
    origin = _place_in(document, ("defaults", "aws"))
    return layered(under or Account(), model.defaults.aws, origin, arch)


def _place_in(document: Located, within: Path_) -> Callable[[tuple[str, ...]], str]:
    """Where a key of a block stands, as file:line:column."""
    return lambda path: document.at((*within, *path))
