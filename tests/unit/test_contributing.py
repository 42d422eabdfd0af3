"""The lists of CONTRIBUTING.md lead where they say.

Each list is walked in a copy of the checkout: the edits are those of an invented example, one per
step that names a file, and the commands are the list's own.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kiln.base import versions
from kiln.matrix.load import load_recipes
from tests.unit.rows import row

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
FILE = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:md|py|sh|yaml))`")
COMMAND = re.compile(r"`\./invoke ([^`]+)`")
# Two AMIs instead of all: what a list promises does not depend on how many there are.
ROWS = "amis:\n- {distro: al2023, stack: lts}\n- {distro: debian12, stack: lts}\n"
FOLDERS = (
    *(
        "ami_kiln_lab.dist-info",
        "deploy",
        "devel",
        "docs",
        "kiln",
        "lab",
        "provisioners",
        "runtime",
    ),
    *("setup", "templates", "tests"),
)
FILES = ("invoke", "tasks.py", "pyproject.toml", "amis.lock.yaml", "requirements.lock")

Edit = Callable[[str], str]


def steps(title: str) -> list[str]:
    """The numbered steps below a heading of CONTRIBUTING.md."""
    section = PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\d+\. (.*)$", section, re.MULTILINE)


def edited(title: str) -> list[str]:
    """The files that a list has one edit: the first file that each step names."""
    return [file.group(1) for step in steps(title) if (file := FILE.search(step))]


def commands(title: str) -> list[list[str]]:
    """The calls of ./invoke that are steps of a list."""
    return [
        command.group(1).split()
        for step in steps(title)
        if (command := COMMAND.match(step)) and not FILE.match(step)
    ]


def after(line: str, new: str) -> Edit:
    """Adds `new` below the only line that begins with `line`."""

    def edit(text: str) -> str:
        matches = [whole for whole in text.splitlines(True) if whole.startswith(line)]
        assert len(matches) == 1, f"{line!r} begins {len(matches)} lines"
        return text.replace(matches[0], matches[0] + new)

    return edit


def instead(old: str, new: str) -> Edit:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return edit


def written(new: str) -> Edit:
    def edit(text: str) -> str:
        assert text == "", "the file is there already"
        return new

    return edit


class Checkout:
    """A copy of this checkout in which a list is walked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        for name in FOLDERS:
            # Compiled files are not made again; those that are being written have a number behind.
            leave_out = shutil.ignore_patterns("*.pyc.*", "golden", "images")
            shutil.copytree(ROOT / name, root / name, ignore=leave_out, symlinks=True)
        for name in FILES:
            shutil.copy(ROOT / name, root / name)
        shutil.copytree(ROOT / "docs" / "images", root / "docs" / "images")
        matrix = (ROOT / "amis.yaml").read_text()
        (root / "amis.yaml").write_text(matrix.split("\namis:\n")[0] + "\n" + ROWS)

    def tests_of_all_rows_pass(self, *arguments: str) -> int:
        """As `tests_pass`, with every row of this checkout beside those that the list added."""
        path = self.root / "amis.yaml"
        whole = (ROOT / "amis.yaml").read_text().split("\namis:\n")[1]
        path.write_text(path.read_text().replace("\n" + ROWS, "\namis:\n" + whole))
        return self.tests_pass(*arguments)

    def walk(self, title: str, edits: dict[str, Edit], *then: list[str]) -> list[str]:
        """Does what the list says: its edits, which must be `edits`, then its commands.

        `then` are further calls of ./invoke; the answer is what they print.
        """
        assert edited(title) == list(edits), f"the list {title!r} names other files"
        self.edit(edits)
        calls = commands(title)
        return [text.lstrip() for text in self.invoke(*calls, *then)[len(calls) :]]

    def edit(self, edits: dict[str, Edit]) -> None:
        for name, edit in edits.items():
            path = self.root / name
            text = path.read_text() if path.exists() else ""
            path.write_text(edit(text))

    def invoke(self, *calls: list[str]) -> list[str]:
        """What each call of ./invoke prints, all made by one process; each must end well."""
        program = (
            # As setup/start.py does.
            "import gc; gc.set_threshold(100_000, 50, 50)\n"
            "import json, sys; import tasks; from kiln.cli import main\n"
            "for call in json.loads(sys.argv[1]):\n"
            "    status = main.run(['./invoke', *call], tasks.ns)\n"
            "    print('\\0', flush=True)\n"
            "    if status: sys.exit(f'{call}: {status}')\n"
        )
        done = self.python("-c", program, json.dumps(calls), str(self.root))
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr
        return done.stdout.split("\0")[:-1]

    def python(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("KILN_", "PYTEST_", "AWS_", "COV_"))
        }
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=clean | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"} | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def tests_pass(self, *arguments: str) -> int:
        """How many tests of the copy were run; all of them must pass."""
        unused = ("cacheprovider", "unraisableexception", "threadexception")
        done = self.python("-m", "pytest", *(f"-pno:{name}" for name in unused), *arguments)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr
        return int(re.findall(r"(\d+) passed", done.stdout)[-1])

    def checks_of(self, recipe: dict[str, Any]) -> set[str]:
        """The AMI checks that belong to a recipe's image, as pytest collects them."""
        expect = self.root / "expect.json"
        expect.write_text(json.dumps({"recipe": recipe, "gpu": None}))
        done = self.python(
            *("-m", "pytest", "tests/ami", "--collect-only", "-pno:cacheprovider", "-pno:xdist"),
            "--hosts=local://",
            KILN_EXPECT=str(expect),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return set(re.findall(r"(test_\w+\.py::test_\w+)", done.stdout))

    def rendered(self) -> str:
        """Everything below packer/."""
        paths = sorted(path for path in (self.root / "packer").rglob("*") if path.is_file())
        return "\n".join(path.read_text(errors="replace") for path in paths)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


def findings(printed: str) -> dict[str, list[str]]:
    """Rule → the AMIs it holds for, from `./invoke check --json`."""
    return {finding["rule"]: finding["rows"] for finding in json.loads(printed)["findings"]}


CHECK = ["check", "--json"]
CURRENT = ["generate", "--check"]
NAMES = ["list", "--json"]


# The row that most tests take.
LTS = row("al2023/lts/base/x86_64")


def test_a_driver_version(checkout: Checkout) -> None:
    driver = f"{versions.major(LTS.driver)}.998.01"
    found, names, _ = checkout.walk(
        "Add a driver version",
        {
            "kiln/facts/knowledge/drivers.yaml": after(
                f"      {LTS.driver}:", f"      {driver}: '2026-11-20'\n"
            ),
            "amis.yaml": instead(f"driver: {LTS.driver}", f"driver: {driver}"),
        },
        *(CHECK, NAMES, CURRENT),
    )
    assert "DRV-UNKNOWN" not in findings(found)
    assert {row["driver"] for row in json.loads(names)} == {driver}
    assert driver in checkout.rendered()
    assert driver in (checkout.root / "amis.lock.yaml").read_text()
    files = ("which", "unconfirmed", "compat", "rules", "lab_vendors", "facts", "getting_started")
    assert checkout.tests_of_all_rows_pass(
        *(f"tests/unit/test_{name}.py" for name in files), "-k", "not readme"
    ) > 200  # fmt: skip


def test_a_distribution(checkout: Checkout) -> None:
    entry = """  debian99:
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
    repository = (
        "  debian99: {arches: [x86_64], first: {x86_64: 12.3.0}, drivers: {first: '545'},"
        " source: 'https://example.com/debian99'}\n"
    )
    archive = (
        "- {when: {distro: debian99}, name: debian99, kind: apt, url: 'https://example.com/debian',"
        " suites: ['{codename}'], components: [main], keys: debian, source: debian_sources}\n"
    )
    found, names, _ = checkout.walk(
        "Add a distribution",
        {
            "kiln/facts/knowledge/distros.yaml": instead("  rocky8:", entry + "  rocky8:"),
            "kiln/facts/knowledge/cuda.yaml": instead("  rhel8:", repository + "  rhel8:"),
            "kiln/facts/knowledge/efa.yaml": after(
                "  debian13:", "  debian99: {first: 1.36.0, source: notes}\n"
            ),
            "kiln/facts/knowledge/archives.yaml": after("archives:", archive),
            "amis.yaml": lambda text: text + "- {distro: debian99, stack: lts}\n",
        },
        *(CHECK, NAMES, CURRENT),
    )
    (name,) = [row["name"] for row in json.loads(names) if row["distro"] == "debian99"]
    rules = {rule for rule, rows in findings(found).items() if name in rows}
    assert rules <= {"UNTRIED"}
    assert "cuda/repos/debian99/x86_64" in checkout.rendered()
    assert "debian99" in (checkout.root / "amis.lock.yaml").read_text()
    files = ("preflight", "matrix", "overlay", "telemetry_bundle", "accepted")
    rows = (
        "own_repositories or page_shows or mistake_in_a_distribution or each_distribution or tried"
    )
    assert checkout.tests_of_all_rows_pass(
        *(f"tests/unit/test_{name}.py" for name in files), "-k", rows
    ) > 12  # fmt: skip


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


def component_edits() -> dict[str, Edit]:
    """The edits that add the component of the list."""
    return {
        "kiln/components/system.py": lambda text: text + ENTRY,
        "kiln/components/__init__.py": after(
            "    system.AWS_HW_MONITOR,", "    system.ACME_BASELINE,\n"
        ),
        "provisioners/acme-baseline.sh": written(SCRIPT),
        "tests/ami/test_acme_baseline.py": written(AMI_TEST),
        "tests/ami/mutations.yaml": after("checks:", MUTATION),
    }


def test_a_component(checkout: Checkout) -> None:
    checkout.walk("Add a component", component_edits(), CURRENT)
    rendered = checkout.rendered()
    assert "provisioners/acme-baseline.sh" in rendered
    assert re.search(r'ACME_BANNER *= "Acme, debian12"', rendered)
    image = {"components": ["acme-baseline"], "kernel_module": "open"}
    check = "test_acme_baseline.py::test_the_banner_is_recorded"
    assert check in checkout.checks_of(image)
    assert checkout.tests_pass(
        *("tests/unit/test_components.py", "tests/unit/test_ami_checks.py", "-k"),
        "acme or has_a_way_to or every_component_has_its",
    ) >= 3  # fmt: skip
    shown = ("tests/unit/test_getting_started.py", "-k", "prints_what_the_page_shows")
    assert checkout.tests_of_all_rows_pass(*shown) == 3


def test_a_component_whose_script_asks_for_another_variable_is_refused(checkout: Checkout) -> None:
    edits = component_edits()
    edits["provisioners/acme-baseline.sh"] = written(
        SCRIPT.replace("env ACME_BANNER", "env BANNER")
    )
    with pytest.raises(AssertionError, match=r"acme-baseline\.sh:4.* BANNER"):
        checkout.walk("Add a component", edits)


NEEDS = """    what="Acme's banner",
    needs="acme_baseline",
    urls=("ACME_BASELINE",),
"""
URL = "https://example.com/acme-{version}.tar.gz"


def test_a_component_with_a_version_of_its_own(checkout: Checkout) -> None:
    checkout.edit(component_edits())
    checkout.walk(
        "Add a version of its own to a component",
        {
            "kiln/base/recipe.py": after(
                "    gdrcopy: Version", "    acme_baseline: Version | None = None\n"
            ),
            "kiln/components/system.py": lambda text: text.replace(
                "Acme, {recipe.distro.id}", "Acme, {recipe.acme_baseline}"
            ).replace('    what="Acme\'s banner",\n', NEEDS),
            "provisioners/acme-baseline.sh": lambda text: after(
                "#@ env ACME_BANNER", "#@ download ACME_BASELINE  required  its archive\n"
            )(text + "kiln_download ACME_BASELINE >/dev/null\n"),
            "kiln/facts/knowledge/downloads.yaml": after(
                "downloads:", f"  ACME_BASELINE:\n  - {{url: '{URL}', source: none}}\n"
            ),
            "docs/matrix.md": after("| `gdrcopy` |", "| `acme_baseline` | Acme's banner |\n"),
            "amis.yaml": instead("  lts:\n", "  lts:\n    acme_baseline: 9.8.7\n"),
        },
        CURRENT,
    )
    assert re.search(r'ACME_BANNER *= "Acme, 9\.8\.7"', checkout.rendered())
    assert URL.format(version="9.8.7") in (checkout.root / "amis.lock.yaml").read_text()
    assert checkout.tests_of_all_rows_pass(
        *(f"tests/unit/test_{name}.py" for name in ("matrix", "components", "provisioners")),
        *("-k", "documented or page_shows or table_of_downloads or acme"),
    ) > 5  # fmt: skip


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
RULE_CASE = '    ("ACME-ARM", W, al2023(arch="arm64"), al2023()),\n'


def test_a_rule(checkout: Checkout) -> None:
    combination = ["check", "--distro", "al2023", "--driver", "580.178.04", "--json"]
    arm, intel, _ = checkout.walk(
        "Add a rule",
        {
            "kiln/facts/knowledge/rules.yaml": lambda text: text + RULE,
            "kiln/compat/system.py": lambda text: text + RULE_CODE,
            "tests/unit/test_rules.py": after("CASES: list", RULE_CASE),
        },
        [*combination, "--arch", "arm64"],
        combination,
        CURRENT,
    )
    assert "ACME-ARM" in findings(arm)
    assert "ACME-ARM" not in findings(intel)
    assert "| ACME-ARM | warning |" in (checkout.root / "docs/compatibility.md").read_text()
    assert checkout.tests_pass("tests/unit/test_rules.py", "-k", "ACME or every_rule_has") >= 3


def test_a_check(checkout: Checkout) -> None:
    check = '\n\n@pytest.mark.bake\ndef test_acme(machine):\n    assert "acme" in machine["text"]\n'
    checkout.walk(
        "Add a check",
        {
            "tests/ami/test_tuning.py": lambda text: text + check,
            "tests/ami/mutations.yaml": after("  test_tuning.py:", "    test_acme: rm /acme\n"),
        },
    )
    recipe = {"components": ["tuning"], "kernel_module": "open"}
    assert "test_tuning.py::test_acme" in checkout.checks_of(recipe)
    assert (
        checkout.tests_pass(
            "tests/unit/test_ami_checks.py", "-k", "has_a_way_to or says_where_it_holds"
        )
        >= 2
    )


def test_an_instance_type(checkout: Checkout) -> None:
    gpu = (
        "  Q100: {ec2_name: Q100, product: NVIDIA Q100, arch: hopper, compute_capability: '9.0',"
        " memory_mib: 81920, mig: false, open_modules: supported, pci_device_ids: ['ffee']}\n"
    )
    # One with a GPU that is known and has MIG, one with a new GPU.
    rest = "count: 2, arch: x86_64, vcpus: 48, memory_mib: 524288, network_cards: 4, efa: 4}\n"
    kinds = f"- {{type: p5.12xlarge, gpu: H100-80GB, {rest}- {{type: q1.12xlarge, gpu: Q100, {rest}"
    known, new, _ = checkout.walk(
        "Add an instance type",
        {
            "kiln/facts/knowledge/instances.yaml": lambda text: after(
                "- {type: p5.4xlarge,", kinds
            )(instead("  H100-80GB:", gpu + "  H100-80GB:")(text)),
            "kiln/facts/knowledge/drivers.yaml": after(
                "  B300: {first_branch:", "  Q100: {first_branch: '580', source: devices}\n"
            ),
        },
        ["which", "--instance-type", "p5.12xlarge"],
        ["which", "--instance-type", "q1.12xlarge"],
        CURRENT,
    )
    assert known.startswith("p5.12xlarge: 2 × NVIDIA H100")
    assert new.startswith("q1.12xlarge: 2 × NVIDIA Q100")
    assert f"1. {LTS.name}" in known
    assert f"1. {LTS.name}" in new
    for generated in (
        "lab/rootfs/basefiles/common/usr/lib/kiln-lab-pci/pci.json",
        "runtime/opt/kiln/lib/gpu_boot/devices.json",
    ):
        assert "ffee" in (checkout.root / generated).read_text(), generated
    assert checkout.tests_pass("tests/unit/test_facts.py") > 20


# A row that no bump moves: the case that the pipeline was made for, which the README builds.
STAYS = row("al2/classic/base/x86_64").name


@pytest.mark.parametrize("folder", ["tests/unit", "tests/lab", "devel"])
def test_nothing_takes_a_row_by_a_name_that_a_new_version_changes(folder: str) -> None:
    # Name → its beginning up to the driver's branch: more than that follows the version.
    names = {
        recipe.name: f"{recipe.distro.id}-{versions.major(recipe.driver)}"
        for recipe in load_recipes(ROOT / "amis.yaml")
        if (recipe.name, folder) != (STAYS, "tests/unit")
    }
    named = {
        f"{path.name}:{line}: {text}"
        for path in (ROOT / folder).rglob("*.py")
        for line, text in texts(path)
        for name, start in names.items()
        if name in text or (text.startswith(start) and name.startswith(text))
    }
    assert not named, "take it by its line (tests/unit/rows.py)"


def texts(path: Path) -> list[tuple[int, str]]:
    """The lines and texts of a module's literals."""
    return [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_every_list_of_the_page_is_walked() -> None:
    titles = re.findall(r"^## (Add .*)$", PAGE, re.MULTILINE)
    walked = re.findall(r'\.walk\(\s*"([^"]+)"', Path(__file__).read_text())
    assert set(titles) == set(walked)


def test_a_component_is_an_entry_a_script_and_their_checks() -> None:
    assert len(edited("Add a component")) == 5
