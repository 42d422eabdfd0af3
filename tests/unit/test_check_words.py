"""The words of a failed check, in the report and the last lines, are those of its author."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kiln.pipeline.ami_checks import read_junit

LONG = 200 * "a"
# Each check, and what a reader gets of it.
CHECKS = {
    'assert host.service("nosuch").is_running': (
        'assert host.service("nosuch").is_running\n +  where False = <service nosuch>.is_running'
    ),
    'assert not host.file("/").exists': (
        'assert not host.file("/").exists\n +  where True = <file />.exists'
    ),
    'assert host.file("/nosuch").exists, "the banner is missing"': (
        "the banner is missing\n +  where False = <file /nosuch>.exists"
    ),
    'assert "Acme" in host.file("/proc/sys/kernel/ostype").content_string': (
        "assert 'Acme' in 'Linux\\n'\n"
        " +  where 'Linux\\n' = <file /proc/sys/kernel/ostype>.content_string"
    ),
    'assert host.run("echo a; false").rc == 0': (
        "assert 1 == 0\n +  where 1 = `echo a; false` (exit status 1: a).rc"
    ),
    'host.check_output("echo a >&2; false")': (
        "Unexpected exit code 1 for `echo a >&2; false` (exit status 1: a)\n"
        "assert 1 == 0\n +  where 1 = `echo a >&2; false` (exit status 1: a).rc"
    ),
    "assert all(\n        host.file(path).exists\n        for path in ['/nosuch']\n    )": (
        "assert all( host.file(path).exists for path in ['/nosuch'] )"
    ),
    # pytest cuts such a result in its middle.
    f'assert host.run("echo {LONG}").rc == 1': f'assert host.run("echo {LONG}").rc == 1',
    # So is a message of more than 500 characters, in the JUnit file.
    "assert 1 == 2, chr(10).join(100 * str(number) for number in range(8))": "\n".join(
        ["0" * 100, *("  " + 100 * str(number) for number in range(1, 8))]
    ),
    "assert object() == 1": "assert object() == 1",
    "assert [1, 2] == [1]": "assert [1, 2] == [1]",
    'raise RuntimeError("no machine")': "RuntimeError: no machine",
}


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each of the checks says when it has failed on this machine."""
    folder = tmp_path_factory.mktemp("checks")
    bodies = [f"def test_{number}(host):\n    {body}\n\n" for number, body in enumerate(CHECKS)]
    (folder / "test_all.py").write_text("".join(bodies))
    arguments = ["--hosts=local://", "--junitxml=all.xml", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            "/dev/null",
            "--rootdir=.",
            *arguments,
            "test_all.py",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return [check.message for check in read_junit(folder / "all.xml")]


@pytest.mark.parametrize("check", CHECKS)
def test_a_failed_check_says_what_it_asserted_and_not_how_its_objects_are_made(
    messages: list[str], check: str
) -> None:
    first, *rest = messages[list(CHECKS).index(check)].splitlines()
    wanted, *more = CHECKS[check].splitlines()
    assert first == wanted
    assert rest[: len(more)] == more
    assert not [line for line in rest if "testinfra" in line or " at 0x" in line]
    assert "full report" not in messages[list(CHECKS).index(check)]


def test_a_long_statement_is_cut(tmp_path: Path) -> None:
    statement = f"&gt;       assert host.file({'a' * 400!r}).exists\nE       assert False"
    (tmp_path / "j.xml").write_text(
        f'<t><testcase name="test_a"><failure message="assert False">{statement}'
        "</failure></testcase></t>"
    )
    (check,) = read_junit(tmp_path / "j.xml")
    assert check.message.startswith("assert host.file('aaa")
    assert check.message.endswith("a…")
    assert len(check.message) == 301
