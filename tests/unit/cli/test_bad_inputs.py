"""Bad input from a user: one message, its exit status, no traceback, no control character.

One row of bad_inputs/table.yaml each; what a row may have stands at the top of that file.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.conftest import Done

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).with_name("bad_inputs")
ROWS: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "table.yaml").read_text())
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("name", ROWS)
def test_bad_input_ends_with_its_message(
    name: str, tmp_path: Path, run: Callable[..., Done]
) -> None:
    row = ROWS[name]
    base: dict[str, Any] = {each: {"from": each} for each in ("amis.yaml", "amis.lock.yaml")}
    for file, content in {**base, **row.get("files", {})}.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if content == "a folder":
            path.mkdir()
        else:
            path.write_bytes(content_of(content))
    environment = {
        "TERM": "dumb",
        "KILN_PACKER_DIR": "{folder}/packer",
        "KILN_MATRIX": "{folder}/amis.yaml",
        "KILN_LOCK": "{folder}/amis.lock.yaml",
        **row.get("env", {}),
    }
    given = {key: text.replace("{folder}", str(tmp_path)) for key, text in environment.items()}
    words = shlex.split(row["command"].replace("{folder}", str(tmp_path)))
    status, out, err = run(*words, **given)
    assert status == row.get("exit", 2), out + err
    assert row.get("says", "") in (out + err).replace(str(tmp_path), "{folder}")
    assert not CONTROL.search(out + err)


def content_of(content: Any) -> bytes:
    if isinstance(content, (str, bytes)):
        return content.encode() if isinstance(content, str) else content
    text: str = (FOLDER / content["from"]).read_text(encoding="utf-8")
    for old, new in content.get("replace", {}).items():
        assert old in text, f"{content['from']} has no {old!r}"
        text = text.replace(old, new)
    data = json.loads(text) if "set" in content else None
    for where, value in content.get("set", {}).items():
        *parents, last = where.split(".")
        place = data
        for key in parents:
            place = place[int(key) if key.isdigit() else key]
        place[last] = value
    return ((json.dumps(data) if data else text) + content.get("append", "")).encode()
