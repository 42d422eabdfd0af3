"""Can each check of tests/ami fail? Guests of a built AMI are broken as mutations.yaml says.

`./invoke test` does it for the AMI that test_build.py bakes, in three guests of the type on which
it was verified; with --all in nine p4d.24xlarge, which tell which mutation a check saw.
KILN_MUTATION_ROWS names other rows of the matrix, by commas, to be built and broken in its place;
KILN_MUTATION_CHECKS the files of checks that count, such as those of an overlay.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import secrets
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mutations
import pytest
from conftest import AL2, ROOT, Finished, users_environment
from mutations import Mutation, Plan, Round

from kiln.base import overlay
from kiln.base.account import Account
from kiln.base.processes import Stop
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.cli import targets
from kiln.cloud.instance import Boot, Machine, booted
from kiln.cloud.network import Access, find_network
from kiln.matrix import load
from kiln.pipeline import checks

MUTATIONS = mutations.read(os.environ.get("KILN_MUTATION_CHECKS", ""))
LACKING = mutations.lacking(MUTATIONS["checks"])
AT_BOOT = mutations.before_reboot(MUTATIONS["checks"])
ROWS = [name for name in os.environ.get("KILN_MUTATION_ROWS", "").split(",") if name] or [AL2]
# Of the nine. Eight GPUs with NVSwitch, MIG and EFA: the fewest checks are skipped.
P4D = "p4d.24xlarge"
AT_ONCE = 3


@dataclass(frozen=True)
class Broken:
    """What the checks said of an untouched guest, and of the broken ones."""

    row: str
    guests: str
    components: tuple[str, ...]
    untouched: Round
    plan: Plan
    rounds: list[Round]
    # What is made before a reboot shows after it; None without such mutations.
    rebooted: Round | None


def chosen(row: str, guests: str) -> tuple[Recipe, str]:
    """The row's recipe, and the instance type of its guests."""
    (recipe,) = [recipe for recipe in load.load_recipes() if recipe.name == row]
    return recipe, P4D if guests == "nine" else str(recipe.verify_instance_type)


@cache
def belonging(row: str, guests: str) -> tuple[str, ...]:
    """The checks ("file::name") that belong to the row's image, as the checks' own pytest lists
    them; known before anything is built."""
    recipe, kind = chosen(row, guests)
    expected = checks.expectations(recipe, kind, "lab", reboot=True, restart={"": ""})
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(expected, file)
        file.flush()
        listed = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-p", "no:xdist", "--collect-only"),
                *("--hosts=local://", f"--rootdir={ROOT}", "--config-file=pyproject.toml"),
                *map(str, overlay.ami_check_folders()),
            ],
            cwd=ROOT,
            env={**os.environ, "KILN_EXPECT": file.name},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    names = [line.split("/")[-1].split("[")[0] for line in listed.splitlines() if "::" in line]
    return tuple(dict.fromkeys(names))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each row in three guests, with --all in nine; and each of its checks that a guest can run."""
    if "broken" not in metafunc.fixturenames:
        return
    names = ["broken", "check"] if "check" in metafunc.fixturenames else ["broken"]
    cases = []
    for row, guests in itertools.product(ROWS, ("three", "nine")):
        found = breakable(row, guests) if "check" in names else [""]
        marks = pytest.mark.all if guests == "nine" else ()
        for check in found:
            label = "-".join(filter(None, (row, guests, check)))
            values = ((row, guests), check)[: len(names)]
            cases.append(pytest.param(*values, id=label, marks=marks))
    metafunc.parametrize(names, cases, indirect=["broken"], scope="module")


def breakable(row: str, guests: str) -> list[str]:
    """The row's checks that fail by a mutation of a guest that runs."""
    at_boot = {check for mutation in AT_BOOT for check in mutation.checks}
    return [
        check
        for check in belonging(row, guests)
        if check.split("::")[0] in MUTATIONS["checks"] and check not in LACKING.keys() | at_boot
    ]


