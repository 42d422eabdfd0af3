"""The provisioners: what can be proven about them without a machine to bake."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from kiln import components
from kiln.base.paths import KNOWLEDGE, PROVISIONERS
from kiln.components import Step
from kiln.matrix.load import load_recipes
from tests.unit.rows import every_version

KEYS = yaml.safe_load((KNOWLEDGE / "keys.yaml").read_text())["keys"]
SCRIPTS = sorted(PROVISIONERS.glob("*.sh"))
RECIPES = load_recipes()
# So that every component has something to say.
FULL = every_version()


def steps(name: str) -> list[Step]:
    """What a component does on each distribution, with the driver from anywhere."""
    recipes = {recipe.distro.id: recipe.changed(**FULL) for recipe in RECIPES}.values()
    return [
        components.get(name).for_recipe(recipe.changed(driver_source=source))
        for recipe in recipes
        for source in ("repo", "runfile")
    ]


def given(step: Step) -> dict[str, str]:
    """What the pipeline puts into a script's environment for a recipe, hashes left out."""
    values = dict(step.env)
    for entry in step.downloads:
        values[entry.env + "_URL"] = entry.url
        if entry.version:
            values[entry.env + "_VERSION"] = entry.version
    return values


# ------------------------------------------------------------------- every script


def test_every_component_has_its_script_and_every_script_its_component():
    assert set(components.names()) == {path.stem for path in SCRIPTS}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_download_is_one_the_pipeline_knows(path: Path):
    known = {download.env for step in steps(path.stem) for download in step.downloads}
    assert set(re.findall(r"kiln_download ([A-Z_]+)", path.read_text())) == known


def test_no_script_asks_for_whatever_is_newest():
    for path in SCRIPTS:
        code = re.sub(r"#.*$", "", path.read_text(), flags=re.MULTILINE)
        assert "latest" not in code.replace("kmod-nvidia-latest-dkms", ""), path.name


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_everything_a_recipe_downloads_is_pinned_and_encrypted(recipe):
    for component in recipe.components:
        for name, value in given(components.get(component).for_recipe(recipe)).items():
            if name.endswith("_URL") and value:
                assert value.startswith("https://"), name
                assert "latest" not in value, name


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_packages_are_named_with_exact_versions(recipe):
    # Debian's persistenced has a version of its own.
    unpinned = {"nvidia-persistenced"}
    for component in recipe.components:
        for name, value in components.get(component).for_recipe(recipe).env.items():
            if name.endswith("_PACKAGES") and not name.endswith("_OS_PACKAGES"):
                names = [word for word in value.split() if "=" not in word]
                assert set(names) <= unpinned, name


def test_every_key_a_script_checks_is_known_by_its_full_fingerprint():
    for component in components.everything():
        for name in component.keys.values():
            assert re.fullmatch("[0-9A-F]{40}", KEYS[name]["fingerprint"]), name
            assert KEYS[name]["sources"]


# ------------------------------------------------------------------- lib/kiln.sh


class Machine:
    """A folder that stands in for the build instance; commands in `bin` come first."""

    def __init__(self, root: Path, family: str = "debian") -> None:
        self.root, self.bin, self.etc = root, root / "bin", root / "etc-kiln"
        self.kiln = root / "kiln"
        # Another bash than the system's, such as the 4.2 of Amazon Linux 2.
        self.interpreter = os.environ.get("KILN_TEST_BASH", "bash")
        (self.kiln / "lib").mkdir(parents=True)
        for path in (PROVISIONERS / "lib").iterdir():
            (self.kiln / "lib" / path.name).symlink_to(path)
        self.bin.mkdir()
        self.environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "KILN_DIR": str(self.kiln),
            "KILN_ETC": str(self.etc),
            "KILN_ROOT": str(root / "image"),
            "KILN_DISTRO": "ubuntu2204" if family == "debian" else "al2023",
            "KILN_FAMILY": family,
            "KILN_PACKAGE_MANAGER": "apt" if family == "debian" else "dnf",
            "KILN_COMPONENT": "sample",
        }

    def command(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def rpm(self, *versions: str, first: str = "") -> None:
        """`rpm -q --qf FORMAT NAME…` knows all packages in these versions, unless `first` ends."""
        (self.bin / "rpm.versions").write_text(" ".join(versions))
        self.command(
            "rpm",
            f"{first}\nshift 2; format=$1; shift\n"
            "for name; do for version in $(<$0.versions); do\n"
            "line=${format//'%{NAME}'/$name}; line=${line//'%{EPOCHNUM}'/0}\n"
            "line=${line//'%{VERSION}-%{RELEASE}'/$version}\n"
            'printf "$line"\ndone; done',
        )

    def bash(self, code: str, **more: str) -> subprocess.CompletedProcess[str]:
        # gpg starts an agent for each new keyring, which ends when the keyring's folder is gone:
        # also where the script could not remove it.
        with tempfile.TemporaryDirectory(prefix="kiln-unit-") as folder:
            return subprocess.run(
                [self.interpreter, "-c", f'source "$KILN_DIR/lib/kiln.sh"\n{code}'],
                env={**self.environment, "TMPDIR": folder, **more},
                capture_output=True,
                text=True,
                check=False,
            )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("older", "newer"), [("510.47.03", "515.65.01"), ("5.14", "10.14"), ("1.9.2", "1.14.0")]
)
def test_versions_are_compared_as_numbers(machine: Machine, older: str, newer: str):
    assert machine.bash(f"kiln_version_lt {older} {newer}").returncode == 0
    assert machine.bash(f"kiln_version_lt {newer} {older}").returncode == 1
    assert machine.bash(f"kiln_version_lt {older} {older}").returncode == 1


@pytest.mark.parametrize(
    ("installed", "version", "build", "fits"),
    [
        ("2.12.7-1+cuda11.6", "2.12.7", "cuda11.6", True),
        ("2.12.7-1+cuda11.6", "2.12.7", "cuda11.7", False),
        ("2.12.70-1+cuda11.6", "2.12.7", "cuda11.6", False),
        ("8.5.0.96-1.cuda11.7", "8.5.0.96", "cuda11", True),
        ("8.5.0.96-1.cuda12.0", "8.5.0.96", "cuda11", False),
        ("1:4.6.0-1", "4.6.0", "", True),
        ("580.178.04-1ubuntu1", "580.178.04", "", True),
        ("580.178.04-1ubuntu1", "580.178.0", "", False),
    ],
)
def test_a_revision_is_only_taken_for_exactly_the_version(
    machine: Machine, installed: str, version: str, build: str, fits: bool
):
    done = machine.bash(f"kiln_matches '{installed}' '{version}' '{build}'")
    assert (done.returncode == 0) is fits


