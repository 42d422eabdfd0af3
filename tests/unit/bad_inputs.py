"""Files and environment of the rows of bad_inputs.yaml, which one table test walks."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from kiln.base.paths import ROOT
from tests.unit.commands import invoke

FOLDER = ROOT / "tests" / "unit" / "bad_inputs"


@cache
def rows() -> dict[str, dict[str, Any]]:
    """Return name → row; what a row may have stands at the top of the file."""
    loaded: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "table.yaml").read_text())
    return loaded


def run(row: Mapping[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the row's command with its files in `folder`, without AWS configuration or lab."""
    base: dict[str, Any] = {name: {"from": name} for name in ("amis.yaml", "amis.lock.yaml")}
    for name, content in {**base, **row.get("files", {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content == "a folder":
            path.mkdir()
        else:
            path.write_bytes(_content(content))
    command = row["command"].replace("{folder}", str(folder))
    return invoke(*shlex.split(command), env=_environment(row, folder))


def _environment(row: Mapping[str, Any], folder: Path) -> dict[str, str]:
    own = {name: text.replace("{folder}", str(folder)) for name, text in row.get("env", {}).items()}
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(folder),
        "TERM": "dumb",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": f"{folder}/aws/config",
        "AWS_SHARED_CREDENTIALS_FILE": f"{folder}/aws/credentials",
        "KILN_BUILD_DIR": f"{folder}/build",
        "KILN_PACKER_DIR": f"{folder}/packer",
        "KILN_LAB_STATE": f"{folder}/lab",
        "KILN_MATRIX": f"{folder}/amis.yaml",
        "KILN_LOCK": f"{folder}/amis.lock.yaml",
        **own,
    }


def _content(content: Any) -> bytes:
    if isinstance(content, (str, bytes)):
        return content.encode() if isinstance(content, str) else content
    text: str = (FOLDER / content["from"]).read_text(encoding="utf-8")
    for old, new in content.get("replace", {}).items():
        assert old in text, f"{content['from']} has no {old!r}"
        text = text.replace(old, new)
    if "set" in content:
        data = json.loads(text)
        for where, value in content["set"].items():
            *parents, last = where.split(".")
            place = data
            for key in parents:
                place = place[int(key) if key.isdigit() else key]
            place[last] = value
        text = json.dumps(data)
    return (text + str(content.get("append", ""))).encode()
