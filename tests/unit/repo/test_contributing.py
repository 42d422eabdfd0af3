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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

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
    *("deploy", "devel", "docs", "kiln", "lab", "provisioners", "runtime"),
    *("setup", "templates", "tests"),
)
FILES = ("invoke", "tasks.py", "pyproject.toml", "amis.lock.yaml", "requirements.lock")
LTS = row("al2023/lts/base/x86_64")
DRIVER = f"{versions.major(LTS.driver)}.998.01"

Edit = Callable[[str], str]


def after(line: str, new: str) -> Edit:
    """Adds `new` below the only line that begins with `line`."""

    def edit(text: str) -> str:
        (found,) = [whole for whole in text.splitlines(True) if whole.startswith(line)]
        return text.replace(found, found + new)

    return edit


def instead(old: str, new: str) -> Edit:
    def edit(text: str) -> str:
        assert old in text, old
        return text.replace(old, new, 1)

    return edit


def before(line: str, new: str) -> Edit:
    return instead(line, new + line)


def added(new: str) -> Edit:
    """At the end of a file, or as a new one."""
    return lambda text: text + new


def both(*edits: Edit) -> Edit:
    def edit(text: str) -> str:
        for each in edits:
            text = each(text)
        return text

    return edit


# ------------------------------------------------------------------- the invented examples

DISTRO = """  debian99:
    name: Debian 99
    vendor: debian
    family: debian
    package_manager: apt
    ssh_user: admin
    root_device: /dev/xvda
    parents:
      base: {ssm_parameter: "/aws/service/debian/release/99/latest/{deb_arch}"}
    end_of_life: '2099-01-01'
    cuda_repo: debian99
    codename: forky
    kernels:
      default: linux-image-cloud
      entries:
        linux-image-cloud: {series: '6.1', measured: 6.1.0-56-amd64, source: debian}
    source: eol_debian
"""
REPOSITORY = (
    "  debian99: {arches: [x86_64], first: {x86_64: 12.3.0}, drivers: {first: '545'},"
    " source: 'https://example.com/debian99'}\n"
)
ARCHIVE = (
    "- {when: {distro: debian99}, name: debian99, kind: apt, url: 'https://example.com/debian',"
    " suites: ['{codename}'], components: [main], keys: debian, source: debian_sources}\n"
)
ENTRY = """

def _acme_environment(recipe: Recipe) -> dict[str, str]:
    return {"ACME_BANNER": f"Acme, {recipe.distro.id}"}


ACME_BASELINE = Component(
    name="acme-baseline",
    what="Acme's banner",
    environment=_acme_environment,
)
"""
SCRIPT = """#!/usr/bin/env bash
# Acme's login banner.
#
#@ env ACME_BANNER  required  its text
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

printf '%s\\n' "$ACME_BANNER" >/etc/issue.net
kiln_record "banner=$ACME_BANNER"
"""
AMI_TEST = '''"""Acme's login banner."""

import pytest
from expectations import recorded


@pytest.mark.bake
def test_the_banner_is_recorded(machine, version_info):
    assert recorded(version_info, "acme-baseline")["banner"].startswith("Acme")
'''
MUTATION = """  test_acme_baseline.py:
    test_the_banner_is_recorded: edit "d['components']['acme-baseline']['banner'] = 'x'"
"""


NEEDS = """    what="Acme's banner",
    needs="acme_baseline",
    urls=("ACME_BASELINE",),
"""
URL = "https://example.com/acme-{version}.tar.gz"
RULE = (
    "- {id: ACME-ARM, about: [arch, distro], level: warning, what: Acme has no arm64 machines, "
    "example: al2023 arm64, source: 'https://example.com/machines'}\n"
)
RULE_CODE = '''

@rule("ACME-ARM")
def acme_has_it(recipe: Recipe, case: Case) -> Objections:
    """Acme's machines are x86_64."""
    if recipe.arch == "arm64":
        yield Objection("Acme has no arm64 machines", "take x86_64")
'''
CHECK = '\n\n@pytest.mark.bake\ndef test_acme(machine):\n    assert "acme" in machine["text"]\n'
GPU = (
    "  Q100: {ec2_name: Q100, product: NVIDIA Q100, arch: hopper, compute_capability: '9.0',"
    " memory_mib: 81920, mig: false, open_modules: supported, pci_device_ids: ['ffee']}\n"
)
# One with a GPU that is known and has MIG, one with a new GPU.
REST = "count: 2, arch: x86_64, vcpus: 48, memory_mib: 524288, network_cards: 4, efa: 4}\n"
TYPES = f"- {{type: p5.12xlarge, gpu: H100-80GB, {REST}- {{type: q1.12xlarge, gpu: Q100, {REST}"