def test_apt_gets_the_newest_revision_of_exactly_that_version(machine: Machine):
    machine.command(
        "apt-cache",
        "printf ' libnccl2 | 2.29.0-1+cuda13.0 | x\\n libnccl2 | 2.28.9-1+cuda13.0 | x\\n"
        " libnccl2 | 2.28.9-1+cuda12.9 | x\\n'",
    )
    machine.command("dpkg-query", "[[ -e $0.state ]] || exit 1; echo 'ii 2.28.9-1+cuda13.0'")
    machine.command("apt-get", 'echo "$@" >> $0.log; echo installed > ${0%apt-get}dpkg-query.state')
    done = machine.bash("kiln_install libnccl2=2.28.9@cuda13.0")
    assert done.returncode == 0, done.stderr
    assert "libnccl2=2.28.9-1+cuda13.0" in (machine.bin / "apt-get.log").read_text()


def test_apt_waits_for_another_process_that_fetches_the_package_lists(machine: Machine):
    lock = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 815 (apt-get)"
    machine.command(
        "apt-get",
        f'echo x >>$0.log; [[ $(wc -l <$0.log) -gt 9 ]] || {{ echo "{lock}" >&2; exit 100; }}',
    )
    machine.command("systemctl", "[[ $1 != list-unit-files ]] || exit 1")
    machine.command("sleep", "")
    done = machine.bash("kiln_refresh")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("another process holds a lock that apt needs") == 1


@pytest.mark.parametrize("tool", ["dnf", "yum"])
def test_dnf_and_yum_wait_while_the_ssm_agent_updates_itself_with_rpm(tmp_path: Path, tool: str):
    machine = Machine(tmp_path, "amazon")
    lock = "RPM: error: can't create transaction lock on /var/lib/rpm/.rpm.lock"
    machine.command(
        tool,
        f'echo x >>$0.log; [[ $(wc -l <$0.log) -gt 9 ]] || {{ echo "{lock}" >&2; exit 1; }}',
    )
    machine.command("sleep", "")
    done = machine.bash("kiln_pm upgrade", KILN_PACKAGE_MANAGER=tool)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"another process holds a lock that {tool} needs") == 1


def test_a_repository_that_fails_is_tried_three_times(machine: Machine):
    machine.command("apt-get", "echo x >>$0.log; echo 'E: Failed to fetch x' >&2; exit 100")
    machine.command("systemctl", "[[ $1 != list-unit-files ]] || exit 1")
    machine.command("sleep", "")
    assert machine.bash("kiln_refresh").returncode == 1
    # Each retry fetches the package lists first.
    assert (machine.bin / "apt-get.log").read_text() == "x\n" * 5


def test_apt_retries_hash_mismatch_with_fresh_lists(machine: Machine) -> None:
    lists = machine.root / "image/var/lib/apt/lists"
    plant(lists, {"stale": ""})
    machine.command("sleep", "")
    machine.command(
        "apt-get",
        f"[[ $* != *install* || ! -e {lists}/stale ]] || {{ echo E: Hash Sum mismatch; exit 1; }}",
    )
    assert machine.bash("kiln_pm install x").returncode == 0


def test_apt_retries_repository_that_does_not_answer(machine: Machine) -> None:
    """apt-get update ends with 0 then, and nothing of that repository could be installed."""
    words = "W: Some index files failed to download. They have been ignored, or old ones used."
    machine.command("systemctl", "")
    machine.command("sleep", "")
    machine.command(
        "apt-get", f'echo x >>$0.log; [[ $(wc -l <$0.log) -gt 2 ]] || echo "{words}" >&2'
    )
    assert machine.bash("kiln_refresh").returncode == 0
    assert (machine.bin / "apt-get.log").read_text() == "x\n" * 3
    first = "W: Failed to fetch http://ppa.example/dists/jammy/InRelease  Could not resolve"
    machine.command("apt-get", f'printf "%s\\n" "Err:1 x" "{first}" "W: Failed y" "{words}" >&2')
    said = machine.bash("kiln_refresh").stderr
    assert f"the package lists cannot be fetched: {first[3:]}" in said


@pytest.mark.parametrize("tool", ["dnf", "yum"])
def test_dnf_and_yum_retry_with_fresh_metadata(tmp_path: Path, tool: str) -> None:
    machine = Machine(tmp_path, "al")
    machine.command("sleep", "")
    machine.command(
        tool, 'echo "$*" >>$0.log; [[ $* != *install* ]] || grep -q expire-cache $0.log'
    )
    assert machine.bash("kiln_pm install x", KILN_PACKAGE_MANAGER=tool).returncode == 0
    assert (machine.bin / f"{tool}.log").read_text().splitlines() == [
        "-q -y install x", "-q clean expire-cache", "-q -y install x",
    ]  # fmt: skip


def test_unknown_package_is_not_tried_again(machine: Machine) -> None:
    machine.command("apt-get", "echo x >>$0.log; echo E: Unable to locate package y; exit 100")
    assert machine.bash("kiln_pm install y || exit 1").returncode == 1
    assert (machine.bin / "apt-get.log").read_text() == "x\n"


def test_programs_that_fetch_packages_are_retried() -> None:
    fetching = r"(amazon-linux-extras (?:install|enable)|\./efa_installer\.sh|snap install)"
    for path in PROVISIONERS.rglob("*.sh"):
        code = re.sub(r"(?m)#.*$", "", path.read_text())
        for line in code.splitlines():
            if re.search(rf"{fetching} (?:-|\"|epel)", line):
                assert re.search(r"kiln_(retry|pm) ", line), line


def test_the_daily_update_is_stopped_before_the_package_lists_are_fetched(machine: Machine):
    machine.command("apt-get", 'echo "apt-get ${!#}" >>${0%/*}/log')
    machine.command("systemctl", 'echo "$*" >>${0%/*}/log')
    assert machine.bash("kiln_refresh").returncode == 0
    # Not apt-daily-upgrade.service: an upgrade that runs is not interrupted.
    assert (machine.bin / "log").read_text().splitlines() == [
        "stop apt-daily*.timer apt-daily.*", "apt-get update",
    ]  # fmt: skip


def release_packages(machine: Machine, owner: str) -> subprocess.CompletedProcess[str]:
    """The driver's script releases the driver that is there; `owner` is nvidia-smi's package."""
    script = (PROVISIONERS / "nvidia-driver.sh").read_text()
    lines = re.findall(r"(?ms)^(?:packages_of|release_packages)\(\) \{.*?^\}", script)
    lines += [f"smi_owner() {{ echo {owner}; }}", "release_packages"]
    return machine.bash("\n".join(lines))


