"""bash ignores `set -e` inside $(…), if, || and <(…): no provisioner may go on after a failure.

Every function of provisioners/lib is called where `set -e` is off, with each external command that
it runs failing in turn: the script must stop.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
import yaml

from kiln.base.paths import PROVISIONERS
from tests.unit.provisioners.machine import Machine, plant, serve

pytestmark = pytest.mark.slow
LIBRARY = sorted((PROVISIONERS / "lib").glob("*.sh"))
_DEFINED = re.compile(r"^ *(\w+)\(\) [{(]", re.MULTILINE)
PUBLIC = {
    name
    for path in LIBRARY
    for name in _DEFINED.findall(path.read_text())
    if name.startswith("kiln_")
}

# These run no external command, so nothing in them can fail.
NOTHING_TO_FAIL = {
    *("kiln_say", "kiln_die", "kiln_die_with_log", "kiln_record"),
    *("kiln_matches", "kiln_version_lt", "kiln_mirrored"),
}
# ------------------------------------------------------------------- every step failing


@dataclass(frozen=True)
class Call:
    """A function called as its callers call it; calls.yaml explains the fields."""

    code: str
    family: str = "debian"
    ready: str = ""
    commands: dict[str, str] = field(default_factory=dict)
    prints: str | None = None
    given: dict[str, str] = field(default_factory=dict)
    harmless: dict[str, str] = field(default_factory=dict)

    def prepare(self, machine: Machine) -> None:
        if self.ready:
            globals()[self.ready](machine)
        for name, body in self.commands.items():
            machine.command(name, body)


def apt(machine: Machine) -> None:
    """libnccl2 2.28.9 can be had, and is installed once apt-get has run."""
    machine.command("apt-get", 'touch "${0%/*}/installed"')
    machine.command("apt-cache", "echo ' libnccl2 | 2.28.9-1+cuda13.0 | x'")
    machine.command("apt-mark", "[[ $1 != showhold ]] || echo libnccl2")
    machine.command(
        "dpkg-query", '[[ -e "${0%/*}/installed" ]] || exit 1; echo "ii 2.28.9-1+cuda13.0"'
    )
    machine.command("systemctl", "[[ $1 != list-unit-files ]] || echo apt-daily.timer enabled")


def dnf(machine: Machine) -> None:
    machine.command("dnf", '[[ $* != *install* ]] || touch "${0%/*}/installed"')
    machine.rpm(
        # An older version beside it, as of a kernel: they are sorted.
        *("2.28.8-1", "2.28.9-1"),
        first="[[ $1 == -q ]] || exit 0\n"
        '[[ -e "${0%/*}/installed" ]] || { echo "package is not installed"; exit 1; }',
    )
    plant(
        machine.root / "image/etc/dnf/plugins",
        {"versionlock.list": "libnccl-0:2.28.8-1.*\n"},
    )


def with_modules_extra(machine: Machine) -> None:
    """The package with the kernel's further modules can be had, and brings the module."""
    apt(machine)
    machine.command("dpkg-query", '[[ -e "${0%/*}/installed" ]] || exit 1; echo "ii 5.10-1"')
    machine.command("depmod", "")
    machine.command("modinfo", '[[ -e "${0%/*}/installed" ]]')


def dnf_installed(machine: Machine) -> None:
    dnf(machine)
    plant(machine.bin, {"installed": ""})


def systemd(machine: Machine) -> None:
    machine.command("systemctl", "echo systemd 252; echo x.service enabled")
    plant(
        machine.kiln,
        {
            "runtime/opt/x": "#!/bin/sh\n",
            "files/etc/x": "x",
            "runtime/etc/systemd/system/kiln-x.service": "",
        },
    )


def download(machine: Machine) -> None:
    serve(machine, "the file")
    plant(machine.kiln, {"downloads/sample/Y/y.run": "the file"})


def archive(machine: Machine) -> None:
    plant(machine.root, {"content/x": "x"})
    subprocess.run(
        ["tar", "-cf", str(machine.root / "a.tar"), "-C", str(machine.root), "content"], check=True
    )


def kernel(machine: Machine) -> None:
    machine.command("uname", "echo 5.10")
    machine.command("systemd-detect-virt", "exit 1")
    config = 'CONFIG_CC_VERSION_TEXT="gcc10-gcc (GCC) 10.5.0"\n'
    names = ("boot/vmlinuz-5.10", "boot/vmlinuz-5.4", "lib/modules/5.10/build/Makefile")
    plant(machine.root / "image", {"boot/config-5.10": config, **dict.fromkeys(names, "")})
    plant(machine.root / "image", {"boot/config-5.4": 'CONFIG_CC_VERSION_TEXT="gcc (GCC)"\n'})
    machine.command("grubby", "echo /boot/vmlinuz-5.10")


def no_boot_loader(machine: Machine) -> None:
    kernel(machine)
    machine.command("systemd-detect-virt", "")
    machine.command("grubby", "exit 1")


def apt_sources(machine: Machine) -> None:
    plant(machine.root / "image", {"etc/apt/sources.list": "deb a", "etc/apt/sources.list.d/b": ""})


def repository(machine: Machine) -> None:
    plant(machine.root / "image", {"etc/yum.repos.d/nvidia-cuda.repo": "[nvidia-cuda]\n"})


CALLS = {
    name: Call(**call)
    for name, call in yaml.safe_load(Path(__file__).with_name("calls.yaml").read_text()).items()
}


