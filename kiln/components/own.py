"""The components of overlays: `components/NAME.yaml`, or `.py` with a module as in this folder.

A component in YAML has the keys of `_Own`; a module has COMPONENT and AFTER, the component after
which it is baked. An error in a module's own code is a traceback.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator

from kiln import facts
from kiln.base.account import Block
from kiln.base.errors import did_you_mean
from kiln.base.overlay import overlay_mistake, shown_path
from kiln.base.recipe import Recipe
from kiln.base.yaml_files import load_yaml, validated
from kiln.components.component import Component, Download, written_download
from kiln.facts.models import OwnUrl

# After these nothing may be installed: the list of what is on the image is complete.
_LAST = ("version-info", "cleanup", "hygiene")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_Line = Annotated[str, Field(pattern=r"^\S[^\n]*$")]
_Variable = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
_Package = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+_-]*(=[A-Za-z0-9.:~+-]+)?$")]


def _known_key(name: str) -> str:
    if name not in facts.table("keys")["keys"]:
        raise ValueError(f"there is no signing key {name!r} in facts/keys.yaml")
    return name


class _Own(Block):
    """A component in YAML. `packages` are a list, or lists by distribution, family or `default`."""

    what: _Line
    after: _Line
    packages: dict[str, tuple[_Package, ...]] | None = None
    env: dict[_Variable, str] = {}
    downloads: dict[_Variable, OwnUrl] = {}
    keys: dict[_Variable, Annotated[str, AfterValidator(_known_key)]] = {}
    optional: bool = True
    reboots: bool = False

    @field_validator("packages", mode="before")
    @classmethod
    def _by_distribution(cls, value: Any) -> Any:
        by_name = {"default": value} if isinstance(value, list) else value
        valid = ["al", "debian", "default", *facts.distro_names()]
        for name in by_name if isinstance(by_name, dict) else ():
            if name not in valid:
                raise ValueError(f"{name!r} is no distribution: {did_you_mean(name, valid)}")
        return by_name


def with_own(ours: Mapping[str, Component], folders: Sequence[Path]) -> dict[str, Component]:
    """Return our components with those of overlays at their places."""
    waiting: dict[str, tuple[Path, Component, str]] = {}
    for folder in folders:
        for path in sorted((folder / "components").glob("[!._]*")):
            component, after = _read(path)
            name = component.name
            if name in ours or name in waiting:
                other = shown_path(waiting[name][0]) if name in waiting else "AMI Kiln itself"
                raise overlay_mistake(path, f"component {name!r} exists already, in {other}")
            if after in _LAST:
                what = f"after: nothing is installed after {after}; the last is cloudwatch-agent"
                raise overlay_mistake(path, what, line=_after_line(path))
            waiting[name] = (path, component, after)
        for path in sorted((folder / "provisioners").glob("[!.]*")):
            if path.suffix != ".sh" or path.stem not in waiting:
                hint = f"it needs components/{path.stem}.yaml, and a name that AMI Kiln lacks"
                raise overlay_mistake(path, f"no component runs {path.name}", hint)
    return _placed(ours, waiting)


def _placed(
    ours: Mapping[str, Component], waiting: Mapping[str, tuple[Path, Component, str]]
) -> dict[str, Component]:
    order = list(ours.values())
    left = dict(waiting)
    while left:
        names = [component.name for component in order]
        # The last one first: each goes directly behind, so they are in the order of their names.
        name = next((name for name in reversed(left) if left[name][2] in names), None)
        if name is None:
            path, _, after = next(iter(left.values()))
            what = f"after: {after!r} is not a component that is baked before it"
            raise overlay_mistake(path, what, did_you_mean(after, names), line=_after_line(path))
        _, component, after = left.pop(name)
        order.insert(names.index(after) + 1, component)
    return {component.name: component for component in order}


def _after_line(path: Path) -> int | None:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((n for n, line in enumerate(lines, 1) if line.lower().startswith("after")), None)


def _read(path: Path) -> tuple[Component, str]:
    name = path.stem.replace("_", "-")
    if path.suffix not in (".yaml", ".py") or not _NAME.fullmatch(name):
        what = "a component is NAME.yaml or NAME.py, such as acme-baseline.yaml"
        raise overlay_mistake(path, what)
    if path.suffix == ".yaml":
        return _from_yaml(path, name)
    spec = importlib.util.spec_from_file_location(f"kiln_overlay_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # noqa: S101 - it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    component, after = getattr(module, "COMPONENT", None), getattr(module, "AFTER", None)
    if not isinstance(component, Component) or not isinstance(after, str):
        what = 'it needs COMPONENT = Component(…) and AFTER = "tuning" at its end'
        raise overlay_mistake(path, what)
    return component, after


def _from_yaml(path: Path, name: str) -> tuple[Component, str]:
    own = validated(_Own, load_yaml(path, shown_path(path)))
    prefix = name.upper().replace("-", "_")

    def environment(recipe: Recipe) -> dict[str, str]:
        if own.packages is None:
            return own.env
        names = (recipe.distro.id, recipe.distro.family, "default")
        listed = next((own.packages[each] for each in names if each in own.packages), ())
        return {**own.env, f"{prefix}_OS_PACKAGES": " ".join(listed)}

    def downloads(recipe: Recipe) -> tuple[Download, ...]:
        return tuple(
            written_download(recipe, variable, url) for variable, url in own.downloads.items()
        )

    fields = own.model_dump(include={"what", "optional", "reboots", "keys"})
    component = Component(name=name, environment=environment, downloads=downloads, **fields)
    return component, own.after