# The list → the file that each step names, without its folder, and its edit.
LISTS: dict[str, list[tuple[str, Edit]]] = {
    "Add a driver version": [
        ("drivers.yaml", after(f"      {LTS.driver}:", f"      {DRIVER}: '2026-11-20'\n")),
        ("amis.yaml", instead(f"driver: {LTS.driver}", f"driver: {DRIVER}")),
    ],
    "Add a distribution": [
        ("distros.yaml", before("  rocky8:", DISTRO)),
        ("cuda.yaml", before("  rhel8:", REPOSITORY)),
        ("efa.yaml", after("  debian13:", "  debian99: {first: 1.36.0, source: notes}\n")),
        ("archives.yaml", after("archives:", ARCHIVE)),
        ("amis.yaml", added("- {distro: debian99, stack: lts}\n")),
    ],
    "Add a component": [
        ("system.py", added(ENTRY)),
        ("__init__.py", after("    system.AWS_HW_MONITOR,", "    system.ACME_BASELINE,\n")),
        ("acme-baseline.sh", added(SCRIPT)),
        ("test_acme_baseline.py", added(AMI_TEST)),
        ("mutations.yaml", after("checks:", MUTATION)),
    ],
    "Add a version of its own to a component": [
        (
            "recipe.py",
            after("    gdrcopy: Version", "    acme_baseline: Version | None = None\n"),
        ),
        (
            "system.py",
            both(
                instead("Acme, {recipe.distro.id}", "Acme, {recipe.acme_baseline}"),
                instead('    what="Acme\'s banner",\n', NEEDS),
            ),
        ),
        (
            "acme-baseline.sh",
            both(
                after("#@ env ACME_BANNER", "#@ download ACME_BASELINE  required  its archive\n"),
                added("kiln_download ACME_BASELINE >/dev/null\n"),
            ),
        ),
        (
            "downloads.yaml",
            after("downloads:", f"  ACME_BASELINE:\n  - {{url: '{URL}', source: none}}\n"),
        ),
        ("matrix.md", after("| `gdrcopy` |", "| `acme_baseline` | Acme's banner |\n")),
        ("amis.yaml", instead("  lts:\n", "  lts:\n    acme_baseline: 9.8.7\n")),
    ],
    "Add a rule": [
        ("rules.yaml", added(RULE)),
        ("system.py", added(RULE_CODE)),
        ("test_rules.py", added("# ACME-ARM's case\n")),
    ],
    "Add a check": [
        ("test_tuning.py", added(CHECK)),
        ("mutations.yaml", after("  test_tuning.py:", "    test_acme: rm /acme\n")),
    ],
    "Add an instance type": [
        ("instances.yaml", both(before("  H100-80GB:", GPU), after("- {type: p5.4xlarge,", TYPES))),
        (
            "drivers.yaml",
            after("  B300: {first_branch:", "  Q100: {first_branch: '580', source: devices}\n"),
        ),
    ],
}
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
        assert [Path(name).name for name in named] == [name for name, _ in edits], title
        for name, (_, edit) in zip(named, edits, strict=True):
            path = root / name
            path.write_text(edit(path.read_text() if path.exists() else ""))
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
    assert URL.format(version="9.8.7") in walked.rendered()


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
    assert "| ACME-ARM | warning |" in (walked.root / "docs/compatibility.md").read_text()


def test_instance_type_is_served(walked: Walked) -> None:
    assert walked.answers["known GPU"].startswith("p5.12xlarge: 2 × NVIDIA H100")
    assert walked.answers["new GPU"].startswith("q1.12xlarge: 2 × NVIDIA Q100")
    for generated in (
        "lab/rootfs/basefiles/common/usr/lib/kiln-lab-pci/pci.json",
        "runtime/opt/kiln/lib/gpu_boot/devices.json",
    ):
        assert "ffee" in (walked.root / generated).read_text(), generated
