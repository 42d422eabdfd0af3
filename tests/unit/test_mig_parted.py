"""What a MIG file may say, judged by NVIDIA's own nvidia-mig-parted where it is on PATH.

It is https://github.com/NVIDIA/mig-parted at the tag v0.15.0 (MIG_PARTED), built by
`go build ./cmd/nvidia-mig-parted`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kiln.base.paths import ROOT
from kiln.base.runtime_import import runtime_module

config = runtime_module("gpu_mig.config")
MigError = runtime_module("gpu_mig.errors").MigError
PROGRAM = shutil.which("nvidia-mig-parted")
MIG_PARTED = "0.15.0"

HEAD = "version: v1\nmig-configs:\n  a:\n"
MADE = '  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
OFF = "  - devices: all\n    mig-enabled: false\n"
FILES = {
    "plain": HEAD + MADE,
    "null devices": HEAD + ("  - devices: all\n    mig-enabled: true\n    mig-devices:\n"),
    "null word": HEAD + ("  - devices: all\n    mig-enabled: true\n    mig-devices: null\n"),
    "tilde": HEAD + ("  - devices: all\n    mig-enabled: true\n    mig-devices: ~\n"),
    "disabled null": HEAD + OFF + "    mig-devices:\n",
    "disabled {}": HEAD + OFF + "    mig-devices: {}\n",
    "enabled {}": HEAD + ("  - devices: all\n    mig-enabled: true\n    mig-devices: {}\n"),
    "True": HEAD + ('  - devices: all\n    mig-enabled: True\n    mig-devices: {"1g.5gb": 1}\n'),
    "TRUE": HEAD + ('  - devices: all\n    mig-enabled: TRUE\n    mig-devices: {"1g.5gb": 1}\n'),
    "FALSE": HEAD + "  - devices: all\n    mig-enabled: FALSE\n",
    "tRue": HEAD + ('  - devices: all\n    mig-enabled: tRue\n    mig-devices: {"1g.5gb": 1}\n'),
    "yes": HEAD + ('  - devices: all\n    mig-enabled: yes\n    mig-devices: {"1g.5gb": 1}\n'),
    "on": HEAD + ('  - devices: all\n    mig-enabled: on\n    mig-devices: {"1g.5gb": 1}\n'),
    "quoted true": HEAD
    + ('  - devices: all\n    mig-enabled: "true"\n    mig-devices: {"1g.5gb": 1}\n'),
    "bom": "\ufeff" + HEAD + MADE,
    "bom mid": HEAD
    + ('\ufeff  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'),
    "bom2": "\ufeff\ufeff" + HEAD + MADE,
    "tab json": (
        '{\n\t"version": "v1",\n\t"mig-configs": {\n\t\t"a": [\n'
        '\t\t\t{"devices": "all",\n\t\t\t"mig-enabled": false}\n\t\t]\n\t}\n'
        "}\n"
    ),
    "tab json close": (
        '{"version": "v1", "mig-configs": {"a": [{"devices": "all", "mig-enabled": false}\n\t]}}'
    ),
    "dashes": "---\n" + HEAD + MADE,
    "dashes comment": "--- # hi\n" + HEAD + MADE,
    "comment dashes": "# hi\n---\n" + HEAD + MADE,
    "dashes end": HEAD + MADE + "---\n",
    "dots end": HEAD + MADE + "...\n",
    "dots end more": HEAD + MADE + "...\n# c\n",
    "dots dashes": HEAD + MADE + "...\n---\n",
    "dashes twice": "---\n---\n" + HEAD + MADE,
    "dots first": "...\n" + HEAD + MADE,
    "dots second": HEAD + MADE + "...\nx: 1\n",
    "dash text": "--- version: v1\n",
    "dashes json": (
        '--- {"version": "v1", "mig-configs": {"a": [{"devices": "all", "mig-enabled": false}]}}'
    ),
    "tab last": HEAD + MADE + "\t",
    "tab last nl": HEAD + MADE + "\t\n",
    "tab mid": (
        "version: v1\n\t\nmig-configs:\n  a:\n  - devices: all\n"
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "spaces tab": HEAD + MADE + "  \t\n",
    "tab comment": HEAD + MADE + "\t# c\n",
    "sp tab comment": HEAD + MADE + "  \t# c\n",
    "trailing tab": (
        "version: v1\t\nmig-configs:\n  a:\n  - devices: all\n"
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "tab after colon": (
        "version:\tv1\nmig-configs:\n  a:\n  - devices: all\n"
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "nbsp": (
        "version: v1\xa0\nmig-configs:\n  a:\n  - devices: all\n"
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "nbsp line": HEAD + MADE + "\xa0\n",
    "nbsp indent": HEAD
    + ('  - devices: all\n    mig-enabled: true\n\xa0   mig-devices: {"1g.5gb": 1}\n'),
    "nbsp quoted": (
        'version: "v1\xa0"\nmig-configs:\n  a:\n  - devices: all\n'
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "filter nl": HEAD
    + (
        '  - device-filter: "0x20B010DE\\n"\n    devices: all\n'
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "filter ok": HEAD
    + (
        '  - device-filter: "0x20B010DE"\n    devices: all\n'
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "filter unquoted": HEAD
    + (
        "  - device-filter: 0x20B010DE\n    devices: all\n"
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "filter empty list": HEAD
    + (
        "  - device-filter: []\n    devices: all\n"
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "filter empty": HEAD
    + (
        '  - device-filter: ""\n    devices: all\n'
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "filter null": HEAD
    + (
        "  - device-filter:\n    devices: all\n"
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "filter bad": HEAD
    + (
        '  - device-filter: "x"\n    devices: all\n'
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "profile nl": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb\\n": 1}\n'),
    "surrogate": HEAD + MADE + '  "\\ud800":\n  - devices: all\n    mig-enabled: false\n',
    "surrogate pair": HEAD
    + MADE
    + ('  "\\ud83d\\ude00":\n  - devices: all\n    mig-enabled: false\n'),
    "empty configs": "version: v1\nmig-configs: {}\n",
    "empty list": "version: v1\nmig-configs:\n  a: []\n",
    "null label": HEAD,
    "count 01": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 01}\n'),
    "count 0x1": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 0x1}\n'),
    "count 1.0": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1.0}\n'),
    "count 1e0": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1e0}\n'),
    "count quoted": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb": "1"}\n'),
    "count +1": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb": +1}\n'),
    "count 0": HEAD + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 0}\n'),
    "count -1": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb": -1}\n'),
    "count 1_0": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1_0}\n'),
    "two counts 0": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1, "2g.10gb": 0}\n'),
    "devices [0]": HEAD
    + ('  - devices: [0]\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'),
    "devices quoted": HEAD
    + ('  - devices: ["0"]\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'),
    "devices []": HEAD
    + ('  - devices: []\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'),
    "devices 0": HEAD + ('  - devices: 0\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'),
    "devices dup": HEAD
    + ('  - devices: [0, 0]\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'),
    "devices -1": HEAD
    + ('  - devices: [-1]\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'),
    "devices ALL": HEAD
    + ('  - devices: ALL\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'),
    "devices null": HEAD
    + ('  - devices:\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'),
    "devices float": HEAD
    + ('  - devices: [1.0]\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'),
    "unknown field": HEAD + MADE + "    foo: 1\n",
    "top unknown": HEAD + MADE + "foo: 1\n",
    "dup key": HEAD + MADE + "    mig-enabled: true\n",
    "dup label": HEAD
    + MADE
    + ('  a:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'),
    "case field": HEAD
    + ('  - Devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'),
    "anchor": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: &x {"1g.5gb": 1}\n'),
    "v1 quoted": (
        'version: "v1"\nmig-configs:\n  a:\n  - devices: all\n'
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "version 1": (
        "version: 1\nmig-configs:\n  a:\n  - devices: all\n"
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "V1": (
        "version: V1\nmig-configs:\n  a:\n  - devices: all\n"
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "no version": (
        "mig-configs:\n  a:\n  - devices: all\n"
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "crlf": (
        "version: v1\r\nmig-configs:\r\n  a:\r\n  - devices: all\r\n"
        '    mig-enabled: true\r\n    mig-devices: {"1g.5gb": 1}\r\n'
    ),
    "cr": (
        "version: v1\rmig-configs:\r  a:\r  - devices: all\r"
        '    mig-enabled: true\r    mig-devices: {"1g.5gb": 1}\r'
    ),
    "no final nl": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}'),
    "trailing sp": (
        "version: v1  \nmig-configs:  \n  a:  \n  - devices: all  \n"
        "    mig-enabled: true  \n"
        '    mig-devices: {"1g.5gb": 1}  \n'
    ),
    "profile +me": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb+me": 1}\n'),
    "profile -me": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb-me": 1}\n'),
    "profile me.all": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb+me.all": 1}\n'),
    "profile gfx": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.24gb+gfx": 1}\n'),
    "profile 1c": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1c.2g.10gb": 1}\n'),
    "profile 8g": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"8g.5gb": 1}\n'),
    "profile 0g": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"0g.5gb": 1}\n'),
    "profile unquoted": HEAD
    + ("  - devices: all\n    mig-enabled: true\n    mig-devices: {1g.5gb: 1}\n"),
    "profile empty": HEAD + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"": 1}\n'),
    "profile XX": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1G.5GB": 1}\n'),
    "+me,gfx": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb+me,gfx": 1}\n'),
    "+gfx,me": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb+gfx,me": 1}\n'),
    "+bar": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb+bar": 1}\n'),
    "+": HEAD + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"1g.5gb+": 1}\n'),
    "sp": HEAD + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {" 1g.5gb": 1}\n'),
    "3c.2g": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"3c.2g.10gb": 1}\n'),
    "2c.2g": HEAD
    + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"2c.2g.10gb": 1}\n'),
    "disabled w devices": HEAD + OFF + '    mig-devices: {"1g.5gb": 1}\n',
    "disabled w 0": HEAD + OFF + '    mig-devices: {"1g.5gb": 0}\n',
    "only mode": HEAD + "  - devices: all\n    mig-enabled: true\n",
    "label true": (
        "version: v1\nmig-configs:\n  true:\n  - devices: all\n"
        '    mig-enabled: true\n    mig-devices: {"1g.5gb": 1}\n'
    ),
    "block str": HEAD
    + ('  - devices: all\n    mig-enabled: |\n      true\n    mig-devices: {"1g.5gb": 1}\n'),
    "directive": "%YAML 1.1\n---\n" + HEAD + MADE,
    "tag": HEAD
    + ('  - devices: all\n    mig-enabled: !!bool true\n    mig-devices: {"1g.5gb": 1}\n'),
    "merge": HEAD + MADE + "  b:\n  - <<: {devices: all}\n    mig-enabled: false\n",
    "comment end": HEAD + MADE + "# x",
    "empty": "",
    "flow multi": HEAD + "  - {devices: all,\n     mig-enabled: false}\n",
    "flow trailing comma": HEAD + "  - {devices: all, mig-enabled: false,}\n",
    "flow nospace": HEAD + "  - {devices: all,mig-enabled: false}\n",
    "flow json compact": (
        '{"version":"v1","mig-configs":{"a":[{"devices":"all","mig-enabled":false}]}}'
    ),
    "single": HEAD + ("  - devices: all\n    mig-enabled: true\n    mig-devices: {'1g.5gb': 1}\n"),
    "esc": HEAD + ('  - devices: all\n    mig-enabled: true\n    mig-devices: {"\\x31g.5gb": 1}\n'),
    "nul": HEAD + MADE + "\x00",
    "del": HEAD + MADE + "# \x7f\n",
    "null byte comment": "# \x01\n" + HEAD + MADE,
    "emoji comment": "# \U0001f600\n" + HEAD + MADE,
}
# Refused by us alone, on purpose: docs/mig.md says why.
STRICTER = {
    "yes",
    "on",
    "dots second",
    "dashes json",
    "tab after colon",
    "filter nl",
    "filter empty list",
    "filter empty",
    "filter null",
    "filter bad",
    "count 01",
    "count 0x1",
    "count 1.0",
    "count 1e0",
    "count +1",
    "count 1_0",
    "devices []",
    "devices -1",
    "devices float",
    "dup key",
    "dup label",
    "anchor",
    "cr",
    "profile 0g",
    "+bar",
    "3c.2g",
    "directive",
    "tag",
    "merge",
    "esc",
}


@pytest.mark.skipif(PROGRAM is None, reason="nvidia-mig-parted is not on PATH")
def test_gpu_mig_accepts_what_mig_parted_accepts_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    command = [str(PROGRAM), "assert", "--valid-config", "-f", str(path), "-c", "a"]
    wrong = []
    for name, text in FILES.items():
        path.write_bytes(text.encode())
        judged = subprocess.run(command, capture_output=True, check=False).returncode == 0
        if accepted(text) is not (judged and name not in STRICTER):
            wrong.append(f"{name}: mig-parted {'accepts' if judged else 'refuses'} it")
    assert wrong == []


def accepted(text: str) -> bool:
    try:
        return "a" in config.loads(text)
    except MigError:
        return False


@pytest.mark.parametrize("name", sorted(STRICTER))
def test_what_is_nearly_always_a_mistake_is_refused_though_mig_parted_takes_it(name: str) -> None:
    assert not accepted(FILES[name])


@pytest.mark.parametrize(
    "path",
    [
        "docs/mig.md",
    ],
)
def test_who_names_the_real_programs_version_names_the_one_that_judges_here(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    named = re.findall(r"(?:real program \(|the real |@v)(0\.\d+\.\d+)", text)
    assert set(named) == {MIG_PARTED}