@pytest.fixture(scope="module")
def broken(
    request: pytest.FixtureRequest,
    ec2: Any,
    key: tuple[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Broken:
    home = tmp_path_factory.mktemp("mutations")
    ami = _ami(request, home)
    group = ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"][0]["GroupId"]
    network = find_network(Account(), targets.choose("lab"))
    access = Access(key[0], key[1], (group,), network)
    row, guests = request.param
    recipe, kind = chosen(row, guests)

    def guest(name: str, made: tuple[Mutation, ...], *, reboot: bool = False) -> Round:
        folder = home / name
        (folder / "ssh").mkdir(parents=True)
        where = targets.choose("lab")
        stop = Stop()
        run_id = f"{name}-{secrets.token_hex(4)}"
        boot = Boot(ami, kind, recipe.distro.ssh_user, run_id, folder, access)
        with Progress().stage(name) as stage, booted(boot, where, stage, print, stop) as instance:
            try:
                outputs = _break(instance, made)
                restart = {
                    "instance_id": instance.instance_id,
                    "region": where.region,
                    "ssh_interface": network.ssh_interface,
                }
                expected = checks.expectations(
                    recipe,
                    kind,
                    where.kind,
                    reboot=reboot,
                    restart=restart if reboot else None,
                )
                done = checks.run_checks(instance, expected, folder, stop=stop).checks
            finally:
                ec2.terminate_instances(InstanceIds=[instance.instance_id])
        return _round([dataclasses.asdict(check) for check in done], outputs)

    if (row, guests) == (AL2, "three"):
        built: Finished = request.getfixturevalue("built")
        untouched = _round(built.record["checks"]["checks"], {})
    else:
        untouched = guest("untouched", (), reboot=True)
    live = [check for check, outcome in untouched.outcomes.items() if outcome == "passed"]
    attributes = guests == "nine"
    plan = mutations.plan(mutations.load(MUTATIONS["checks"], live), attributes=attributes)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        names = [f"round-{number}" for number in range(len(plan.rounds))]
        return Broken(
            row,
            guests,
            recipe.components,
            untouched,
            plan,
            list(pool.map(guest, names, plan.rounds)),
            guest("rebooted", AT_BOOT, reboot=True) if AT_BOOT and attributes else None,
        )


def test_untouched_guest_is_green_and_skips_say_why(broken: Broken) -> None:
    untouched = broken.untouched
    failed = {c: untouched.messages[c] for c, o in untouched.outcomes.items() if o == "failed"}
    assert failed == {}
    assert set(untouched.outcomes) == set(belonging(broken.row, broken.guests))
    for check, why in LACKING.items():
        if check in untouched.outcomes:
            found = (untouched.outcomes[check], untouched.messages[check])
            assert found == ("skipped", why), f"how can {check} fail?"


def test_every_component_of_the_image_is_checked(broken: Broken) -> None:
    baked = {f"test_{name.replace('-', '_')}.py" for name in broken.components}
    run = {check.split("::")[0] for check in broken.untouched.outcomes}
    assert baked - run == {"test_cleanup.py"}
    assert {"test_boot.py", "test_hygiene.py"} <= run


def test_check_fails_by_its_own_mutation(broken: Broken, check: str) -> None:
    if broken.untouched.outcomes[check] == "skipped":
        pytest.skip(f"on this image and instance type: {broken.untouched.messages[check]}")
    wrong = mutations.verdict(broken.plan, broken.rounds, check)
    assert not wrong, wrong


def test_mutation_of_the_next_boot_fails_only_its_check(broken: Broken) -> None:
    if broken.rebooted is None:
        pytest.skip("a guest is rebooted in ./invoke test --all")
    outcomes = broken.rebooted.outcomes.items()
    failed = {check for check, outcome in outcomes if outcome == "failed"}
    assert failed == {check for mutation in AT_BOOT for check in mutation.checks}


def _ami(request: pytest.FixtureRequest, home: Path) -> str:
    row, _ = request.param
    if row == AL2:
        built: Finished = request.getfixturevalue("built")
        return str(built.record["ami_id"])
    done = subprocess.run(
        [str(ROOT / "invoke"), "build", "--name", row, "--target", "lab", "--json"],
        cwd=ROOT,
        env=users_environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(json.loads(done.stdout)[0]["ami_id"])


def _round(checks: list[dict[str, Any]], outputs: dict[str, str]) -> Round:
    names = [f"{check['file']}.py::{check['name']}" for check in checks]
    return Round(
        {name: check["outcome"] for name, check in zip(names, checks, strict=True)},
        {name: check["message"] for name, check in zip(names, checks, strict=True)},
        outputs,
    )


def _break(instance: Machine, made: tuple[Mutation, ...]) -> dict[str, str]:
    """Make each of these mutations, as root; what each said on stderr, if anything."""
    if not made:
        return {}
    steps = "\n".join(
        f"(\n{mutation.command.rstrip()}\n) </dev/null >/dev/null 2>/run/mutation-{number}"
        for number, mutation in enumerate(made)
    )
    # A boot that is not over yet would undo some of them.
    script = (
        "timeout 120 systemctl is-system-running --wait >/dev/null\n"
        f"SSH_USER={instance.user}\n{MUTATIONS['prelude']}\n{steps}\n"
        + "\n".join(f"cat /run/mutation-{n} 2>&1; echo END" for n in range(len(made)))
        + "\n"
    )
    done = subprocess.run(
        [
            *("ssh", "-F", str(instance.ssh_config), f"{instance.user}@{instance.address}"),
            "sudo -n bash -s",
        ],
        input=script,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    parts = done.stdout.split("END\n")
    assert len(parts) == len(made) + 1, f"the mutations did not get to their end: {done.stderr}"
    return {mutation.command: text.strip() for mutation, text in zip(made, parts, strict=False)}