def test_a_parents_held_driver_of_another_branch_is_released_whole_by_apt(machine: Machine):
    """apt 2.4 refuses to remove what is held for nvidia-driver-570."""
    installed = (
        "hi libnvidia-compute-535 535.183.01-0ubuntu1",
        "hi nvidia-utils-535 535.183.01-0ubuntu1",
        "hi containerd.io 1:1.7.2-1",
        "ii nvidia-container-toolkit 1.17.4-1",
    )
    listed = "; ".join(f"echo {line}" for line in installed)
    machine.command(
        "dpkg-query", f"if (($# == 3)); then {listed}; else echo 'hi 535.183.01-0ubuntu1'; fi"
    )
    machine.command(
        "apt-mark",
        'if [[ $1 == showhold ]]; then printf "%s\\n" containerd.io libnvidia-compute-535 '
        'nvidia-utils-535; else echo "$@" >>$0.log; fi',
    )
    done = release_packages(machine, "nvidia-utils-535")
    assert done.returncode == 0, done.stderr
    log = (machine.bin / "apt-mark.log").read_text()
    assert log == "unhold libnvidia-compute-535 nvidia-utils-535\n"


def test_a_parents_held_driver_of_another_branch_is_released_whole_by_dnf(tmp_path: Path):
    """dnf 4 filters out what is locked: nvidia-open of a new version has no nvidia-driver."""
    machine = Machine(tmp_path, "al")
    locked = "kernel-0:6.1-1.*\nlibnvidia-ml-3:535.183.01-1.*\nnvidia-driver-3:535.183.01-1.*\n"
    plant(machine.root / "image/etc/dnf/plugins", {"versionlock.list": locked})
    machine.command(
        "rpm",
        "if [[ $1 == -qa ]]; then echo ii kernel 6.1-; echo ii libnvidia-ml 535.183.01-; "
        "echo ii nvidia-driver 535.183.01-; else echo 535.183.01-1; fi",
    )
    done = release_packages(machine, "libnvidia-ml")
    assert done.returncode == 0, done.stderr
    left = machine.root / "image/etc/dnf/plugins/versionlock.list"
    assert left.read_text() == "kernel-0:6.1-1.*\n"


@pytest.mark.parametrize(
    ("image", "tool", "called"),
    [
        ("initrd.img-6.1", "update-initramfs", "-u -k 6.1\n"),
        (
            "initramfs-6.1.img",
            "dracut",
            "--force --omit-drivers nouveau {boot}/initramfs-6.1.img 6.1\n",
        ),
    ],
)
def test_initramfs_is_rebuilt_for_the_kernel_that_boots(
    machine: Machine, image: str, tool: str, called: str
) -> None:
    boot = machine.root / "image/boot"
    plant(boot, {image: ""})
    machine.command(tool, 'echo "$*" >>$0.log; [[ ! -e $0.broken ]]')
    script = (PROVISIONERS / "nvidia-driver.sh").read_text()
    assert "\nrebuild_initramfs\n" in script
    (function,) = re.findall(r"(?ms)^rebuild_initramfs\(\) \{.*?^\}", script)
    assert machine.bash(f"kernel=6.1\n{function}\nrebuild_initramfs").returncode == 0
    assert (machine.bin / f"{tool}.log").read_text() == called.format(boot=boot)
    plant(machine.bin, {f"{tool}.broken": ""})
    done = machine.bash(f"kernel=6.1\n{function}\nrebuild_initramfs")
    assert f"ERROR: {tool} failed for 6.1" in done.stderr


def choose_stream(tmp_path: Path, dnf: str) -> subprocess.CompletedProcess[str]:
    machine = Machine(tmp_path, "amazon")
    machine.command("dnf", dnf)
    machine.command("sleep", "")
    script = (PROVISIONERS / "nvidia-driver.sh").read_text()
    (function,) = re.findall(r"(?ms)^choose_stream\(\) \{.*?^\}", script)
    return machine.bash(f"{function}\nchoose_stream 580-open")


def test_the_streams_of_a_driver_are_left_alone_where_there_are_none(tmp_path: Path):
    none = "Error: No matching Modules to list"
    asked = f'[[ $* == *list* ]] || exit 9; echo "{none}" >&2; exit 1'
    done = choose_stream(tmp_path, asked)
    assert (done.returncode, done.stderr) == (0, none + "\n")


def test_streams_that_dnf_cannot_list_stop_the_bake(tmp_path: Path):
    asked = "echo \"Error: Failed to download metadata for repo 'cuda'\" >&2; exit 1"
    done = choose_stream(tmp_path, asked)
    assert done.returncode == 1
    assert "Error: Failed to download" in done.stderr
    assert "dnf cannot list the streams of nvidia-driver" in done.stderr


# ------------------------------------------------------------------- single scripts


