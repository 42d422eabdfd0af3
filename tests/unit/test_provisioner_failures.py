"""bash ignores `set -e` inside $(…), if, || and <(…): no provisioner may go on after a failure.

Two proofs. Every function of provisioners/lib is called where `set -e` is off, with each external
command that it runs failing in turn: the script must stop. And every place that calls a function
is read: a status that nobody looks at is an error here.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from test_provisioners import Machine, plant, serve, signed_files

from kiln.base.paths import PROVISIONERS

LIBRARY = sorted((PROVISIONERS / "lib").glob("*.sh"))
SHELLS = [*LIBRARY, *sorted(PROVISIONERS.glob("*.sh"))]
_DEFINED = re.compile(r"^ *(\w+)\(\) [{(]", re.MULTILINE)
FUNCTIONS = {name for path in SHELLS for name in _DEFINED.findall(path.read_text())}
PUBLIC = {
    name
    for path in LIBRARY
    for name in _DEFINED.findall(path.read_text())
    if name.startswith("kiln_")
}

# Their status is an answer, or a failure that the caller names: each call must look at it.
ANSWERS = {
    "kiln_in_container",
    "kiln_version_lt",
    "kiln_matches",
    "kiln_unit_exists",
    "kiln_pm",
    "kiln_retry",
    "_kiln_can_be_had",
    "_kiln_check_key",
    "_kiln_check_signature",
}
# These run no external command, so nothing in them can fail.
NOTHING_TO_FAIL = {
    "kiln_say",
    "kiln_die",
    "kiln_die_with_log",
    "kiln_matches",
    "kiln_version_lt",
    "kiln_record",
    "kiln_mirrored",
}
MIRRORED = {"KILN_MIRRORS": "https://a.example=https://m.example/a"}


# ------------------------------------------------------------------- every step failing


@dataclass(frozen=True)
class Call:
    """A function called as its callers call it; what it needs; which failures do no harm."""

    code: str
    family: str = "debian"
    ready: Callable[[Machine], None] = lambda machine: None
    prints: str | None = None  # a call in $(…) prints this
    given: dict[str, str] = field(default_factory=dict)
    # command → why its failure may be ignored
    harmless: dict[str, str] = field(default_factory=dict)


def apt(machine: Machine) -> None:
    """libnccl2 2.28.9 can be had, and is installed once apt-get has run."""
    machine.command("apt-get", 'touch "${0%/*}/installed"')
    machine.command("apt-cache", "echo ' libnccl2 | 2.28.9-1+cuda13.0 | x'")
    machine.command("apt-mark", "[[ $1 != showhold ]] || echo libnccl2")
    machine.command(
        "dpkg-query", '[[ -e "${0%/*}/installed" ]] || exit 1; echo "ii 2.28.9-1+cuda13.0"'
    )
    machine.command("sleep", "")
    machine.command("systemctl", "[[ $1 != list-unit-files ]] || echo apt-daily.timer enabled")


def dnf(machine: Machine) -> None:
    machine.command("dnf", '[[ $* != *install* ]] || touch "${0%/*}/installed"')
    machine.rpm(
        # An older version beside it, as of a kernel: they are sorted.
        *("2.28.8-1", "2.28.9-1"),
        first="[[ $1 == -q ]] || exit 0\n"
        '[[ -e "${0%/*}/installed" ]] || { echo "package is not installed"; exit 1; }',
    )
    machine.command("sleep", "")
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


NCCL = "2.28.9-1+cuda13.0"
CLEANING = {"rm": "a temporary folder that stays does not change the image"}
CALLS = {
    "kiln_pm": Call("kiln_pm update || exit 1", ready=apt),
    "kiln_retry": Call("kiln_retry apt-get update || exit 1", ready=apt),
    "kiln_refresh": Call("kiln_refresh", ready=apt),
    "kiln_stop_daily_updates": Call("kiln_stop_daily_updates", ready=apt),
    "kiln_package_version deb": Call(
        "kiln_package_version x",
        ready=lambda m: m.command("dpkg-query", f"echo ii {NCCL}"),
        prints=NCCL,
    ),
    "kiln_package_version rpm": Call(
        "kiln_package_version x", "al", lambda m: m.command("rpm", "echo 1-1; echo 2-1"), "2-1"
    ),
    "kiln_install deb": Call("kiln_install libnccl2=2.28.9@cuda13.0", ready=apt),
    "kiln_install rpm": Call("kiln_install libnccl=2.28.9", "al", dnf),
    "kiln_install_held deb": Call("kiln_install_held libnccl2=2.28.9", ready=apt),
    "kiln_install_held rpm": Call("kiln_install_held libnccl=2.28.9", "al", dnf),
    "kiln_hold deb": Call("kiln_hold libnccl2", ready=apt),
    "kiln_hold rpm": Call("kiln_hold libnccl", "al", dnf_installed),
    "kiln_unhold deb": Call("kiln_unhold libnccl2", ready=apt),
    "kiln_unhold rpm": Call("kiln_unhold libnccl", "al", dnf),
    "kiln_refresh rpm": Call("kiln_refresh", "al"),
    "kiln_download": Call(
        "kiln_download X", ready=download, prints="x.run", given={"X_URL": "https://vendor/x.run"}
    ),
    "kiln_download again": Call(
        "kiln_download X",
        ready=download,
        prints="y.run",
        given={"X_URL": "https://vendor/y.run", "X_SHA256": "HASH"},
    ),
    "kiln_unpack": Call(
        'kiln_unpack "$ROOT/a.tar" --strip-components=1', ready=archive, prints="sample."
    ),
    "kiln_check_signature": Call(
        'kiln_check_signature "$FILE" "$SIGNATURE" "$KEY" "$FPR"', harmless=CLEANING
    ),
    "kiln_repo_key deb": Call(
        'kiln_repo_key "$KEY" "$FPR" v', prints="/usr/share/keyrings/v.asc", harmless=CLEANING
    ),
    "kiln_repo_key deb, a binary key": Call(
        'kiln_repo_key "$BINARY" "$FPR" v', prints="/usr/share/keyrings/v.gpg", harmless=CLEANING
    ),
    "kiln_repo_key rpm": Call(
        'kiln_repo_key "$KEY" "$FPR" v',
        "al",
        lambda m: m.command("rpm", ""),
        "file:///etc/pki/rpm-gpg/RPM-GPG-KEY-v",
        harmless=CLEANING,
    ),
    "kiln_find_kernel": Call("kiln_find_kernel", ready=kernel, prints="5.10"),
    "kiln_find_kernel in a container": Call(
        "kiln_find_kernel",
        ready=no_boot_loader,
        prints="5.10",
        harmless={"grubby": "a container has no boot loader: the newest kernel is taken"},
    ),
    "kiln_boot_kernel": Call("kiln_boot_kernel", ready=kernel, prints="5.10"),
    "kiln_assert_kernel": Call(
        "kiln_assert_kernel",
        ready=kernel,
        prints="5.10",
        harmless={"systemd-detect-virt": "it says: not in a container"},
    ),
    "kiln_in_container": Call(
        "kiln_in_container || exit 1", ready=lambda m: m.command("systemd-detect-virt", "")
    ),
    "kiln_kernel_package": Call(
        "kiln_kernel_package 5.10",
        family="al",
        ready=lambda m: m.command("rpm", "echo kernel6.12-core"),
        prints="kernel6.12",
        harmless={"rpm": "in a container no package may own the file"},
    ),
    "kiln_kernel_module": Call(
        "kiln_kernel_module 5.10 ib_umad",
        ready=with_modules_extra,
        harmless={"modinfo": "the module counts as missing, and its package is installed"},
    ),
    "kiln_compiler": Call("kiln_compiler 5.10", ready=kernel, prints="gcc10-gcc"),
    "kiln_dkms_version": Call(
        "kiln_dkms_version 5.10 efa",
        ready=lambda m: m.command("dkms", "echo efa/3.3.1, 5.10, x86_64: installed"),
        prints="3.3.1",
    ),
    "kiln_dkms_compiler": Call("kiln_dkms_compiler 5.10 nvidia", ready=kernel),
    "kiln_dkms_compiler gcc": Call("kiln_dkms_compiler 5.4 nvidia", ready=kernel),
    "kiln_yum_repo": Call(
        "mkdir -p $KILN_ROOT/etc/yum.repos.d; kiln_yum_repo x https://y key", "al"
    ),
    "kiln_unit_exists": Call("kiln_unit_exists x.service || exit 0", ready=systemd),
    "kiln_install_units": Call("kiln_install_units kiln-x.service", ready=systemd),
    "kiln_install_runtime": Call("kiln_install_runtime opt/x", ready=systemd),
    "kiln_install_files": Call("kiln_install_files etc/x", ready=systemd),
    "kiln_enable": Call("kiln_enable x.service", ready=systemd),
    "kiln_env": Call('kiln_env "$KILN_DIR/lib/kiln.sh"'),
    "kiln_wait_for_cloud_init": Call(
        "kiln_wait_for_cloud_init",
        ready=lambda m: m.command("cloud-init", ""),
        harmless=dict.fromkeys(("timeout", "cloud-init"), "it is said, and the bake goes on"),
    ),
    "kiln_set_sources_aside": Call("kiln_set_sources_aside", ready=apt_sources),
    "kiln_restore_sources": Call("kiln_set_sources_aside; kiln_restore_sources", ready=apt_sources),
    "kiln_use_mirrors": Call("kiln_use_mirrors", ready=apt_sources, given=MIRRORED),
    "kiln_forget_mirrors": Call("kiln_forget_mirrors", ready=apt_sources, given=MIRRORED),
    "kiln_skip_unavailable": Call("kiln_skip_unavailable", "al", ready=repository),
    "the record": Call("kiln_record version=1"),
}


class Failing:
    """A machine on which the command of that name fails from its nth call on."""

    def __init__(self, root: Path, call: Call, signed: dict[str, str]) -> None:
        self.machine, self.call = Machine(root, call.family), call
        call.ready(self.machine)
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
        self.call.ready(fresh)
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
BUILTINS = {
    "printf",
    "read",
    "test",
    "true",
    "false",
    "exit",
    "command",
    "local",
    "pwd",
    "sh",
    "bash",
}
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


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return signed_files(tmp_path_factory.mktemp("gnupg"))


@pytest.mark.parametrize("name", CALLS)
def test_a_function_of_the_library_stops_the_script_when_a_command_in_it_fails(
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


def test_every_function_of_the_library_is_called_with_a_failing_step():
    called = {word for call in CALLS.values() for word in re.findall(r"kiln_\w+", call.code)}
    assert PUBLIC - called == NOTHING_TO_FAIL - called
    assert NOTHING_TO_FAIL <= PUBLIC


def test_a_script_that_went_on_after_an_error_fails_all_the_same(tmp_path: Path):
    done = Machine(tmp_path).bash('x=$(kiln_die "it broke") || true; echo "went on $x"')
    assert (done.returncode, done.stdout) == (1, "went on \n")
    assert (
        done.stderr.splitlines()[-1]
        == "kiln: sample: ERROR: the script went on after the error above"
    )


def test_a_command_that_fails_without_a_message_is_named(tmp_path: Path):
    done = Machine(tmp_path).bash("echo a | grep b >/dev/null")
    assert done.returncode == 1
    assert "kiln: sample: ERROR: a command failed with status 1: grep b" in done.stderr


def test_a_function_that_returns_a_failure_is_named_by_the_line_that_calls_it(tmp_path: Path):
    machine, script = Machine(tmp_path), tmp_path / "sample.sh"
    refuses = 'refuses() {\n    return "$1"\n}\nrefuses 7\n'
    script.write_text(f'source "$KILN_DIR/lib/kiln.sh"\n{refuses}')
    done = machine.bash(f"exec {machine.interpreter} {script}")
    assert done.returncode == 7
    assert "kiln: sample: ERROR: a command failed with status 7: " in done.stderr
    # bash 4.2 names the line of the return.
    assert re.search(r"kiln: sample:   at: sample\.sh line [35]\n", done.stderr)


# ------------------------------------------------------------------- keys


@pytest.mark.parametrize("family", ["debian", "al"])
def test_a_refused_key_stops_the_script_before_anything_is_installed(
    tmp_path: Path, signed: dict[str, str], family: str
):
    machine = Machine(tmp_path, family)
    machine.command("rpm", 'echo "$@" >>"$0.log"')
    # As nvidia-repo.sh, container-toolkit.sh and lustre-client.sh call it.
    done = machine.bash(
        f"signed_by=$(kiln_repo_key '{signed['other']}' {signed['fingerprint']} vendor) || exit 1\n"
        'echo "installing with $signed_by"'
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "ERROR: other holds the wrong key: expected " + signed["fingerprint"] in done.stderr
    assert not (machine.root / "image").exists()
    assert not (machine.bin / "rpm.log").exists()


def test_a_keyring_that_cannot_be_removed_leaves_no_agent_of_gpg_behind(
    tmp_path: Path, signed: dict[str, str]
):
    machine = Machine(tmp_path)
    machine.command("rm", f'echo "$TMPDIR" >"{tmp_path}/folder"; exit 1')
    machine.bash(f"kiln_repo_key '{signed['key']}' {signed['fingerprint']} vendor")
    folder = (tmp_path / "folder").read_text().strip()
    for _ in range(600):
        agents = [path for path in Path("/proc").glob("[0-9]*/cmdline") if folder in read(path)]
        if not agents:
            break
        time.sleep(0.1)
    assert agents == []


def read(path: Path) -> str:
    """The file's text, empty if it is gone."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


