"""What can be baked in: `knowledge/components.yaml`, one entry per provisioner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from kiln.errors import KilnError
from kiln.paths import KNOWLEDGE

if TYPE_CHECKING:
    from jinja2 import Environment, Template

    from kiln.recipe import Recipe


@dataclass(frozen=True)
class Download:
    """A file the provisioner fetches: `<env>_URL` and `<env>_SHA256` in its environment."""

    env: str
    url: str


@dataclass(frozen=True)
class Component:
    """One provisioner: `provisioners/<name>.sh`, checked by `tests/ami/test_<name>.py`.

    `needs` names the recipe field without which the component is not baked in. The values of
    `env` and the URLs of `downloads` are Jinja expressions over `recipe`; `keys` maps an
    environment variable to the name of a signing key in `knowledge/keys.yaml`.
    """

    name: str
    what: str
    needs: str | None
    optional: bool
    reboots: bool
    env: dict[str, str]
    downloads: tuple[Download, ...]
    keys: dict[str, str]

    def for_recipe(self, recipe: Recipe) -> Component:
        """The component with its environment and URLs filled in; what renders empty is left out.

        Raises KilnError when an expression names something a recipe does not have.
        """
        return Component(
            name=self.name,
            what=self.what,
            needs=self.needs,
            optional=self.optional,
            reboots=self.reboots,
            env={name: self._filled(text, recipe) for name, text in self.env.items()},
            downloads=tuple(
                Download(download.env, url)
                for download in self.downloads
                if (url := self._filled(download.url, recipe))
            ),
            keys=self.keys,
        )

    def _filled(self, text: str, recipe: Recipe) -> str:
        from jinja2 import TemplateError

        try:
            return _template(text).render(recipe=recipe).strip()
        except TemplateError as error:
            raise KilnError(
                f"kiln/knowledge/components.yaml: component {self.name!r}: {text!r} cannot be "
                f"filled in for {recipe.name}: {error}",
                hint="its expressions may use the fields of kiln/recipe.py's Recipe only",
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


def selected(stack: Mapping[str, Any], without: set[str]) -> tuple[str, ...]:
    """The components a GPU stack asks for, less those a row leaves out, in bake order."""
    return tuple(
        component.name
        for component in everything()
        if component.name not in without and (component.needs is None or stack.get(component.needs))
    )
