"""What the process that `commands` forks reads once, so that no call of `./invoke` does.

Only what is known by its content, or by a file's path and time: a call that reads something else,
or in another environment, reads it by itself.
"""

from __future__ import annotations

from typing import Any

import boto3

from kiln.base import templates, yaml_files
from kiln.base.paths import KNOWLEDGE, ROOT, lock_file
from kiln.base.yaml_files import load_yaml
from kiln.facts import packages as lock
from kiln.packer import validate
from lab.api import botocore_data

_parse = yaml_files.parse_plain
_parsed: dict[tuple[str, str, bool], Any] = {}


def _parse_plain(text: str, name: str, *, versions_as_text: bool = False) -> Any:
    """Data that was read here is given away: who reads the same text twice may change one."""
    asked = (text, name, versions_as_text)
    if asked in _parsed:
        return _parsed.pop(asked)
    return _parse(text, name, versions_as_text=versions_as_text)


for _path in sorted(KNOWLEDGE.glob("*.yaml")):
    _text = _path.read_text(encoding="utf-8")
    _parsed[_text, _path.name, True] = _parse(_text, _path.name, versions_as_text=True)
yaml_files.parse_plain = _parse_plain
load_yaml(ROOT / "amis.yaml")
lock.read_lock_file(lock_file())
for _path in sorted((ROOT / "packer" / "shared").rglob("*.hcl")):
    validate.read_hcl(_path.read_text(encoding="utf-8"))
for _name in templates.environment().list_templates(["j2"]):
    templates.environment().get_template(_name)
botocore_data.read_once()
for _service in ("ec2", "ssm", "sts"):
    boto3.Session("preloaded", "preloaded", region_name="us-east-1").client(_service)  # type: ignore[call-overload]