class Script(Machine):
    """A machine with the kernel 6.1.1-1.amzn2023.x86_64 and its headers, where one script runs."""

    kernel = "6.1.1-1.amzn2023.x86_64"

    def __init__(self, root: Path) -> None:
        super().__init__(root, "amazon")
        plant(
            root / "image",
            {f"boot/vmlinuz-{self.kernel}": "", f"usr/src/kernels/{self.kernel}/Makefile": ""},
        )
        self.command("systemd-detect-virt", "")
        self.command("uname", '[[ $1 == -m ]] && echo x86_64 || echo "6.1.1-1.amzn2023.x86_64"')

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.interpreter, str(PROVISIONERS / script)],
            env={**self.environment, "TMPDIR": str(self.root), **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


def test_the_parents_gdrcopy_goes_before_its_files_names_are_used_again(tmp_path: Path):
    machine = Script(tmp_path)
    machine.rpm("2.5.1-1")
    machine.command("dkms", "")
    machine.command("curl", 'tar -czf "${@: -2:1}" -C "$KILN_DIR" lib/kiln.sh')
    machine.command("dnf", 'echo "dnf $*" >>${0%/*}/log')
    # Ends the script before it writes to this machine.
    machine.command("make", "echo make >>${0%/*}/log; exit 2")
    done = machine.run(
        "gdrcopy.sh", GDRCOPY_VERSION="2.6", GDRCOPY_URL="https://github.com/v2.6.tar.gz"
    )
    assert "GDRCopy 2.6 does not build" in done.stderr
    removed, *then = (machine.bin / "log").read_text().splitlines()
    assert removed.startswith("dnf -q -y remove -y gdrcopy-kmod gdrcopy gdrcopy-devel ")
    assert then == ["make"]


@pytest.mark.parametrize(
    ("listed", "version"),
    [
        ("gdrdrv/2.5.1, 6.1.1-1.amzn2023.x86_64, x86_64: installed", "2.5.1"),
        ("gdrdrv, 2.5.1, 6.1.1-1.amzn2023.x86_64, x86_64: installed (original)", "2.5.1"),
        ("gdrdrv/2.5.1, 6.1.1-1.amzn2023.x86_64, x86_64: built", ""),
        ("gdrdrv/2.5.1, 6.1.0-9.amzn2023.x86_64, x86_64: installed", ""),
        ("gdrdrv/2.5.1: added", ""),
        ("", ""),
    ],
)
def test_dkms_version_is_of_what_is_installed_for_the_kernel(
    machine: Machine, listed: str, version: str
):
    machine.command("dkms", f"echo '{listed}'")
    done = machine.bash("kiln_dkms_version 6.1.1-1.amzn2023.x86_64 gdrdrv")
    assert (done.returncode, done.stdout.strip()) == (0, version)


@pytest.mark.parametrize("status", ["installed", "built"])
def test_efa_of_the_distributions_kernel_is_not_the_installers(tmp_path: Path, status: str):
    machine = Script(tmp_path)
    script = (PROVISIONERS / "efa.sh").read_text()
    (checked,) = re.findall(r"(?ms)^kernel=.*?^fi$", script)
    # The distribution's own.
    machine.command("modinfo", "echo /lib/modules/x/kernel/drivers/infiniband/hw/efa/efa.ko")
    machine.command("dkms", f"echo 'efa/3.3.1, {machine.kernel}, x86_64: {status}'")
    done = machine.bash(checked)
    message = f"no efa module of the installer's for {machine.kernel}"
    assert (message in done.stderr) is (done.returncode == 1) is (status == "built")


def test_ubuntus_further_modules_are_installed_for_the_one_module_that_only_they_have(
    machine: Machine,
):
    script = (PROVISIONERS / "nvidia-fabricmanager.sh").read_text()
    (asked,) = re.findall(r"(?m)^    (kernel=.*\n    for module .*)$", script)
    plant(machine.root / "image", {"boot/vmlinuz-6.8.0-1070-aws": ""})
    # As in Ubuntu's packages: linux-modules has ib_umad, linux-modules-extra mlx5_ib.
    machine.command("modinfo", "[[ $* != *mlx5_ib* || -e ${0%/*}/extra ]]")
    machine.command("depmod", "")
    machine.command("apt-mark", "")
    machine.command("dpkg-query", "[[ -e ${0%/*}/extra ]] && echo 'ii 6.8.0-1070.76'")
    machine.command("apt-get", 'echo "$*" >>$0.log; touch ${0%/*}/extra')
    done = machine.bash(asked)
    assert done.returncode == 0, done.stderr
    log = (machine.bin / "apt-get.log").read_text()
    assert log.endswith(" linux-modules-extra-6.8.0-1070-aws\n")


@pytest.mark.parametrize(("provided", "asked"), [("exit 1", True), ("exit 0", False)])
def test_the_headers_that_gcc_got_from_another_kernel_stay(
    tmp_path: Path, provided: str, asked: bool
):
    machine = Script(tmp_path)
    machine.command(
        "rpm",
        f'case "$*" in *whatprovides*) {provided} ;; -qf*) printf kernel ;;'
        " *) echo 'package x is not installed'; exit 1 ;; esac",
    )
    # Its failure ends the script before it reboots anything.
    machine.command("dnf", 'echo "$*" >>$0.log; [[ $* != *install* ]]')
    machine.command("sleep", "")
    machine.run("kernel.sh", KERNEL_DEFAULT_PACKAGE="kernel", KERNEL_OS_PACKAGES="gcc dkms")
    (install, *_) = [
        line for line in (machine.bin / "dnf.log").read_text().splitlines() if " install " in line
    ]
    assert "install gcc dkms kernel-devel-6.1.1-1.amzn2023" in install
    assert install.endswith(" kernel-headers") is asked


def test_a_version_no_repository_has_is_one_message_that_lists_what_there_is(machine: Machine):
    machine.command("apt-cache", "echo ' libnccl2 | 2.29.0-1+cuda13.0 | x'")
    machine.command("dpkg-query", "exit 1")
    done = machine.bash("kiln_install libnccl2=2.28.9@cuda13.0; echo unreachable")
    assert done.returncode == 1
    assert "no repository has libnccl2 2.28.9 built for cuda13.0" in done.stderr
    assert "it offers: 2.29.0-1+cuda13.0" in done.stderr
    assert "unreachable" not in done.stdout


def test_a_package_that_the_tool_forgave_is_not_taken_for_installed(tmp_path: Path):
    machine = Machine(tmp_path, "al")
    machine.command("dnf", "exit 0")
    machine.command("rpm", "echo package is not installed; exit 1")
    done = machine.bash("kiln_install nvidia-driver=580.178.04")
    assert done.returncode == 1
    assert "dnf did not install: nvidia-driver 580.178.04" in done.stderr


LOCKS = {
    "yum": ("etc/yum/pluginconf.d/versionlock.list", "0:{}-{}.*"),
    "dnf": ("etc/dnf/plugins/versionlock.list", "{}-0:{}.*"),
}


def test_dnf_in_the_place_of_yum_is_told_what_is_held_as_dnf_reads_it(tmp_path: Path):
    """dnf's package `yum` links /etc/yum/pluginconf.d to dnf's folder (dnf.spec)."""
    path, lock = LOCKS["dnf"]
    machine = Machine(tmp_path, "al")
    plant(machine.root / "image", {path: "", "etc/yum/x": ""})
    (machine.root / "image/etc/yum/pluginconf.d").symlink_to("../dnf/plugins")
    machine.rpm("2.12.7-1")
    assert machine.bash("kiln_hold libnccl").returncode == 0
    held = (machine.root / "image" / path).read_text().split()
    assert held == [lock.format("libnccl", "2.12.7-1")]


@pytest.mark.parametrize("tool", LOCKS)
def test_held_package_is_locked_once_at_its_installed_version(tmp_path: Path, tool: str):
    """As the tool's own versionlock writes it; what others hold stays."""
    path, lock = LOCKS[tool]
    others = [
        lock.format("libnccl-devel", "2.11-1"),
        lock.format("kernel6.12", "6.12.1-1.amzn2023"),
    ]
    old = [lock.format("libnccl", "2.11.4-1+cuda11.6"), lock.format("cuda-11-6", "11.6.0-1")]
    machine = Machine(tmp_path, "al")
    plant(machine.root / "image", {path: "\n".join(["# Added lock", *old, *others, ""])})
    machine.rpm("2.12.7-1")
    done = machine.bash("kiln_unhold cuda-11-6; kiln_hold libnccl; kiln_hold libnccl")
    assert done.returncode == 0, done.stderr
    expected = ["# Added lock", *others, lock.format("libnccl", "2.12.7-1")]
    assert (machine.root / "image" / path).read_text().splitlines() == expected


def test_a_package_that_is_not_installed_cannot_be_held(tmp_path: Path):
    machine = Machine(tmp_path, "al")
    plant(machine.root / "image", {LOCKS["dnf"][0]: ""})
    machine.command("rpm", "echo package x is not installed; exit 1")
    done = machine.bash("kiln_hold x")
    assert done.returncode == 1
    assert "rpm cannot look up x: what is held must be installed" in done.stderr


def test_a_component_that_fails_leaves_no_record_of_itself(machine: Machine):
    record = machine.etc / "components/sample.json"
    assert machine.bash("kiln_record version=1; kiln_die 'it broke'").returncode == 1
    assert not record.exists()
    assert (
        machine.bash("kiln_record version=1 'held+=a b'; kiln_record 'held+=b c'").returncode == 0
    )
    assert json.loads(record.read_text()) == {
        "component": "sample",
        "version": "1",
        "held": ["a", "b", "c"],
    }


def serve(machine: Machine, content: str) -> str:
    """A curl that answers with `content`; its sha256."""
    machine.command(
        "curl", f'while [[ $1 != --output ]]; do shift; done; printf %s "{content}" > "$2"'
    )
    done = subprocess.run(["sha256sum"], input=content, capture_output=True, text=True, check=True)
    return done.stdout.split()[0]


def test_a_download_with_another_hash_stops_and_shows_both(machine: Machine):
    seen = serve(machine, "something else")
    done = machine.bash("kiln_download X", X_URL="https://vendor/x.run", X_SHA256="ab" * 32)
    assert done.returncode == 1
    assert f"expected {'ab' * 32}, got {seen}" in done.stderr
    assert not (machine.etc / "downloads.json").exists()


def test_a_download_nobody_knew_the_hash_of_is_recorded(machine: Machine):
    seen = serve(machine, "new")
    done = machine.bash("kiln_download X", X_URL="https://vendor/x.run", X_SHA256="")
    assert Path(done.stdout.strip()).read_text() == "new"
    assert json.loads((machine.etc / "downloads.json").read_text()) == [
        {
            "url": "https://vendor/x.run",
            "sha256": seen,
            "sha256_was": "first-seen",
            "component": "sample",
        }
    ]


def test_two_downloads_of_one_name_are_two_files(machine: Machine):
    machine.command("curl", 'while (($# > 2)); do shift; done; echo "$2" >"$1"')
    done = machine.bash(
        "a=$(kiln_download A) && b=$(kiln_download B) && cat $a $b",
        A_URL="https://vendor/tool.tgz",
        B_URL="https://other/tool.tgz",
    )
    assert done.stdout == "https://vendor/tool.tgz\nhttps://other/tool.tgz\n", done.stderr


def test_a_locked_file_that_is_there_is_not_fetched_again(machine: Machine):
    seen = serve(machine, "same")
    settings = {"X_URL": "https://vendor/x.run", "X_SHA256": seen}
    assert machine.bash("kiln_download X", **settings).returncode == 0
    machine.command("curl", "exit 22")
    assert machine.bash("kiln_download X", **settings).returncode == 0


def test_a_host_that_does_not_answer_is_one_message(machine: Machine):
    machine.command("curl", "exit 6")
    done = machine.bash("kiln_download X", X_URL="https://vendor/x.run", X_SHA256="")
    assert done.returncode == 1
    assert "cannot download https://vendor/x.run" in done.stderr


class Unsteady(BaseHTTPRequestHandler):
    """Serves `CONTENT`; the first request of a path fails as the path says."""

    CONTENT = b"x" * 500_000 + b"end"
    seen: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self) -> None:
        first = self.path not in [path for path, _ in self.seen]
        begin = int(self.headers.get("Range", "bytes=0-")[6:-1])
        self.seen.append((self.path, self.headers.get("Range", "")))
        failure = self.path if first else ""
        if failure in ("/503", "/429") or self.path == "/404":
            self.send_error(int(self.path[1:]))
            return
        if failure == "/reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        if self.path == "/no-range":
            begin = 0
        self.send_response(206 if begin else 200)
        if begin:
            size = len(self.CONTENT)
            self.send_header("Content-Range", f"bytes {begin}-{size - 1}/{size}")
        self.send_header("Content-Length", str(len(self.CONTENT) - begin))
        self.end_headers()
        cut = 100_000 if failure in ("/truncated", "/stalled", "/no-range") else None
        self.wfile.write(self.CONTENT[begin:cut])
        self.wfile.flush()
        if failure == "/stalled":
            # Until curl leaves.
            self.connection.recv(1)

    def log_message(self, *words: object) -> None:
        """Print nothing."""


