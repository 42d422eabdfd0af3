"""What can be baked in: `knowledge/components.yaml`, one entry per provisioner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from kiln.base.errors import KilnError
from kiln.base.paths import KNOWLEDGE

if TYPE_CHECKING:
    from jinja2 import Environment, Template

    from kiln.base.recipe import Recipe


@dataclass(frozen=True)
class Download:
    """A file the provisioner fetches: `<env>_URL` and `<env>_SHA256` in its environment.

    `version` where the recipe has no field for it; the script then gets `<env>_VERSION` too.
    `sha256` where somebody has published it, with that `source`; `confirmed` is false where that
    source does not show it to whoever opens it.
    """

    env: str
    url: str
    version: str = ""
    sha256: str = ""
    source: str = ""
    confirmed: bool = True


@dataclass(frozen=True)
class Component:
    """One provisioner: `provisioners/<name>.sh`, checked by `tests/ami/test_<name>.py`.

    `needs` names the recipe field without which the component is not baked in; `lacks` maps a
    distribution that has no such thing to the reason. The values of `env` and `files` (path on
    the image → text), the URLs and versions of `downloads` are Jinja expressions over `recipe`;
    `keys` maps an environment variable to the name of a signing key in `knowledge/keys.yaml`.
    """

    name: str
    what: str
    needs: str | None
    optional: bool
    reboots: bool
    env: dict[str, str]
    downloads: tuple[Download, ...]
    keys: dict[str, str]
    lacks: dict[str, str]
    files: dict[str, str]

    def for_recipe(self, recipe: Recipe) -> Component:
        """The component with its expressions filled in; a URL or a file that renders empty is
        left out.

        Raises KilnError when an expression names something a recipe does not have.
        """
        downloads = []
        for download in self.downloads:
            version = self._filled(download.version, recipe)
            if url := self._filled(download.url, recipe, version=version):
                sha256 = self._filled(download.sha256, recipe, version=version)
                downloads.append(replace(download, url=url, version=version, sha256=sha256))
        files = {path: self._filled(text, recipe) for path, text in self.files.items()}
        return replace(
            self,
            env={name: self._filled(text, recipe) for name, text in self.env.items()},
            downloads=tuple(downloads),
            files={path: text + "\n" for path, text in files.items() if text},
        )

    def _filled(self, text: str, recipe: Recipe, **known: str) -> str:
        from jinja2 import TemplateError

        try:
            return _template(text).render(recipe=recipe, **known).strip()
        except TemplateError as error:
            raise KilnError(
                f"kiln/facts/knowledge/components.yaml: component {self.name!r}: {text!r} cannot "
                f"be filled in for {recipe.name}: {error}",
                hint="its expressions may use the fields of kiln/base/recipe.py's Recipe only",
            ) from None


@cache
def _template(text: str) -> Template:
    """Compiled once: `check` fills a component in for many recipes."""
    return _jinja().from_string(text)


@cache
def _jinja() -> Environment:
    from jinja2 import Environment, StrictUndefined

    # The texts are URLs and versions in a file of ours, not HTML.
    return Environment(undefined=StrictUndefined, autoescape=False)  # noqa: S701


@cache
def everything() -> tuple[Component, ...]:
    """All components in the order in which they are baked."""
    data = yaml.safe_load((KNOWLEDGE / "components.yaml").read_text())
    return tuple(
        Component(
            name=entry["name"],
            what=entry["what"],
            needs=entry.get("needs"),
            optional=entry.get("optional", True),
            reboots=entry.get("reboots", False),
            env=entry.get("env", {}),
            downloads=tuple(Download(**item) for item in entry.get("downloads", [])),
            keys=_merged(entry.get("keys", {})),
            lacks=entry.get("lacks", {}),
            files=entry.get("files", {}),
        )
        for entry in data["components"]
    )


def _merged(keys: dict[str, str] | list[dict[str, str]]) -> dict[str, str]:
    """`keys` as one mapping; YAML may also write it as a list of one-key mappings."""
    return keys if isinstance(keys, dict) else {k: v for item in keys for k, v in item.items()}


def names() -> list[str]:
    """The names of all components, in bake order."""
    return [component.name for component in everything()]


def get(name: str) -> Component:
    """The component of that name; KeyError when there is none."""
    return {component.name: component for component in everything()}[name]


def selected(stack: Mapping[str, Any], without: set[str], distro: str) -> tuple[str, ...]:
    """The components a GPU stack asks for and a distribution has, less those a row leaves out,
    in bake order."""
    return tuple(
        component.name
        for component in everything()
        if component.name not in without
        and distro not in component.lacks
        and (component.needs is None or stack.get(component.needs))
    )
