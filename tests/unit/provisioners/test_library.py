"""provisioners/lib: packages, locks, kernels, units and records, on a machine of stand-ins."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from kiln.base.paths import AMI_TESTS, PROVISIONERS
from tests.unit.provisioners.machine import Machine, plant

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("older", "newer"), [("510.47.03", "515.65.01"), ("5.14", "10.14"), ("1.9.2", "1.14.0")]
)
def test_versions_compare_as_numbers(machine: Machine, older: str, newer: str) -> None:
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
        ("580.178.04-1ubuntu1", "580.178.0", "", False),
    ],
)
def test_revision_matches_exact_version(
    machine: Machine, installed: str, version: str, build: str, fits: bool
) -> None:
    done = machine.bash(f"kiln_matches '{installed}' '{version}' '{build}'")
    assert (done.returncode == 0) is fits


# ------------------------------------------------------------------- packages


def test_apt_installs_newest_revision_of_version(machine: Machine) -> None:
    offers = ("2.29.0-1+cuda13.0", "2.28.9-1+cuda13.0", "2.28.9-1+cuda12.9")
    machine.command("apt-cache", "".join(f"echo ' libnccl2 | {each} | x'\n" for each in offers))
    machine.command("dpkg-query", "[[ -e $0.state ]] || exit 1; echo 'ii 2.28.9-1+cuda13.0'")
    machine.command("apt-get", 'echo "$@" >> $0.log; echo installed > ${0%apt-get}dpkg-query.state')
    machine.works("kiln_install libnccl2=2.28.9@cuda13.0")
    assert "libnccl2=2.28.9-1+cuda13.0" in machine.log("apt-get")[-1]


# Package manager → what it says while another process holds its lock.
LOCKED = {
    "apt": "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 815 (apt-get)",
    "dnf": "RPM: error: can't create transaction lock on /var/lib/rpm/.rpm.lock",
    "yum": "RPM: error: can't create transaction lock on /var/lib/rpm/.rpm.lock",
}


@pytest.mark.parametrize("tool", LOCKED)
def test_package_manager_waits_for_lock(tmp_path: Path, tool: str) -> None:
    machine = Machine(tmp_path, "debian" if tool == "apt" else "amazon")
    fails = f'[[ $(wc -l <$0.log) -gt 9 ]] || {{ echo "{LOCKED[tool]}" >&2; exit 1; }}'
    machine.command("apt-get" if tool == "apt" else tool, f"echo x >>$0.log; {fails}")
    done = machine.works("kiln_pm upgrade", KILN_PACKAGE_MANAGER=tool)
    assert done.stderr.count(f"another process holds a lock that {tool} needs") == 1


def test_failing_repository_is_tried_three_times(machine: Machine) -> None:
    machine.command("apt-get", "echo x >>$0.log; echo 'E: Failed to fetch x' >&2; exit 100")
    machine.command("systemctl", "[[ $1 != list-unit-files ]] || exit 1")
    machine.stops("kiln_refresh")
    # Each retry fetches the package lists first.
    assert machine.log("apt-get") == ["x"] * 5


def test_apt_retries_hash_mismatch_with_fresh_lists(machine: Machine) -> None:
    lists = machine.root / "image/var/lib/apt/lists"
    plant(lists, {"stale": ""})
    machine.command(
        "apt-get",
        f"[[ $* != *install* || ! -e {lists}/stale ]] || {{ echo E: Hash Sum mismatch; exit 1; }}",
    )
    machine.works("kiln_pm install x")


def test_apt_retries_repository_that_does_not_answer(machine: Machine) -> None:
    """apt-get update ends with 0 then, and nothing of that repository could be installed."""
    words = "W: Some index files failed to download. They have been ignored, or old ones used."
    machine.command("systemctl", "")
    machine.command(
        "apt-get", f'echo x >>$0.log; [[ $(wc -l <$0.log) -gt 2 ]] || echo "{words}" >&2'
    )
    machine.works("kiln_refresh")
    assert machine.log("apt-get") == ["x"] * 3
    first = "W: Failed to fetch http://ppa.example/dists/jammy/InRelease  Could not resolve"
    machine.command("apt-get", f'printf "%s\\n" "Err:1 x" "{first}" "W: Failed y" "{words}" >&2')
    assert f"cannot be fetched: {first[3:]}" in machine.stops("kiln_refresh")


@pytest.mark.parametrize("tool", ["dnf", "yum"])
def test_dnf_and_yum_retry_with_fresh_metadata(tmp_path: Path, tool: str) -> None:
    machine = Machine(tmp_path, "al")
    machine.command(
        tool, 'echo "$*" >>$0.log; [[ $* != *install* ]] || grep -q expire-cache $0.log'
    )
    machine.works("kiln_pm install x", KILN_PACKAGE_MANAGER=tool)
    install = "-q -y install x"
    assert machine.log(tool) == [install, "-q clean expire-cache", install]


def test_unknown_package_is_not_tried_again(machine: Machine) -> None:
    machine.command("apt-get", "echo x >>$0.log; echo E: Unable to locate package y; exit 100")
    machine.stops("kiln_pm install y || exit 1")
    assert machine.log("apt-get") == ["x"]


def test_daily_update_stops_before_lists_are_fetched(machine: Machine) -> None:
    machine.command("apt-get", 'echo "apt-get ${!#}" >>${0%/*}/systemctl.log')
    machine.command("systemctl", 'echo "$*" >>$0.log')
    machine.works("kiln_refresh")
    # Not apt-daily-upgrade.service: an upgrade that runs is not interrupted.
    stopped = "stop apt-daily*.timer apt-daily.*"
    assert machine.log("systemctl") == [stopped, "apt-get update"]


def test_missing_version_names_offered_versions(machine: Machine) -> None:
    machine.command("apt-cache", "echo ' libnccl2 | 2.29.0-1+cuda13.0 | x'")
    machine.command("dpkg-query", "exit 1")
    error = machine.stops("kiln_install libnccl2=2.28.9@cuda13.0; echo unreachable")
    assert "it offers: 2.29.0-1+cuda13.0" in error


def test_package_that_dnf_skipped_is_an_error(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "al")
    machine.command("dnf", "exit 0")
    machine.command("rpm", "echo package is not installed; exit 1")
    error = machine.stops("kiln_install nvidia-driver=580.178.04")
    assert "nvidia-driver 580.178.04" in error


# ------------------------------------------------------------------- locks of packages

LOCKS = {
    "yum": ("etc/yum/pluginconf.d/versionlock.list", "0:{}-{}.*"),
    "dnf": ("etc/dnf/plugins/versionlock.list", "{}-0:{}.*"),
}


def test_yum_that_is_dnf_gets_dnfs_locks(tmp_path: Path) -> None:
    """dnf's package `yum` links /etc/yum/pluginconf.d to dnf's folder (dnf.spec)."""
    path, lock = LOCKS["dnf"]
    machine = Machine(tmp_path, "al")
    plant(machine.root / "image", {path: "", "etc/yum/x": ""})
    (machine.root / "image/etc/yum/pluginconf.d").symlink_to("../dnf/plugins")
    machine.rpm("2.12.7-1")
    machine.works("kiln_hold libnccl")
    held = (machine.root / "image" / path).read_text().split()
    assert held == [lock.format("libnccl", "2.12.7-1")]


@pytest.mark.parametrize("tool", LOCKS)
def test_hold_locks_installed_version_once(tmp_path: Path, tool: str) -> None:
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
    machine.works("kiln_unhold cuda-11-6; kiln_hold libnccl; kiln_hold libnccl")
    expected = ["# Added lock", *others, lock.format("libnccl", "2.12.7-1")]
    assert (machine.root / "image" / path).read_text().splitlines() == expected


def test_package_that_is_not_installed_cannot_be_held(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "al")
    plant(machine.root / "image", {LOCKS["dnf"][0]: ""})
    machine.command("rpm", "echo package x is not installed; exit 1")
    machine.stops("kiln_hold x")


# ------------------------------------------------------------------- kernels

KERNEL = "6.1.1-1.amzn2023.x86_64"


@pytest.mark.parametrize(
    ("listed", "version"),
    [
        (f"gdrdrv/2.5.1, {KERNEL}, x86_64: installed", "2.5.1"),
        (f"gdrdrv, 2.5.1, {KERNEL}, x86_64: installed (original)", "2.5.1"),
        (f"gdrdrv/2.5.1, {KERNEL}, x86_64: built", ""),
        ("gdrdrv/2.5.1, 6.1.0-9.amzn2023.x86_64, x86_64: installed", ""),
        ("", ""),
    ],
)
def test_dkms_version_is_that_of_the_kernel(machine: Machine, listed: str, version: str) -> None:
    machine.command("dkms", f"echo '{listed}'")
    assert machine.works(f"kiln_dkms_version {KERNEL} gdrdrv").stdout.strip() == version


@pytest.mark.parametrize(
    ("text", "compiler"),
    [
        ("gcc10-gcc (GCC) 10.5.0 20230707 (Red Hat 10.5.0-1)", "gcc10-gcc"),
        ("x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0", "gcc-12"),
        ("gcc (GCC) 11.5.0 20240719 (Red Hat 11.5.0-5)", "gcc"),
    ],
)
def test_kernel_configuration_names_its_compiler(
    machine: Machine, text: str, compiler: str
) -> None:
    plant(machine.root / "image", {"boot/config-5.10": f'CONFIG_CC_VERSION_TEXT="{text}"\n'})
    assert machine.bash("kiln_compiler 5.10").stdout.strip() == compiler


def dkms_conf(machine: Machine, compiler: str) -> Path:
    """What kiln_dkms_compiler leaves for the module nvidia where that compiler built the kernel."""
    machine.works(f"kiln_compiler() {{ echo {compiler}; }}; kiln_dkms_compiler 5.10 nvidia")
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
def test_dkms_builds_with_kernels_compiler(machine: Machine, own: str, command: str) -> None:
    variables = "kernelver=5.10 kernel_source_dir=/tree dkms_tree=/dkms module=nvidia"
    read = f"{variables} module_version=1\n{own}\n. {dkms_conf(machine, 'gcc10-gcc')}"
    done = subprocess.run(
        ["bash", "-c", f'{read}; echo "${{MAKE[0]}}"'], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == command
    assert not dkms_conf(machine, "gcc").exists()


def test_pinned_kernel_boots(machine: Machine) -> None:
    plant(machine.etc, {"kernel": "5.15.0-1120-aws\n"})
    assert machine.bash("kiln_boot_kernel").stdout.strip() == "5.15.0-1120-aws"


# ------------------------------------------------------------------- units and files


@pytest.mark.parametrize(
    ("systemd", "dropins"),
    [("219", []), ("252", ["kiln-.service.d", "kiln-gpu-.service.d", "kiln-gpu-x.service.d"])],
)
def test_unit_gets_dropins_its_systemd_knows(
    machine: Machine, systemd: str, dropins: list[str]
) -> None:
    units = machine.kiln / "runtime/etc/systemd/system"
    folders = ("kiln-.service.d", "kiln-gpu-.service.d", "kiln-gpu-x.service.d", "other.d")
    plant(units, {"kiln-gpu-x.service": "", **{f"{each}/10.conf": "" for each in folders}})
    machine.command("systemctl", f"echo systemd {systemd}")
    machine.works("kiln_install_units kiln-gpu-x.service")
    installed = machine.root / "image/etc/systemd/system"
    names = {path.name for path in installed.iterdir()}
    assert names == {*dropins, "kiln-gpu-x.service"}


def test_original_unit_makes_way_for_the_alias(machine: Machine) -> None:
    """systemd enables no unit whose alias is a file."""
    units = {"kiln-x.service": "[Install]\nAlias=aws-x.service\n"}
    plant(machine.kiln / "runtime/etc/systemd/system", units)
    installed = machine.root / "image/etc/systemd/system"
    plant(installed, {"aws-x.service": "[Service]\nExecStart=/bin/old\n"})
    machine.command("systemctl", 'echo "systemctl $*" >&2; echo systemd 252')
    done = machine.works("kiln_install_units kiln-x.service")
    assert not (installed / "aws-x.service").exists()
    assert "disable aws-x.service" in done.stderr


def test_only_programs_are_executable_on_the_image(machine: Machine) -> None:
    folder = machine.kiln / "runtime/opt/x"
    plant(folder, {"program": "#!/bin/sh\n", "data": "x"})
    (folder / "data").chmod(0o777)
    machine.works("kiln_install_runtime opt/x")
    modes = {p.name: oct(p.stat().st_mode)[-3:] for p in (machine.root / "image/opt/x").iterdir()}
    assert modes == {"program": "755", "data": "644"}


@pytest.mark.parametrize("kind", ["runtime", "files"])
def test_file_missing_from_the_upload_is_named(machine: Machine, kind: str) -> None:
    assert f"{kind}/etc/missing" in machine.stops(f"kiln_install_{kind} etc/missing")


def test_component_that_fails_leaves_no_record(machine: Machine) -> None:
    record = machine.etc / "components/sample.json"
    machine.stops("kiln_record version=1; kiln_die 'it broke'")
    assert not record.exists()
    for _ in range(2):
        machine.works("kiln_record version=1.2 'held+=a b'; kiln_record 'held+=b c'")
    held = ["a", "b", "c"]
    assert json.loads(record.read_text()) == {
        "component": "sample", "version": "1.2", "held": held,
    }  # fmt: skip


# ------------------------------------------------------------------- lib/version_info.py


def test_version_info_has_files_and_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PROVISIONERS / "lib"))
    import version_info

    assert version_info.split_deb("1:2.34-5+b1") == ("1", "2.34", "5+b1")
    assert version_info.split_deb("20230311") == ("0", "20230311", "")
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
    tool = "/opt/acme/tool/run.py"
    assert list(found) == [
        *("/etc/default/grub", "/etc/sysctl.d/60-kiln.conf", tool, "/usr/local/bin/tool")
    ]
    x = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert found[tool].startswith(f"sha256:{x} 0")
    assert found["/usr/local/bin/tool"] == f"link:{tool}"
    assert version_info.configured_sysctls(str(tmp_path)) == {
        "net.core.rmem_max": "16777216", "vm.swappiness": "1",
    }  # fmt: skip
    assert version_info.boot_parameters(str(tmp_path)) == {"GRUB_CMDLINE_LINUX": "console=ttyS0"}


def test_collector_and_version_info_share_no_name() -> None:
    # Both are run as one program on the machine: the later of two functions of a name wins.
    files = (PROVISIONERS / "lib/version_info.py", AMI_TESTS / "collect.py")
    pattern = r"(?m)^(?:def )?(\w+)(?:\(| = )"
    ours, theirs = (set(re.findall(pattern, path.read_text())) for path in files)
    assert len(ours) > 20
    assert ours & theirs == set()