@pytest.fixture
def unsteady() -> Iterator[str]:
    Unsteady.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Unsteady)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def fetch(machine: Machine, url: str) -> subprocess.CompletedProcess[str]:
    """Download with the real curl, without TLS and with seconds for its minutes."""
    machine.command(
        "curl",
        "for word; do case $word in =https) word='=http' ;; 60) word=1 ;; esac\n"
        f'words+=("$word"); done; exec {shutil.which("curl")} "${{words[@]}}"',
    )
    machine.command("sleep", "")
    return machine.bash("kiln_download X", X_URL=url, X_SHA256="")


@pytest.mark.parametrize(
    ("failure", "second"),
    [
        ("reset", ""),
        ("truncated", "bytes=100000-"),
        ("stalled", "bytes=100000-"),
        ("503", ""),
        ("429", ""),
    ],
)
def test_interrupted_download_goes_on(
    machine: Machine, unsteady: str, failure: str, second: str
) -> None:
    done = fetch(machine, f"{unsteady}/{failure}")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == Unsteady.CONTENT
    assert Unsteady.seen == [(f"/{failure}", ""), (f"/{failure}", second)]


def test_download_begins_anew_from_a_host_without_ranges(machine: Machine, unsteady: str) -> None:
    done = fetch(machine, f"{unsteady}/no-range")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == Unsteady.CONTENT


def test_refused_connection_is_tried_six_times(machine: Machine) -> None:
    done = fetch(machine, "http://127.0.0.1:9/x")
    assert done.returncode == 1
    assert done.stderr.count("the download failed, trying again in") == 5


def test_missing_file_is_not_tried_again(machine: Machine, unsteady: str) -> None:
    done = fetch(machine, f"{unsteady}/404")
    assert done.returncode == 1
    assert f"cannot download {unsteady}/404" in done.stderr
    assert len(Unsteady.seen) == 1


def signed_files(home: Path) -> dict[str, str]:
    """A file, its detached signature, the key's file (armoured, binary), its fingerprint, and
    another key's file."""
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", ""]
    names = ("file", "signature", "key", "binary", "other")
    paths = {name: str(home / name) for name in names}
    Path(paths["file"]).write_text("the installer")
    for name in ("vendor", "other"):
        subprocess.run([*gpg, "--quick-generate-key", name, "ed25519", "sign"], check=True)
    for name, target in (("vendor", "key"), ("other", "other")):
        subprocess.run([*gpg, "--armor", "--output", paths[target], "--export", name], check=True)
    subprocess.run([*gpg, "--output", paths["binary"], "--export", "vendor"], check=True)
    sign = [*gpg, "--local-user", "vendor", "--output", paths["signature"], "--detach-sign"]
    subprocess.run([*sign, paths["file"]], check=True)
    listed = subprocess.run(
        [*gpg, "--with-colons", "--list-keys", "vendor"], capture_output=True, text=True, check=True
    )
    fingerprint = re.search(r"^fpr:+([0-9A-F]{40}):", listed.stdout, re.MULTILINE)
    assert fingerprint
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)
    return {**paths, "fingerprint": fingerprint.group(1)}


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return signed_files(tmp_path_factory.mktemp("gnupg"))