# ------------------------------------------------------------------- every place that calls


def logical_lines(text: str) -> list[tuple[int, str]]:
    """Line number and text: heredocs, comments and single-quoted text taken out, lines that go
    on in the next joined."""
    text = re.sub(
        r"<<'?(\w+)'?\n.*?\n\1\n", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL
    )
    text = re.sub(r"(^|\s)#[^\n]*", r"\1", text)
    # Not across an escaped or double-quoted apostrophe.
    text = re.sub(r"(?<![\w\\\"])'[^']*'", lambda m: "''" + "\n" * m[0].count("\n"), text)
    joined: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        goes_on = joined and re.search(r"(\\|\|\||&&|\|)$", joined[-1][1])
        if words and (goes_on or re.match(r"(\|\||&&|\|)", words)) and joined:
            joined[-1] = (joined[-1][0], joined[-1][1].rstrip("\\").rstrip() + " " + words)
        else:
            joined.append((number, words))
    return [(number, line) for number, line in joined if line]


_CALL = "|".join(sorted(FUNCTIONS, key=len, reverse=True))
_HEAD = r"(?:^|[;{(!]|&&|\|\||\bif|\belif|\bwhile|\buntil|\bthen|\belse|\bdo)\s*"


def unchecked(text: str) -> list[tuple[int, str]]:
    """The places in a shell text where a function's failure would not be noticed."""
    lines = logical_lines(text)
    wrong = []
    function = ""
    for index, (number, line) in enumerate(lines):
        if opened := re.match(r"(\w+)\(\) [{(]", line):
            function = opened[1]
        inside = re.sub(r"^\w+\(\) [{(] ?", "", line)
        if re.search(r"[<>]\((?!printf )", inside):
            wrong.append((number, "process substitution hides the command's status"))
        wrong += [
            (number, f"$({name}): its status is not looked at")
            for name in re.findall(rf"\$\((?:cd [^&]*&& )?({_CALL})\b", inside)
            if not re.match(rf"(if )?\w+=\$\({name}\b[^)]*\)( \|\| |; then)", inside)
        ]
        for found in re.finditer(rf"{_HEAD}({_CALL})(?=[\s;)]|$)(?!\(\))", inside):
            name, before, after = found[1], inside[: found.start(1)], inside[found.end() :]
            if before.endswith("$("):
                continue
            condition = re.match(r"(if|elif|while|until) ", inside) and "; then" not in before
            asked = condition or before.rstrip().endswith("!") or re.search(r"\|\||&&", after)
            last = re.search(r"(\|\||&&)\s*$", before)
            if name in ANSWERS and not asked and not _is_result(lines, index, function):
                wrong.append((number, f"{name}: its status is not looked at"))
            if name not in ANSWERS and asked and not last:
                wrong.append((number, f"{name} stops the script itself: nothing to ask"))
    return wrong


