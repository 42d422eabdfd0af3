"""Made-up MIG files, thousands if wanted, judged by the lab's nvidia-mig-parted and, where it is on
PATH, by NVIDIA's own (test_mig_parted.py says how to build it).

    KILN_MIG_FILES=5000 .venv/bin/python -m pytest tests/unit/test_mig_parted_files.py
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest
from test_mig_parted import FILES, PROGRAM, STRICTER, MigError, accepted, config

from kiln.base.paths import ROOT

STAND_IN = ROOT / "lab/packages/payloads/mig-parted/nvidia-mig-parted"
COUNT = int(os.environ.get("KILN_MIG_FILES", "150"))
# The real program takes a tenth of a second for a file.
OF_REAL = int(os.environ.get("KILN_MIG_FILES", "100"))

# What stands in the place of each value, as YAML: what is usual, then what is odd or wrong.
DEVICES = (["all", "[0]", "[0, 1]"], ["[]", "[0, 0]", '["0"]', "ALL", "0", "null", "{}", "[-1]"])
DEVICES[1].extend(
    ["[1.0]", "[1.5]", "[null]", "'all'", "All", "[all]", "true", "", "[1_0]", "[0x1]"]
)
ENABLED = (["true"], ["True", "TRUE", "tRue", "yes", "y", "on", '"true"', "!!bool true"])
ENABLED[1].extend(["1", "null", "~", "", "[true]", "off", "N", "FALSE"])
PROFILES = (["1g.5gb", "2g.10gb", "1g.5gb+me"], ["1g.5gb-me", "1g.5gb+me.all", "1c.2g.10gb", "1g"])
PROFILES[1].extend(["3c.2g.10gb", "8g.5gb", "0g.5gb", "1g.5gb+", "1g.5gb+me,gfx", "1g.5gb+me,me"])
PROFILES[1].extend(["1g.5gb+me-gfx", "1G.5GB", " 1g.5gb", "1g.5gb ", "", "1g.5gb+1x", "01g.5gb"])
PROFILES[1].extend(
    ["1g.5gb.", "1.1g.5gb", "1g.5gb+.me", "1c.1g.5gb", "²g.5gb", "1g.5gb\\n", "1g.٥gb"]
)
COUNTS = (["1", "2", "7", "0"], ["-1", "1.0", "1.5", "01", "08", "0x1", "0o7", "1e0", "+1", "1_0"])
COUNTS[1].extend(
    ['"1"', "null", "true", "1:30", "9223372036854775808", "2e400", "[1]", ".5e1", "0b1"]
)
FILTERS = (['"0x20B010DE"', '["0x20B010DE", "0x233010DE"]'], ["0x20B010DE", "[]", '""', '"x"'])
FILTERS[1].extend(
    ["null", "[1]", '["0x20B010DE:0x14A910DE"]', "{}", '"0X20b010de"', '" 0x20B010DE"']
)
VERSIONS = (["v1", '"v1"'], ["V1", "1", "v2", "null", "", "[v1]", "v1 ", "'v1'"])
WITHOUT = ["null", "", "{}", "[]", "1"]
# What is put somewhere into the text.
MARKS = [
    "\t",
    " ",
    "\u00a0",
    "\ufeff",
    "---\n",
    "...\n",
    "# c\n",
    "\r",
    "\n",
    ":",
    "-",
    "'",
    '"',
    "{",
]
MARKS += [
    "}",
    "[",
    "]",
    ",",
    "&x ",
    "*x",
    "!!str ",
    "%YAML 1.1\n",
    "\\ud800",
    "\u2028",
    "<<: {}\n",
    "\0",
]


def made_up(seed: int) -> str:
    """A file that is right but for one value or one place, or two."""
    pick = random.Random(seed)
    labels = {"a": [_entry(pick)]}
    if pick.random() < 0.4:
        labels[pick.choice(["b", "b", "b", "true", "1", "a b"])] = [_entry(pick), _entry(pick)]
    write = _as_json if pick.random() < 0.3 else _as_yaml
    text = write(_value_of(pick, VERSIONS), labels, pick)
    for _ in range(pick.choice([0, 0, 0, 1, 2])):
        place = pick.randrange(len(text) + 1)
        text = text[:place] + pick.choice(["", *MARKS]) + text[place + pick.choice([0, 0, 1, 3]) :]
    return text


def _value_of(pick: random.Random, values: tuple[list[str], list[str]]) -> str:
    return pick.choice(values[pick.random() < 0.08])


def _entry(pick: random.Random) -> dict[str, Any]:
    entry: dict[str, Any] = {"devices": _value_of(pick, DEVICES)}
    if pick.random() < 0.25:
        return entry | {"mig-enabled": pick.choice(["false"] * 6 + ["False", "no", "n"])}
    entry["mig-enabled"] = _value_of(pick, ENABLED)
    devices = {_value_of(pick, PROFILES): _value_of(pick, COUNTS) for _ in range(2)}
    entry["mig-devices"] = pick.choice(WITHOUT) if pick.random() < 0.05 else devices
    if pick.random() < 0.3:
        entry["device-filter"] = _value_of(pick, FILTERS)
    if pick.random() < 0.05:
        entry.pop(pick.choice(list(entry)))
    if pick.random() < 0.03:
        entry[pick.choice(["Devices", "mig_enabled", "x"])] = "1"
    return entry


def _as_yaml(version: str, labels: dict[str, Any], pick: random.Random) -> str:
    lines = [f"version: {version}", "mig-configs:"]
    for label, entries in labels.items():
        lines.append(f"  {label}:" if entries else f"  {label}: []")
        for entry in entries:
            marks = iter(["- ", *["  "] * len(entry)])
            lines += [f"  {next(marks)}{key}: {_value(value)}" for key, value in entry.items()]
    if pick.random() < 0.04:
        lines.append(pick.choice(["x: 1", "version: v1", "mig-configs: {}"]))
    return "\n".join(lines) + "\n"


def _as_json(version: str, labels: dict[str, Any], pick: random.Random) -> str:
    def entry(fields: dict[str, Any]) -> str:
        return "{" + ", ".join(f'"{key}": {_value(value)}' for key, value in fields.items()) + "}"

    made = (f'"{name}": [{", ".join(map(entry, entries))}]' for name, entries in labels.items())
    text = f'{{"version": {version}, "mig-configs": {{{", ".join(made)}}}}}'
    return text.replace(", ", pick.choice([", ", ",", ",\n  ", ",\n\t"]))


def _value(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return "{" + ", ".join(f'"{name}": {count}' for name, count in value.items()) + "}"


@cache
def stand_in() -> Any:
    """The lab's program as a module."""
    spec = spec_from_loader("parted", SourceFileLoader("parted", str(STAND_IN)))
    assert spec
    module = module_from_spec(spec)
    assert spec.loader
    spec.loader.exec_module(module)
    return module