def verify(machine: Machine, signed: dict[str, str], **change: str) -> subprocess.CompletedProcess:
    values = {**signed, **change}
    words = " ".join(f"'{values[n]}'" for n in ("file", "signature", "key", "fingerprint"))
    return machine.bash(f"kiln_check_signature {words}")


def test_a_good_signature_by_the_known_key_passes(machine: Machine, signed: dict[str, str]):
    done = verify(machine, signed)
    assert done.returncode == 0, done.stderr


def test_a_file_that_was_changed_is_refused(
    machine: Machine, signed: dict[str, str], tmp_path: Path
):
    changed = tmp_path / "changed"
    changed.write_text("another installer")
    done = verify(machine, signed, file=str(changed))
    assert done.returncode == 1
    assert "changed is not what" in done.stderr


def test_a_key_that_came_with_the_file_is_refused(machine: Machine, signed: dict[str, str]):
    done = verify(machine, signed, key=signed["other"])
    assert done.returncode == 1
    assert f"expected {signed['fingerprint']}, got" in done.stderr


def test_a_key_file_with_a_second_key_is_refused(
    machine: Machine, signed: dict[str, str], tmp_path: Path
):
    both = tmp_path / "both"
    both.write_text(Path(signed["key"]).read_text() + Path(signed["other"]).read_text())
    assert verify(machine, signed, key=str(both)).returncode == 1


def test_a_key_without_a_fingerprint_is_not_trusted(machine: Machine, signed: dict[str, str]):
    done = verify(machine, signed, fingerprint="")
    assert done.returncode == 1
    assert "no fingerprint given" in done.stderr


@pytest.mark.parametrize(
    ("text", "compiler"),
    [
        ("gcc10-gcc (GCC) 10.5.0 20230707 (Red Hat 10.5.0-1)", "gcc10-gcc"),
        ("x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0", "gcc-12"),
        ("gcc (GCC) 11.5.0 20240719 (Red Hat 11.5.0-5)", "gcc"),
    ],
)
def test_the_kernels_configuration_names_its_compiler(machine: Machine, text: str, compiler: str):
    plant(machine.root / "image", {"boot/config-5.10": f'CONFIG_CC_VERSION_TEXT="{text}"\n'})
    assert machine.bash("kiln_compiler 5.10").stdout.strip() == compiler


def dkms_conf(machine: Machine, compiler: str) -> Path:
    """What kiln_dkms_compiler leaves for the module nvidia where that compiler built the kernel."""
    done = machine.bash(f"kiln_compiler() {{ echo {compiler}; }}; kiln_dkms_compiler 5.10 nvidia")
    assert done.returncode == 0, done.stderr
    return machine.root / "image/etc/dkms/nvidia.conf"