def _is_result(lines: list[tuple[int, str]], index: int, function: str) -> bool:
    """Is the call the last of a branch of an `if` that is followed by ||, or of a function whose
    own status is looked at?"""
    following = itertools.islice((line for _, line in lines), index + 1, None)
    first = next(following, "")
    if function in ANSWERS and first in ("}", ")"):
        return True
    depth = 0
    for line in itertools.chain([first], following):
        depth += line.startswith("if ")
        if line.startswith("fi"):
            if depth == 0:
                return "||" in line
            depth -= 1
        elif depth == 0 and not re.match(r"(else|elif|kiln_)", line):
            return False
    return False


@pytest.mark.parametrize("path", SHELLS, ids=lambda path: path.stem)
def test_every_call_of_a_function_is_one_whose_failure_is_noticed(path: Path):
    assert unchecked(path.read_text()) == []


@pytest.mark.parametrize(
    "code",
    [
        "key=$(kiln_download X)",
        "local key=$(kiln_download X) || exit 1",
        '[[ $(kiln_package_version x) == 1 ]] || kiln_die "no"',
        'kiln_record "kernel=$(kiln_boot_kernel)"',
        "while read -r name; do :; done < <(kiln_held)",
        "mapfile -t names < <(sort x)",
        "kiln_pm update",
        "if x; then\nkiln_pm update\nfi",
        "kiln_unit_exists x; kiln_enable x",
        "if kiln_install x; then\n:\nfi",
        "kiln_install x || true",
        "! kiln_install x",
    ],
)
def test_a_call_whose_failure_would_be_lost_is_found(code: str):
    assert unchecked(code + "\n") != []


@pytest.mark.parametrize(
    "code",
    [
        "key=$(kiln_download X) || exit 1",
        'kiln_pm update ||\n    kiln_die "no"',
        'if x; then\nkiln_pm a\nelse\nkiln_pm b\nfi || kiln_die "no"',
        "! kiln_unit_exists x || kiln_enable x",
        "kiln_install x",
        "# key=$(kiln_download X)",
        'diff <(printf "%s" "$a") x',
    ],
)
def test_a_call_that_is_checked_is_not_a_finding(code: str):
    assert unchecked(code + "\n") == []
