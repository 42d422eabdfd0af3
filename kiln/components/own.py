"""The components of overlays: `components/NAME.yaml`, or `.py` with a module as in this folder.

A component in YAML has the keys of `_KEYS`; a module (own_module.py) has COMPONENT and AFTER, the
component after which it is baked. What is wrong in either is a KilnError (exit status 2) with the
file and line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from kiln import facts
from kiln.base.errors import KilnError, did_you_mean
from kiln.base.located import Located, Path_, load_yaml
from kiln.base.overlay import overlay_mistake, shown_path
from kiln.base.recipe import Recipe
from kiln.components.component import Component, Download, written_download
from kiln.components.own_checks import refuse_wrong_checks
from kiln.components.own_module import VARIABLE, from_module
from kiln.facts import lab_packages

# After these nothing may be installed: the list of what is on the image is complete.
_LAST = ("version-info", "cleanup", "hygiene")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+_-]*(=[A-Za-z0-9.:~+-]+)?", re.IGNORECASE)


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and bool(value.strip())


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


# Each key of a component in YAML, and whether its value is of the right kind.
_KEYS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "what": (_is_line, "one line: what it puts on the image"),
    "after": (_is_line, "the component after which it is baked"),
    "packages": (
        lambda value: isinstance(value, list | dict),
        "a list of the distribution's packages, or such a list per distribution or family",
    ),
    "env": (_is_mapping, "the script's variables, each with its text"),
    "downloads": (_is_mapping, "the script's downloads, each with its URL"),
    "keys": (_is_mapping, "variables, each with the name of a signing key"),
    "optional": (lambda value: isinstance(value, bool), "true or false"),
    "reboots": (lambda value: isinstance(value, bool), "true or false"),
}
_NEEDED = ("what", "after")


def with_own(
    ours: Mapping[str, Component], folders: Sequence[Path], recipe_fields: Sequence[str]
) -> dict[str, Component]:
    """Our components with those of overlays at their places.

    `recipe_fields` are the names of a recipe's fields.
    Raises KilnError (exit status 2) with the file for a name that exists already, an unknown
    place, an invalid component, and a script that no component runs.
    """
    waiting: dict[str, tuple[Path, Component, str]] = {}
    for folder in folders:
        for path in sorted((folder / "components").glob("*")):
            if path.name.startswith((".", "__")):
                continue
            component, after = _read(path, recipe_fields)
            name = component.name
            if name in ours or name in waiting:
                other = shown_path(waiting[name][0]) if name in waiting else "AMI Kiln itself"
                raise overlay_mistake(path, f"component {name!r} exists already, in {other}")
            waiting[name] = (path, component, after)
        _check_scripts(folder, ours, waiting)
        refuse_wrong_checks(folder)
    if folders:
        # The lab asks for the same later, when it starts.
        distros = facts.table("distros")["distros"]
        lab_packages.overlay_stand_ins([n for n in distros if distros[n].get("family") == "al"])
    return _placed(ours, waiting)


def _placed(
    ours: Mapping[str, Component], waiting: dict[str, tuple[Path, Component, str]]
) -> dict[str, Component]:
    order = list(ours.values())
    left = dict(waiting)
    while left:
        names = [component.name for component in order]
        ready = [name for name, (_, _, after) in left.items() if after in names]
        if not ready:
            path, _, after = next(
                (entry for entry in left.values() if entry[2] not in left),
                next(iter(left.values())),
            )
            what = f"after: {after!r} is not a component that is baked before it"
            hint = did_you_mean(after, names)
            if after in left:
                what = f"after: {after!r} is never baked: components wait for each other"
                hint = "name one that does not wait for this one"
            raise _after_mistake(path, what, hint)
        # The last one first: each goes directly behind, so they are in the order of their names.
        for name in reversed(ready):
            _, component, after = left.pop(name)
            order.insert(names.index(after) + 1, component)
            names.insert(names.index(after) + 1, name)
    return {component.name: component for component in order}


def _check_scripts(
    folder: Path, ours: Mapping[str, Component], all_components: Mapping[str, object]
) -> None:
    """Refuse a provisioner that no component would run."""
    for path in sorted((folder / "provisioners").glob("*")):
        if path.name.startswith(".") or (path.suffix == ".sh" and path.stem in all_components):
            continue
        if path.stem in ours:
            message = f"{path.stem} is a component of AMI Kiln, whose script it cannot replace"
            raise overlay_mistake(
                path, message, "leave it out (`without`), and add one of your own"
            )
        hint = f"it needs components/{path.stem}.yaml; this folder holds provisioners only"
        raise overlay_mistake(path, f"no component runs {path.name}", hint)


def _read(path: Path, recipe_fields: Sequence[str]) -> tuple[Component, str]:
    name = path.stem.replace("_", "-")
    if path.suffix not in (".yaml", ".py") or not _NAME.fullmatch(name):
        raise overlay_mistake(
            path, "a component is NAME.yaml or NAME.py, such as acme-baseline.yaml"
        )
    component, after = (_from_yaml if path.suffix == ".yaml" else from_module)(path, name)
    if component.needs is not None and component.needs not in recipe_fields:
        hint = did_you_mean(component.needs, recipe_fields)
        raise overlay_mistake(path, f"needs: a recipe has no field {component.needs!r}", hint)
    if after in _LAST:
        raise _after_mistake(
            path,
            f"after: nothing is installed after {after}: the list of what is on the image is made",
            "the last place is `after: cloudwatch-agent`",
        )
    return component, after


def _after_mistake(path: Path, message: str, hint: str) -> KilnError:
    """The error for a wrong place of a component, at the line that names it."""
    if path.suffix == ".yaml":
        document = load_yaml(path, shown_path(path))
        line, column = document.mark(("after",))
        return overlay_mistake(path, message, hint, line, column)
    lines = path.read_text(encoding="utf-8").splitlines()
    at = [number for number, line in enumerate(lines, 1) if line.startswith("AFTER")]
    return overlay_mistake(path, message, hint, at[-1] if at else None)


def _from_yaml(path: Path, name: str) -> tuple[Component, str]:
    document = load_yaml(path, shown_path(path))
    data = document.data
    if not isinstance(data, dict):
        raise overlay_mistake(path, f"not a mapping: it needs {' and '.join(_NEEDED)}")
    for key, value in data.items():
        if key not in _KEYS:
            raise _at(document, (key,), f"there is no key {key!r} here", did_you_mean(key, _KEYS))
        fits, words = _KEYS[key]
        if not fits(value):
            raise _at(document, (key,), f"{key} must be {words}")
    for key in _NEEDED:
        if key not in data:
            raise overlay_mistake(path, f"{key} is missing: {_KEYS[key][1]}")
    for key in ("env", "downloads", "keys"):
        for variable, text in data.get(key, {}).items():
            if not isinstance(text, str):
                what = f"{variable} must be text: put it in quotes, or give it a value"
                raise _at(document, (key, variable), what)
            if not VARIABLE.fullmatch(variable):
                what = f"{variable!r} is not a variable such as ACME_SITE"
                raise _at(document, (key, variable), what)
    _check_keys(document)
    packages = _packages(document)
    prefix = name.upper().replace("-", "_")

    def environment(recipe: Recipe) -> dict[str, str]:
        named = _of_distribution(packages, recipe)
        own = {} if packages is None else {f"{prefix}_OS_PACKAGES": " ".join(named)}
        return {**data.get("env", {}), **own}

    def downloads(recipe: Recipe) -> tuple[Download, ...]:
        return tuple(
            written_download(recipe, variable, url, path)
            for variable, url in data.get("downloads", {}).items()
        )

    component = Component(
        name=name,
        what=data["what"],
        optional=data.get("optional", True),
        reboots=data.get("reboots", False),
        keys=data.get("keys", {}),
        environment=environment,
        downloads=downloads,
    )
    return component, str(data["after"])


def _packages(document: Located) -> dict[str, list[str]] | None:
    """Distribution, family or `default` → packages."""
    value = document.data.get("packages")
    if value is None:
        return None
    by_name = value if isinstance(value, dict) else {"default": value}
    valid = ["al", "debian", "default", *facts.distro_names()]
    for name, listed in by_name.items():
        path: Path_ = ("packages", name) if isinstance(value, dict) else ("packages",)
        if name not in valid:
            what = f"{name!r} is not a distribution, family or `default`"
            raise _at(document, path, what, did_you_mean(name, valid))
        if not isinstance(listed, list):
            raise _at(document, path, "must be a list of packages")
        for index, package in enumerate(listed):
            if not isinstance(package, str) or not _PACKAGE.fullmatch(package):
                what = f"{package!r} is not a package such as jq or jq=1.7.1"
                raise _at(document, (*path, index), what)
    return by_name


def _of_distribution(packages: dict[str, list[str]] | None, recipe: Recipe) -> list[str]:
    by_distribution = packages or {}
    for name in (recipe.distro.id, recipe.distro.family, "default"):
        if name in by_distribution:
            return by_distribution[name]
    return []


def _check_keys(document: Located) -> None:
    keys = facts.table("keys")["keys"]
    for variable, name in document.data.get("keys", {}).items():
        if name not in keys:
            what = f"there is no signing key {name!r}"
            hint = f"{did_you_mean(name, keys)}; yours is an entry in facts/keys.yaml"
            raise _at(document, ("keys", variable), what, hint)


def _at(document: Located, path: Path_, message: str, hint: str = "") -> KilnError:
    place = document.key_place(path)
    return KilnError(f"{place}: {message}", hint=hint, place=place)


def recipe_fields() -> list[str]:
    """The fields of a recipe that a component's `needs` may name."""
    return [field.name for field in fields(Recipe)]
