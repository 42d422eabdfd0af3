"""The lists of CONTRIBUTING.md lead where they say.

All lists are walked in one copy of the checkout: the edits are those of an invented example, one
per step that names a file, and the commands are the lists' own.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from kiln.base import versions
from kiln.base.paths import ROOT
from tests.unit.rows import row

pytestmark = pytest.mark.slow
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
FILE = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:md|py|sh|yaml))`")
COMMAND = re.compile(r"`\./invoke ([^`]+)`")
# Two AMIs instead of all: what a list promises does not depend on how many there are.
ROWS = "amis:\n- {distro: al2023, stack: lts}\n- {distro: debian12, stack: lts}\n"
FOLDERS = (
    *("ami_kiln_lab.dist-info", "deploy", "devel", "docs", "kiln", "lab", "provisioners"),
    *("runtime", "setup", "templates", "tests"),
)
FILES = ("invoke", "tasks.py", "pyproject.toml", "amis.lock.yaml", "requirements.lock")
LTS = row("al2023/lts/base/x86_64")
DRIVER = f"{versions.major(LTS.driver)}.998.01"

# List → the file that each step names, and its edits.
LISTS: dict[str, list[dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("contributing.yaml").read_text()
)


def edited(text: str, edit: dict[str, str]) -> str:
    edit = {
        key: words.replace("{LTS}", LTS.driver).replace("{DRIVER}", DRIVER)
        for key, words in edit.items()
    }
    new = edit.pop("add")
    if not edit:
        return text + new
    ((how, place),) = edit.items()
    if how == "instead of":
        assert place in text
        return text.replace(place, new, 1)
    (line,) = [line for line in text.splitlines(True) if line.startswith(place)]
    return text.replace(line, line + new if how == "after" else new + line)


COMBINATION = ["check", "--distro", "al2023", "--driver", "580.178.04", "--json"]
# What is asked of the checkout after all lists.
ASKED = {
    "check": ["check", "--json"],
    "rows": ["list", "--json"],
    "arm64": [*COMBINATION, "--arch", "arm64"],
    "x86_64": COMBINATION,
    "known GPU": ["which", "--instance-type", "p5.12xlarge"],
    "new GPU": ["which", "--instance-type", "q1.12xlarge"],
    "generated": ["generate", "--check"],
}
# As setup/start.py does.
PROGRAM = """import gc; gc.set_threshold(100_000, 50, 50)
import json, sys; import tasks; from kiln.cli import main
for call in json.loads(sys.argv[1]):
    status = main.run(['./invoke', *call], tasks.ns)
    print('\\0', flush=True)
    if status: sys.exit(f'{call}: {status}')
"""


@dataclass
class Walked:
    """A copy of this checkout after all lists, and what it answers."""

    root: Path
    answers: dict[str, str] = field(default_factory=dict)

    def rules(self, asked: str) -> dict[str, list[str]]:
        """Rule → the AMIs it holds for."""
        found = json.loads(self.answers[asked])["findings"]
        return {finding["rule"]: finding["rows"] for finding in found}

    def rendered(self) -> str:
        """Everything below packer/, and the lock file."""
        paths = sorted(path for path in (self.root / "packer").rglob("*") if path.is_file())
        paths.append(self.root / "amis.lock.yaml")
        return "\n".join(path.read_text(errors="replace") for path in paths)

    def python(self, *arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
            | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr
        return done.stdout


def steps(title: str) -> list[str]:
    """The numbered steps below a heading of CONTRIBUTING.md."""
    section = PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\d+\. (.*)$", section, re.MULTILINE)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    root = tmp_path_factory.mktemp("contributing") / "checkout"
    root.mkdir()
    leave_out = shutil.ignore_patterns("*.pyc.*", "golden")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, root / name, ignore=leave_out, symlinks=True)
    for name in FILES:
        shutil.copy(ROOT / name, root / name)
    matrix = (ROOT / "amis.yaml").read_text()
    (root / "amis.yaml").write_text(matrix.split("\namis:\n")[0] + "\n" + ROWS)
    calls: list[list[str]] = []
    for title, edits in LISTS.items():
        # A step is an edit of the first file that it names, or a command.
        named = [file[1] for step in steps(title) if (file := FILE.search(step))]
        assert [Path(name).name for name in named] == [each["file"] for each in edits], title
        for name, each in zip(named, edits, strict=True):
            path = root / name
            text = path.read_text() if path.exists() else ""
            for edit in each["edits"]:
                text = edited(text, edit)
            path.write_text(text)
        calls += [
            command[1].split()
            for step in steps(title)
            if (command := COMMAND.match(step)) and not FILE.match(step)
        ]
    # What each list runs at its end is run once, after all of them.
    once = [call for at, call in enumerate(calls) if call not in calls[at + 1 :]]
    made = Walked(root)
    answers = made.python("-c", PROGRAM, json.dumps([*once, *ASKED.values()])).split("\0")
    made.answers = dict(zip(ASKED, [text.strip() for text in answers[len(once) :]], strict=False))
    return made


def test_every_list_of_the_page_is_walked() -> None:
    assert set(re.findall(r"^## (Add .*)$", PAGE, re.MULTILINE)) == set(LISTS)


def test_driver_and_distribution_are_rendered_and_locked(walked: Walked) -> None:
    rows = json.loads(walked.answers["rows"])
    assert {each["driver"] for each in rows} == {DRIVER}
    (name,) = [each["name"] for each in rows if each["distro"] == "debian99"]
    found = walked.rules("check")
    assert "DRV-UNKNOWN" not in found
    assert {rule for rule, names in found.items() if name in names} <= {"UNTRIED"}
    for text in (DRIVER, "cuda/repos/debian99/x86_64"):
        assert text in walked.rendered()


def test_component_is_baked_with_its_version(walked: Walked) -> None:
    assert "provisioners/acme-baseline.sh" in walked.rendered()
    assert re.search(r'ACME_BANNER *= "Acme, 9\.8\.7"', walked.rendered())
    assert "https://example.com/acme-9.8.7.tar.gz" in walked.rendered()


def test_checks_belong_to_the_image(walked: Walked) -> None:
    expect = walked.root / "expect.json"
    image = {"components": ["acme-baseline", "tuning"], "kernel_module": "open"}
    expect.write_text(json.dumps({"recipe": image, "gpu": None}))
    listed = walked.python(
        *("-m", "pytest", "tests/ami", "--collect-only", "-pno:cacheprovider", "-pno:xdist"),
        "--hosts=local://",
        KILN_EXPECT=str(expect),
    )
    assert "test_acme_baseline.py::test_the_banner_is_recorded" in listed
    assert "test_tuning.py::test_acme" in listed


def test_rule_holds_where_it_says(walked: Walked) -> None:
    assert "ACME-ARM" in walked.rules("arm64")
    assert "ACME-ARM" not in walked.rules("x86_64")
    assert "|ACME-ARM|warning|" in (walked.root / "docs/rules.md").read_text()


def test_instance_type_is_served(walked: Walked) -> None:
    assert walked.answers["known GPU"].startswith("p5.12xlarge: 2 × NVIDIA H100")
    assert walked.answers["new GPU"].startswith("q1.12xlarge: 2 × NVIDIA Q100")
    for generated in (
        "lab/rootfs/basefiles/common/usr/lib/kiln-lab-pci/pci.json",
        "runtime/opt/kiln/lib/gpu_boot/devices.json",
    ):
        assert "ffee" in (walked.root / generated).read_text(), generated
