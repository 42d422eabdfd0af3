"""What nvidia-smi 580.159.04 said on a real H100 (tests/data/nvidia-smi/580.159.04-h100).

Of an H200 there is what differs (580.159.04-h200).
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from kiln.base.paths import ROOT

FOLDER = ROOT / "tests/data/nvidia-smi/580.159.04-h100"
H200 = FOLDER.with_name("580.159.04-h200")
DRIVER = "580.159.04"
UUID = "GPU-00000000-0000-0000-0000-000000000000"  # as it was masked


class Answer(NamedTuple):
    """A command's arguments, its output, and its exit status."""

    words: list[str]
    out: str
    code: int


class Field(NamedTuple):
    """A field of --query-gpu: its names, the unit of its column ("" without), its value."""

    names: list[str]
    unit: str
    value: str

    @property
    def title(self) -> str:
        return f"{self.names[0]} [{self.unit}]" if self.unit else self.names[0]

    @property
    def bare(self) -> str:
        """The value as `nounits` gives it."""
        return self.value.removesuffix(" " + self.unit) if self.unit else self.value


def answers(name: str, folder: Path = FOLDER) -> list[Answer]:
    """The commands in one of the files, in order."""
    text = (folder / name).read_text()
    parts = re.findall(r"^\$ nvidia-smi ?(.*)\n((?:.*\n)*?)rc (\d+)\n", text, re.M)
    return [Answer(shlex.split(words), out, int(code)) for words, out, code in parts]


def answer(name: str, *words: str) -> str:
    """The output of one of the commands in the file."""
    return next(a.out for a in answers(name) if a.words == list(words))


def fields() -> list[Field]:
    """Every field of --query-gpu, in the order of --help-query-gpu."""
    rows = (line.split(" |") for line in (FOLDER / "query-gpu").read_text().splitlines())
    return [Field(names.split(), unit.strip(), value.strip()) for names, unit, value in rows]


def query(asked: str, modifiers: str) -> str:
    """What --query-gpu=ASKED --format=MODIFIERS printed, put together from its fields."""
    named = {name: field for field in fields() for name in field.names}
    chosen = [named[name] for name in asked.split(",")]
    lines = [] if "noheader" in modifiers else [", ".join(field.title for field in chosen)]
    lines.append(", ".join(f.bare if "nounits" in modifiers else f.value for f in chosen))
    return "\n".join(lines) + "\n"


# Fields of --query-remapped-rows whose name differs from that of --query-gpu.
_OF_THE_GPU = {"gpu_bus_id": "pci.bus_id", "gpu_serial": "serial"}


def said(*words: str) -> tuple[int, str]:
    """Exit status and output of a command on that machine. Raises LookupError if nobody asked.

    A query is put together from the recorded fields; `-i 0` adds nothing to a `mig` with one GPU.
    """
    asked = [w for w in words if w not in ("-i", "0")] if words[:1] == ("mig",) else list(words)
    for name in ("answers", "mig", "q", "q-x"):
        for recorded, out, code in answers(name):
            if recorded == asked:
                return code, out
    options = dict(word.partition("=")[::2] for word in words)
    for option in ("--query-gpu", "--query-remapped-rows"):
        if set(options) == {option, "--format"}:
            names = (_OF_THE_GPU.get(name, name) for name in options[option].split(","))
            return 0, query(",".join(names), options["--format"])
    raise LookupError(words)


def program(folder: Path) -> Path:
    """An nvidia-smi in `folder` that says what that machine's said."""
    path = folder / "nvidia-smi"
    path.write_text(
        f"#!{Path(sys.executable).resolve()}\nimport sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.unit.runtime import recorded_h100 as h100\n"
        "code, out = h100.said(*sys.argv[1:])\nsys.stdout.write(out)\nsys.exit(code)\n"
    )
    path.chmod(0o755)
    return path
