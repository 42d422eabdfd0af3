"""The one Jinja environment: every text that leaves Kiln is a template in templates/.

A template's name says what it writes. A page (`*.html.j2`) escapes by itself. In HCL
(`*.pkr.hcl.j2`, `*.tf.j2`) every expression ends in `hcl`, `inside` or `comment`, which a test
holds. In YAML and JSON a text goes through `json`, in shell through `quote`. `yaml` writes a
list or mapping as a block.
"""

from __future__ import annotations

import json
import shlex
from functools import cache
from typing import TYPE_CHECKING, Any

from kiln.base import hcl
from kiln.base.paths import TEMPLATES
from kiln.base.yaml_files import as_yaml

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def environment() -> Environment:
    """The environment of all templates; a template's name is its path in templates/."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "hcl": hcl.value,
        "inside": hcl.inside,
        "comment": hcl.comment,
        "json": _json,
        "quote": shlex.quote,
        "yaml": lambda data: as_yaml([], data).rstrip("\n"),
    }
    return made


def render(template: str, /, **values: Any) -> str:
    """The text of a template of templates/, such as `packer/build.pkr.hcl.j2`."""
    return environment().get_template(template).render(values)


def _json(value: Any, indent: int | None = None) -> str:
    """A value as JSON, which is YAML too. Jinja's own `tojson` is for HTML: it escapes more."""
    return json.dumps(value, indent=indent, ensure_ascii=False)