class Failing:
    """A machine on which the command of that name fails from its nth call on."""

    def __init__(self, root: Path, call: Call, signed: dict[str, str]) -> None:
        self.machine, self.call = Machine(root, call.family), call
        call.prepare(self.machine)
        self.shims, self.counts = root / "shims", root / "counts"
        self.shims.mkdir()
        given = {name: text.replace("HASH", HASH) for name, text in call.given.items()}
        paths = {name.upper(): signed[name] for name in ("file", "signature", "key", "binary")}
        self.machine.environment |= {
            **given, **paths, "FPR": signed["fingerprint"], "ROOT": str(root),
        }  # fmt: skip
        own = {path.name: str(path) for path in self.machine.bin.iterdir() if path.name in COMMANDS}
        for name, real in {**programs(), **own}.items():
            shim = self.shims / name
            count = f"{self.counts}/{name}"
            shim.write_text(
                f"#!/bin/sh\nn=0\n[ ! -e {count} ] || read n <{count}\n"
                f"n=$((n + 1))\necho $n >{count}\n"
                f'[ "$FAIL" != {name} ] || [ $n -lt "$FROM" ] || exit 97\nexec {real} "$@"\n'
            )
            shim.chmod(0o755)

    def run(self, fail: str = "", nth: int = 0) -> subprocess.CompletedProcess[str]:
        for left in ("kiln", "image", "etc-kiln", "bin", "counts"):
            shutil.rmtree(self.machine.root / left, ignore_errors=True)
        fresh = Machine(self.machine.root, self.call.family)
        self.call.prepare(fresh)
        self.counts.mkdir()
        call = self.call.code
        if self.call.prints is None:
            # Where set -e is off, and a status that is not 0 is not noticed.
            body = f"{{ {call}; }} || true"
        else:
            body = f'if x=$({call}); then printf "%s\\n" "$x"; else exit 1; fi'
        body = f'PATH={self.shims}:$PATH\nhash -r\n{body}\necho "went on"'
        return self.machine.bash(body, FAIL=fail, FROM=str(nth))


# Programs by these names are never run: bash has them built in.
BUILTINS = {"printf", "read", "test", "true", "false", "exit", "command", "pwd", "sh", "bash"}
# sha256 of "the file"
HASH = "994659de87f727ddcde75df44314f31d7f367b3bff347e852f390530f29720c7"
COMMANDS = (
    set(re.findall(r"[a-z][a-z0-9_-]+", "".join(path.read_text() for path in LIBRARY))) - BUILTINS
)


@cache
def programs() -> dict[str, str]:
    """The words of the library that are programs on this machine, and where they are."""
    found = {name: shutil.which(name) for name in COMMANDS}
    return {name: path for name, path in found.items() if path}


@pytest.mark.parametrize("name", CALLS)
def test_failing_command_stops_the_script(
    tmp_path: Path, signed: dict[str, str], name: str
) -> None:
    call = CALLS[name]
    failing = Failing(tmp_path, call, signed)
    done = failing.run()
    assert done.returncode == 0, done.stderr
    if call.prints is not None:
        assert call.prints in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[-1] == "went on"
    ran = {path.name: int(path.read_text()) for path in failing.counts.iterdir()}
    assert ran or name in ("kiln_refresh rpm", "kiln_env")
    swallowed = []
    for command, times in ran.items():
        for nth in range(1, times + 1):
            done = failing.run(command, nth)
            if done.returncode == 0 and command not in call.harmless:
                swallowed.append(f"{command}, call {nth} of {times}")
            elif command not in call.harmless:
                assert "kiln: sample: ERROR: " in done.stderr, (command, nth, done.stderr)
    assert swallowed == []


def test_every_library_function_is_called():
    called = {word for call in CALLS.values() for word in re.findall(r"kiln_\w+", call.code)}
    assert PUBLIC - called == NOTHING_TO_FAIL - called
    assert NOTHING_TO_FAIL <= PUBLIC


def test_script_that_went_on_after_an_error_fails(tmp_path: Path) -> None:
    done = Machine(tmp_path).bash('x=$(kiln_die "it broke") || true; echo "went on $x"')
    assert (done.returncode, done.stdout) == (1, "went on \n")
    assert "ERROR: the script went on after the error above" in done.stderr


def test_silent_failing_command_is_named(tmp_path: Path) -> None:
    error = Machine(tmp_path).stops("echo a | grep b >/dev/null")
    assert "kiln: sample: ERROR: a command failed with status 1: grep b" in error


def test_failing_function_is_named_by_its_caller(tmp_path: Path) -> None:
    machine, script = Machine(tmp_path), tmp_path / "sample.sh"
    refuses = 'refuses() {\n    return "$1"\n}\nrefuses 7\n'
    script.write_text(f'source "$KILN_DIR/lib/kiln.sh"\n{refuses}')
    done = machine.bash(f"exec {machine.interpreter} {script}")
    assert done.returncode == 7
    # bash 4.2 names the line of the return.
    assert re.search(r"kiln: sample:   at: sample\.sh line [35]\n", done.stderr)


@pytest.mark.parametrize("family", ["debian", "al"])
def test_wrong_key_stops_before_anything_is_installed(
    tmp_path: Path, signed: dict[str, str], family: str
) -> None:
    machine = Machine(tmp_path, family)
    machine.command("rpm", 'echo "$@" >>"$0.log"')
    # As nvidia-repo.sh, container-toolkit.sh and lustre-client.sh call it.
    error = machine.stops(
        f"signed_by=$(kiln_repo_key '{signed['other']}' {signed['fingerprint']} vendor) || exit 1\n"
        'echo "installing with $signed_by"'
    )
    assert f"expected {signed['fingerprint']}" in error
    assert not (machine.root / "image").exists()
    assert machine.log("rpm") == []