@pytest.mark.parametrize(
    ("own", "command"),
    [
        # NVIDIA's quotes around 'make' have to stay: DKMS would add KERNELRELEASE to a bare make.
        (
            """MAKE[0]="'make' -j2 KERNEL_UNAME=${kernelver} modules\"""",
            "'make' -j2 KERNEL_UNAME=5.10 modules CC=gcc10-gcc",
        ),
        ("", "make -C /tree M=/dkms/nvidia/1/build CC=gcc10-gcc"),
    ],
)
def test_dkms_builds_with_the_kernels_own_compiler(machine: Machine, own: str, command: str):
    variables = "kernelver=5.10 kernel_source_dir=/tree dkms_tree=/dkms module=nvidia"
    read = f"{variables} module_version=1\n{own}\n. {dkms_conf(machine, 'gcc10-gcc')}"
    done = subprocess.run(
        ["bash", "-c", f'{read}; echo "${{MAKE[0]}}"'], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == command


def test_dkms_is_left_alone_where_the_compiler_is_the_default_one(machine: Machine):
    assert dkms_conf(machine, "gcc10-gcc").exists()
    assert not dkms_conf(machine, "gcc").exists()


def test_a_pinned_kernel_is_the_one_that_boots(machine: Machine):
    machine.etc.mkdir()
    (machine.etc / "kernel").write_text("5.15.0-1120-aws\n")
    assert machine.bash("kiln_boot_kernel").stdout.strip() == "5.15.0-1120-aws"


@pytest.mark.parametrize(
    ("systemd", "dropins"),
    [("219", []), ("252", ["kiln-.service.d", "kiln-gpu-.service.d", "kiln-gpu-x.service.d"])],
)
def test_unit_comes_with_the_dropins_its_systemd_knows(
    machine: Machine, systemd: str, dropins: list[str]
):
    units = machine.kiln / "runtime/etc/systemd/system"
    for folder in ("kiln-.service.d", "kiln-gpu-.service.d", "kiln-gpu-x.service.d", "other.d"):
        (units / folder).mkdir(parents=True)
        (units / folder / "10.conf").touch()
    (units / "kiln-gpu-x.service").touch()
    machine.command("systemctl", f"echo systemd {systemd}")
    done = machine.bash("kiln_install_units kiln-gpu-x.service")
    assert done.returncode == 0, done.stderr
    installed = machine.root / "image/etc/systemd/system"
    assert sorted(path.name for path in installed.iterdir()) == sorted(
        [*dropins, "kiln-gpu-x.service"]
    )


def test_unit_of_the_original_pipeline_makes_way_for_the_alias(machine: Machine):
    """systemd enables no unit whose alias is a file."""
    units = machine.kiln / "runtime/etc/systemd/system"
    units.mkdir(parents=True)
    (units / "kiln-x.service").write_text("[Install]\nAlias=aws-x.service\n")
    old = machine.root / "image/etc/systemd/system/aws-x.service"
    old.parent.mkdir(parents=True)
    old.write_text("[Service]\nExecStart=/bin/old\n")
    machine.command("systemctl", 'echo "systemctl $*" >&2; echo systemd 252')
    done = machine.bash("kiln_install_units kiln-x.service")
    assert done.returncode == 0, done.stderr
    assert not old.exists()
    assert "disable aws-x.service" in done.stderr
    assert "replacing the parent's aws-x.service" in done.stderr


def test_programs_are_executable_on_the_image_and_other_files_are_not(machine: Machine):
    folder = machine.kiln / "runtime/opt/x"
    folder.mkdir(parents=True)
    (folder / "program").write_text("#!/bin/sh\n")
    (folder / "data").write_text("x")
    (folder / "data").chmod(0o777)
    assert machine.bash("kiln_install_runtime opt/x").returncode == 0
    modes = {p.name: oct(p.stat().st_mode)[-3:] for p in (machine.root / "image/opt/x").iterdir()}
    assert modes == {"program": "755", "data": "644"}


def test_what_a_script_needs_and_the_upload_lacks_is_named(machine: Machine):
    done = machine.bash("kiln_install_runtime opt/missing")
    assert done.returncode == 1
    assert "runtime/opt/missing is missing from the upload" in done.stderr


def test_a_file_that_is_not_rendered_for_the_image_stops_the_script(machine: Machine):
    done = machine.bash("kiln_install_files etc/missing")
    assert done.returncode == 1
    assert "files/etc/missing is missing from the upload" in done.stderr


def test_a_record_of_a_second_run_repeats_nothing(machine: Machine):
    for _ in range(2):
        machine.bash("kiln_record version=1.2 'held+=a b'; kiln_record 'held+=b c'")
    record = json.loads((machine.etc / "components/sample.json").read_text())
    assert record == {"component": "sample", "version": "1.2", "held": ["a", "b", "c"]}


# ------------------------------------------------------------------- hygiene.sh

CLEAN = {
    "etc/passwd": "root:x:0:0::/root:/bin/bash\nec2-user:x:1000:1000::/home/ec2-user:/bin/bash\n",
    "etc/shadow": "root:*LOCK*:1::::::\nec2-user:!!:1::::::\n",
    "etc/machine-id": "",
    "var/log/lastlog": "x",
    "var/tmp/systemd-private-1/keep": "x",
    "home/ec2-user/.bashrc": "x",
}
DIRTY = {
    "SSH host keys": ("etc/ssh/ssh_host_rsa_key", "x"),
    "SSH keys of users": ("home/ec2-user/.ssh/authorized_keys", "ssh-rsa AAAA packer"),
    "shell and tool histories": ("root/.bash_history", "x"),
    "credentials of users": ("home/ec2-user/.aws/credentials", "x"),
    "private keys": ("opt/kiln/x", "-----BEGIN RSA PRIVATE KEY-----"),
    "AWS access keys": ("etc/kiln/x", "key=AKIA" + "A" * 16),
    "machine id": ("etc/machine-id", "0" * 32),
    "D-Bus machine id": ("var/lib/dbus/machine-id", "0" * 32),
    "host name": ("etc/hostname", "ip-10-0-0-1.ec2.internal"),
    "package history": ("var/lib/dnf/history.sqlite-wal", "x"),
    "cloud-init state": ("var/lib/cloud/instances/i-1/x", "x"),
    "random seed and credential secret": ("var/lib/systemd/random-seed", "x"),
    "logs with content": ("var/log/syslog", "x"),
    "session logs": ("var/log/wtmp", ""),
    "journals of the build instance": ("var/log/journal/0123/system.journal", ""),
    "GPU events": ("var/log/gpuevent.log.1", "x"),
    "CloudWatch agent state": ("opt/aws/amazon-cloudwatch-agent/logs/state/x", "x"),
    "ECS agent registration": ("var/lib/ecs/data/agent.db", "x"),
    "ECS agent logs": ("var/log/ecs/ecs-init.log.2026", ""),
    "SSM agent registration": ("var/lib/amazon/ssm/Vault/x", "x"),
    "package caches": ("var/cache/apt/archives/x.deb", "x"),
    "package sources of a snapshot": (
        "etc/apt/sources.list.d/kiln-package-snapshot.list",
        "deb https://snapshot/ jammy main",
    ),
    "build files": ("var/tmp/kiln/x", "x"),
    "temporary files": ("tmp/x", "x"),
    "passwords": ("etc/shadow", "root:$6$salt$hash:1::::::\n"),
    "proxy and mirrors of the bake": (
        "etc/yum.repos.d/nvidia-cuda.repo",
        "baseurl=https://mirror.example.com/nvidia/compute/cuda",
    ),
}
OF_THE_BAKE = {
    "KILN_PROXY": "http://proxy.example.com:3128",
    "KILN_MIRRORS": "https://developer.download.nvidia.com=https://mirror.example.com/nvidia",
}


def hygiene(root: Path) -> tuple[subprocess.CompletedProcess[str], dict]:
    done = subprocess.run(
        ["bash", str(PROVISIONERS / "hygiene.sh")],
        env={"PATH": os.environ["PATH"], "KILN_ROOT": str(root), **OF_THE_BAKE},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, json.loads((root / "etc/kiln/hygiene.json").read_text())


def plant(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


def test_a_clean_image_passes_hygiene(tmp_path: Path):
    plant(tmp_path, CLEAN)
    done, report = hygiene(tmp_path)
    assert done.returncode == 0, done.stderr
    assert report["failed"] == 0
    assert {check["check"] for check in report["checks"]} == set(DIRTY)


@pytest.mark.parametrize("name", DIRTY)
def test_hygiene_stops_the_bake_over_what_is_left(tmp_path: Path, name: str):
    path, content = DIRTY[name]
    plant(tmp_path, {**CLEAN, path: content})
    done, report = hygiene(tmp_path)
    assert done.returncode == 1
    assert f"ERROR: {name}: " in done.stderr
    assert name in [check["check"] for check in report["checks"] if not check["ok"]]


@pytest.mark.parametrize(
    "left",
    [
        'Acquire::http::Proxy "http://proxy.example.com:3128/";',
        "export https_proxy=proxy.example.com:3128",
    ],
)
def test_hygiene_finds_the_proxy_wherever_it_is_written(tmp_path: Path, left: str):
    plant(tmp_path, {**CLEAN, "etc/apt/apt.conf.d/90x": left})
    done, _ = hygiene(tmp_path)
    assert done.returncode == 1
    assert "ERROR: proxy and mirrors of the bake: " in done.stderr


@pytest.mark.parametrize("key", ["dkms/mok.key", "shim-signed/mok/MOK.priv"])
def test_hygiene_finds_the_key_with_which_dkms_signed_its_modules(tmp_path: Path, key: str):
    plant(tmp_path, {**CLEAN, f"var/lib/{key}": "-----BEGIN PRIVATE KEY-----\n"})
    done, _ = hygiene(tmp_path)
    assert done.returncode == 1
    assert f"ERROR: private keys: {tmp_path}/var/lib/{key}" in done.stderr


# ------------------------------------------------------------------- mirrors

VENDOR, MIRROR = "https://developer.download.nvidia.com", "https://mirror.example.com/nvidia"
SOURCES = {
    "etc/apt/sources.list": "deb http://deb.debian.org/debian bookworm main\n",
    "etc/apt/sources.list.d/nvidia-cuda.list": f"deb [signed-by=/k] {VENDOR}/compute/cuda/ /\n",
    "etc/apt/sources.list.d/debian.sources": "URIs: mirror+file:///etc/apt/mirrors/debian.list\n",
    "etc/apt/mirrors/debian.list": "https://cdn-aws.deb.debian.org/debian\n",
    "etc/yum.repos.d/nvidia-cuda.repo": f"[x]\nbaseurl={VENDOR}/compute/cuda\n",
}


def test_during_the_bake_package_sources_name_the_mirror_and_then_the_vendor_again(
    machine: Machine,
):
    plant(machine.root / "image", SOURCES)
    mirrors = (
        f"{VENDOR}={MIRROR} http://deb.debian.org=http://mirror.example.com/debian-org"
        " https://cdn-aws.deb.debian.org=http://mirror.example.com/debian-aws"
    )
    image = machine.root / "image"
    machine.command("apt-get", f"cat {image}/etc/apt/*/*.list {image}/etc/apt/*.list")
    done = machine.bash("kiln_pm update", KILN_MIRRORS=mirrors)
    assert done.returncode == 0, done.stderr
    assert f"{MIRROR}/compute/cuda/" in done.stderr
    assert "http://mirror.example.com/debian-org/debian bookworm" in done.stderr
    assert "http://mirror.example.com/debian-aws/debian\n" in done.stderr
    assert VENDOR not in done.stderr
    assert machine.bash("kiln_forget_mirrors", KILN_MIRRORS=mirrors).returncode == 0
    assert {name: (image / name).read_text() for name in SOURCES} == SOURCES
    assert "\nkiln_forget_mirrors\n" in (PROVISIONERS / "cleanup.sh").read_text()


def test_an_instance_that_cannot_reach_the_vendors_installs_from_its_distribution(machine: Machine):
    image = machine.root / "image/etc/yum.repos.d"
    ours = "[nvidia-cuda]\nname=x\nskip_if_unavailable=0\n"
    epel = "[epel]\nenabled=1\n\n[epel-source]\nenabled=0\n"
    amazon = "[amzn2-core]\nskip_if_unavailable=0\n"
    plant(image, {"nvidia-cuda.repo": ours, "epel.repo": epel, "amzn2-core.repo": amazon})
    assert machine.bash("kiln_skip_unavailable").returncode == 0
    assert (image / "nvidia-cuda.repo").read_text() == (
        "[nvidia-cuda]\nskip_if_unavailable=1\nname=x\n"
    )
    assert (image / "epel.repo").read_text() == (
        "[epel]\nskip_if_unavailable=1\nenabled=1\n\n"
        "[epel-source]\nskip_if_unavailable=1\nenabled=0\n"
    )
    assert (image / "amzn2-core.repo").read_text() == amazon
    assert "\nkiln_skip_unavailable\n" in (PROVISIONERS / "cleanup.sh").read_text()


def test_a_download_comes_from_the_mirror_and_is_recorded_as_the_vendors(machine: Machine):
    machine.command("curl", 'echo "${@: -1}" >&2; echo x >"${@: -2:1}"')
    done = machine.bash(
        "kiln_download X",
        X_URL=f"{VENDOR}/a/b.run",
        X_SHA256="73cb3858a687a8494ca3323053016282f3dad39d42cf62ca4e79dda2aac7d9ac",
        KILN_MIRRORS=f"https://developer.download=https://no.example {VENDOR}={MIRROR}",
    )
    assert done.returncode == 0, done.stderr
    assert f"\n{MIRROR}/a/b.run\n" in done.stderr
    (entry,) = json.loads((machine.etc / "downloads.json").read_text())
    assert (entry["url"], entry["sha256_was"]) == (f"{VENDOR}/a/b.run", "locked")


def test_a_file_of_the_mirror_with_another_hash_stops_the_bake(machine: Machine):
    machine.command("curl", 'echo y >"${@: -2:1}"')
    done = machine.bash(
        "kiln_download X",
        X_URL=f"{VENDOR}/a/b.run",
        X_SHA256="73cb3858a687a8494ca3323053016282f3dad39d42cf62ca4e79dda2aac7d9ac",
        KILN_MIRRORS=f"{VENDOR}={MIRROR}",
    )
    assert done.returncode == 1
    assert "does not have the sha256 of the lock file" in done.stderr


# ------------------------------------------------------------------- lib/version_info.py


def test_debian_versions_are_taken_apart():
    sys.path.insert(0, str(PROVISIONERS / "lib"))
    import version_info

    assert version_info.split_deb("1:2.34-5+b1") == ("1", "2.34", "5+b1")
    assert version_info.split_deb("2.12.7-1+cuda11.6") == ("0", "2.12.7", "1+cuda11.6")
    assert version_info.split_deb("20230311") == ("0", "20230311", "")


def test_version_info_hashes_what_components_installed_and_the_configuration(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(PROVISIONERS / "lib"))
    import version_info

    plant(
        tmp_path,
        {
            "etc/sysctl.d/60-kiln.conf": "# ours\nnet.core.rmem_max = 16777216\n-vm/swappiness=1\n",
            "usr/lib/sysctl.d/50-default.conf": "vm.swappiness = 60\n",
            "usr/lib/sysctl.d/60-kiln.conf": "net.core.rmem_max = 1\n",
            "etc/default/grub": 'GRUB_CMDLINE_LINUX="console=ttyS0"\n',
            "opt/acme/tool/run.py": "x",
            "opt/acme/tool/run.pyc": "x",
            "etc/kiln/recipe.json": "{}",
            "usr/lib/elsewhere": "not ours",
        },
    )
    (tmp_path / "usr/local/bin").mkdir(parents=True)
    (tmp_path / "usr/local/bin/tool").symlink_to("/opt/acme/tool/run.py")
    components = {"acme": {"files": ["/opt/acme", "/etc/kiln", "/usr/local/bin/tool", "/gone"]}}
    found = version_info.installed_files(components, str(tmp_path))
    assert list(found) == [
        "/etc/default/grub",
        "/etc/sysctl.d/60-kiln.conf",
        "/opt/acme/tool/run.py",
        "/usr/local/bin/tool",
    ]
    x = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert found["/opt/acme/tool/run.py"].startswith(f"sha256:{x} 0")
    assert found["/usr/local/bin/tool"] == "link:/opt/acme/tool/run.py"
    assert version_info.configured_sysctls(str(tmp_path)) == {
        "net.core.rmem_max": "16777216",
        "vm.swappiness": "1",
    }
    assert version_info.boot_parameters(str(tmp_path)) == {"GRUB_CMDLINE_LINUX": "console=ttyS0"}


def test_the_checks_collector_takes_no_name_of_version_info():
    # Both are run as one program on the machine: the later of two functions of a name wins.
    texts = [(PROVISIONERS / "lib/version_info.py").read_text()]
    texts.append((PROVISIONERS.parent / "tests/ami/collect.py").read_text())
    names = [set(re.findall(r"^(?:def )?(\w+)(?:\(| = )", text, re.MULTILINE)) for text in texts]
    assert len(names[0]) > 20
    assert names[0] & names[1] == set()
