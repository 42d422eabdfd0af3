"""Single scripts, and what holds for all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kiln import components
from kiln.base.paths import PROVISIONERS
from kiln.base.recipe import Recipe
from kiln.matrix.load import load_recipes
from tests.unit.provisioners.machine import Machine, Script, plant

pytestmark = pytest.mark.slow

SCRIPTS = sorted(PROVISIONERS.glob("*.sh"))
RECIPES = load_recipes()


def code(path: Path) -> str:
    """A script without its comments."""
    return re.sub(r"(?m)#.*$", "", path.read_text())


def function(script: str, name: str) -> str:
    text = (PROVISIONERS / script).read_text()
    (found,) = re.findall(rf"(?ms)^{name}\(\) \{{.*?^\}}", text)
    return str(found)


# ------------------------------------------------------------------- every script


def test_every_component_has_its_script() -> None:
    assert set(components.names()) == {path.stem for path in SCRIPTS}


def test_no_script_installs_latest() -> None:
    for path in SCRIPTS:
        assert "latest" not in code(path).replace("kmod-nvidia-latest-dkms", ""), path.name


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipe_pins_packages_and_downloads(recipe: Recipe) -> None:
    for component in recipe.components:
        step = components.get(component).for_recipe(recipe)
        for download in step.downloads:
            assert download.url.startswith("https://"), download.url
            assert "latest" not in download.url
        for name, value in step.env.items():
            if name.endswith("_PACKAGES") and not name.endswith("_OS_PACKAGES"):
                unpinned = {word for word in value.split() if "=" not in word}
                # Debian's persistenced has a version of its own.
                assert unpinned <= {"nvidia-persistenced"}, name


# ------------------------------------------------------------------- nvidia-driver.sh


@pytest.fixture
def release() -> str:
    """The driver's script releases the driver that is there; $OWNER is nvidia-smi's package."""
    names = ("packages_of", "release_packages")
    lines = [function("nvidia-driver.sh", name) for name in names]
    return "\n".join([*lines, "smi_owner() { echo $OWNER; }", "release_packages"])


def test_apt_releases_parents_held_driver_whole(machine: Machine, release: str) -> None:
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
    machine.works(release, OWNER="nvidia-utils-535")
    assert machine.log("apt-mark") == ["unhold libnvidia-compute-535 nvidia-utils-535"]


def test_dnf_releases_parents_held_driver_whole(tmp_path: Path, release: str) -> None:
    """dnf 4 filters out what is locked: nvidia-open of a new version has no nvidia-driver."""
    machine = Machine(tmp_path, "al")
    locked = "kernel-0:6.1-1.*\nlibnvidia-ml-3:535.183.01-1.*\nnvidia-driver-3:535.183.01-1.*\n"
    plugins = machine.root / "image/etc/dnf/plugins"
    plant(plugins, {"versionlock.list": locked})
    machine.command(
        "rpm",
        "if [[ $1 == -qa ]]; then echo ii kernel 6.1-; echo ii libnvidia-ml 535.183.01-; "
        "echo ii nvidia-driver 535.183.01-; else echo 535.183.01-1; fi",
    )
    machine.works(release, OWNER="libnvidia-ml")
    assert (plugins / "versionlock.list").read_text() == "kernel-0:6.1-1.*\n"


@pytest.mark.parametrize(
    ("image", "tool", "called"),
    [
        ("initrd.img-6.1", "update-initramfs", "-u -k 6.1"),
        (
            "initramfs-6.1.img",
            "dracut",
            "--force --omit-drivers nouveau {boot}/initramfs-6.1.img 6.1",
        ),
    ],
)
def test_initramfs_is_rebuilt_for_boot_kernel(
    machine: Machine, image: str, tool: str, called: str
) -> None:
    boot = machine.root / "image/boot"
    plant(boot, {image: ""})
    machine.command(tool, 'echo "$*" >>$0.log; [[ ! -e $0.broken ]]')
    assert "\nrebuild_initramfs\n" in (PROVISIONERS / "nvidia-driver.sh").read_text()
    rebuild = f"kernel=6.1\n{function('nvidia-driver.sh', 'rebuild_initramfs')}\nrebuild_initramfs"
    machine.works(rebuild)
    assert machine.log(tool) == [called.format(boot=boot)]
    plant(machine.bin, {f"{tool}.broken": ""})
    assert f"{tool} failed for 6.1" in machine.stops(rebuild)


@pytest.mark.parametrize(
    ("dnf", "status"),
    [
        # No modules at all.
        ('[[ $* == *list* ]] || exit 9; echo "Error: No matching Modules to list" >&2; exit 1', 0),
        ("echo \"Error: Failed to download metadata for repo 'cuda'\" >&2; exit 1", 1),
    ],
)
def test_streams_that_dnf_cannot_list_stop_the_bake(tmp_path: Path, dnf: str, status: int) -> None:
    machine = Machine(tmp_path, "amazon")
    machine.command("dnf", dnf)
    chosen = f"{function('nvidia-driver.sh', 'choose_stream')}\nchoose_stream 580-open"
    assert machine.bash(chosen).returncode == status


# ------------------------------------------------------------------- other scripts


def lines(script: str, pattern: str) -> str:
    """The only lines of a script that match."""
    (found,) = re.findall(rf"(?m)^{pattern}$", (PROVISIONERS / script).read_text())
    return str(found)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (
            "efa_installer.sh",
            "tree=${PATH%%:*} flags=(-y)\n" + lines("efa.sh", ".*efa_installer.sh .*"),
        ),
        ("snap", lines("ssm-agent.sh", ".*snap install .*")),
        ("amazon-linux-extras", lines("kernel.sh", ".*amazon-linux-extras install .*")),
        ("dnf", lines("kernel.sh", ".*swap gnupg2.*")),
        (
            "amazon-linux-extras",
            "LUSTRE_TOPIC=lustre\n" + lines("lustre-client.sh", r".*LUSTRE_TOPIC \]\] .*\n.*"),
        ),
        ("dnf", function("nvidia-driver.sh", "choose_stream") + "\nchoose_stream 580-open"),
    ],
)
def test_vendors_command_that_fails_once_is_repeated(
    tmp_path: Path, command: str, code: str
) -> None:
    machine = Machine(tmp_path, "amazon")
    once = '[[ $* == *expire-cache* || -e "$0 ${*////}" ]] || { touch "$0 ${*////}"; exit 1; }'
    machine.command(command, once)
    machine.works(code)
    assert list(machine.bin.glob(f"{command} *"))  # it was called


def test_cleanup_empties_what_dhcp_wrote(machine: Machine) -> None:
    code = lines("cleanup.sh", "if .*/etc/resolv.conf.*")
    texts = {"dhcp": "# Generated by NetworkManager\n", "own": "nameserver 10.0.0.2\n"}
    plant(machine.root, {**texts, "run": texts["dhcp"]})
    (machine.root / "link").symlink_to("run")
    for name in (*texts, "link"):
        machine.works(code.replace("/etc/resolv.conf", f"{machine.root}/{name}"))
    left = [(machine.root / name).read_text() for name in ("dhcp", "own", "run")]
    assert left == ["", texts["own"], texts["dhcp"]]


def test_cleanup_labels_what_came_from_tmp(machine: Machine) -> None:
    code = lines("cleanup.sh", r"if command -v restorecon .*\n.*\nfi")
    machine.command("restorecon", 'echo "$*" >>$0.log; exit 1')
    assert "restorecon cannot label" in machine.stops(code)
    assert machine.log("restorecon") == ["-R /etc /opt /usr"]


def test_parents_gdrcopy_is_removed_before_the_build(tmp_path: Path) -> None:
    machine = Script(tmp_path)
    machine.rpm("2.5.1-1")
    machine.command("dkms", "")
    machine.command("curl", 'tar -czf "${@: -2:1}" -C "$KILN_DIR" lib/kiln.sh')
    machine.command("dnf", 'echo "dnf $*" >>${0%/*}/make.log')
    # Ends the script before it writes to this machine.
    machine.command("make", "echo make >>$0.log; exit 2")
    done = machine.run(
        "gdrcopy.sh", GDRCOPY_VERSION="2.6", GDRCOPY_URL="https://github.com/v2.6.tar.gz"
    )
    assert "GDRCopy 2.6 does not build" in done.stderr
    removed, *then = machine.log("make")
    assert removed.startswith("dnf -q -y remove -y gdrcopy-kmod gdrcopy gdrcopy-devel ")
    assert then == ["make"]


@pytest.mark.parametrize("status", ["installed", "built"])
def test_efa_module_must_be_the_installers(tmp_path: Path, status: str) -> None:
    machine = Script(tmp_path)
    (checked,) = re.findall(r"(?ms)^kernel=.*?^fi$", (PROVISIONERS / "efa.sh").read_text())
    # The distribution's own.
    machine.command("modinfo", "echo /lib/modules/x/kernel/drivers/infiniband/hw/efa/efa.ko")
    machine.command("dkms", f"echo 'efa/3.3.1, {machine.kernel}, x86_64: {status}'")
    assert machine.bash(checked).returncode == (status == "built")


def test_ubuntu_installs_modules_extra_for_mlx5_ib(
    machine: Machine,
) -> None:
    script = (PROVISIONERS / "nvidia-fabricmanager.sh").read_text()
    (asked,) = re.findall(r"(?m)^    (kernel=.*\n    for module .*)$", script)
    plant(machine.root / "image", {"boot/vmlinuz-6.8.0-1070-aws": ""})
    # As in Ubuntu's packages: linux-modules has ib_umad, linux-modules-extra mlx5_ib.
    machine.command("modinfo", "[[ $* != *mlx5_ib* || -e ${0%/*}/extra ]]")
    machine.command("depmod", "")
    machine.command("apt-mark", "")
    machine.command("dpkg-query", "[[ -e ${0%/*}/extra ]] && echo 'ii 6.8.0-1070.76'")
    machine.command("apt-get", 'echo "$*" >>$0.log; touch ${0%/*}/extra')
    machine.works(asked)
    assert machine.log("apt-get")[-1].endswith(" linux-modules-extra-6.8.0-1070-aws")


@pytest.mark.parametrize(("provided", "asked"), [("exit 1", True), ("exit 0", False)])
def test_headers_from_another_kernel_stay(tmp_path: Path, provided: str, asked: bool) -> None:
    machine = Script(tmp_path)
    machine.command(
        "rpm",
        f'case "$*" in *whatprovides*) {provided} ;; -qf*) printf kernel ;;'
        " *) echo 'package x is not installed'; exit 1 ;; esac",
    )
    # Its failure ends the script before it reboots anything.
    machine.command("dnf", 'echo "$*" >>$0.log; [[ $* != *install* ]]')
    machine.run("kernel.sh", KERNEL_DEFAULT_PACKAGE="kernel", KERNEL_OS_PACKAGES="gcc dkms")
    install = next(line for line in machine.log("dnf") if " install " in line)
    assert "install gcc dkms kernel-devel-6.1.1-1.amzn2023" in install
    assert install.endswith(" kernel-headers") is asked