def taken_by_stand_in(text: str) -> bool:
    program = stand_in()
    try:
        return "a" in program.labels_of(program.parsed(text.encode()))
    except program.Refused:
        return False


def taken_by_real(text: str, path: Path) -> bool:
    path.write_bytes(text.encode())
    command = [str(PROGRAM), "assert", "--valid-config", "-f", str(path), "-c", "a"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def files(count: int) -> Iterator[tuple[int, str]]:
    return ((seed, made_up(seed)) for seed in range(count))


def test_the_labs_program_takes_and_refuses_what_nvidias_was_seen_to() -> None:
    wrong = [
        name
        for name, text in FILES.items()
        if taken_by_stand_in(text) is not (accepted(text) or name in STRICTER)
    ]
    assert wrong == []


@pytest.mark.skipif(PROGRAM is None, reason="nvidia-mig-parted is not on PATH")
def test_the_labs_program_judges_as_nvidias(tmp_path: Path) -> None:
    wrong = {
        seed: text
        for seed, text in files(OF_REAL)
        if taken_by_stand_in(text) is not taken_by_real(text, tmp_path / "config.yaml")
    }
    assert wrong == {}


def test_a_file_is_refused_in_a_sentence_and_never_with_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("version: v1\nmig-configs:\n  a:\n  - devices: ALL\n    mig-enabled: true\n")
    done = subprocess.run(
        [sys.executable, str(STAND_IN), "assert", "--valid-config", "-f", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Error parsing config file: unmarshal error: error unmarshaling JSON" in done.stderr
    assert "invalid string input for 'devices': ALL" in done.stderr


# What gpu-mig says of files that mig-parted takes and it refuses on purpose (docs/mig.md).
ON_PURPOSE = [
    *("means different things to different tools", "needs YAML features", "is given twice"),
    *(
        "is not text",
        "a control character",
        "a quote is never closed",
        "without an opening bracket",
    ),
    *("is not a MIG profile name", "compute slices do not fit", "is not a PCI device id"),
    *("is not a GPU index", "is not a count", "devices must be all or a list"),
    "mig-enabled must be true or false",
]


def test_gpu_mig_takes_nothing_that_mig_parted_refuses_and_says_why_it_is_stricter() -> None:
    loose, strict = {}, {}
    for seed, text in files(COUNT):
        taken = taken_by_stand_in(text)
        try:
            config.loads(text)["a"]
        except (MigError, KeyError) as error:
            if taken and not any(word in str(error) for word in ON_PURPOSE):
                strict[seed] = (str(error), text)
        else:
            if not taken:
                loose[seed] = text
    assert loose == {}
    assert strict == {}
