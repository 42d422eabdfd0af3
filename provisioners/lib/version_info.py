"""Prints what is on this machine as JSON: the bill of materials of the image.

Runs on the build instance right before the clean-up. Python 3.7 and later, standard library only.
The JSON has:

    schema       1
    os           {id, version_id, name}
    arch         as in `uname -m`
    kernel       {boots, running}: of the image at boot, and during the bake
    packages     [{manager: rpm|dpkg, name, epoch, version, release, arch}], duplicates kept
    modules      [{name, kernel, version, srcversion, vermagic, license, path}] for GPU and network;
                 if both kinds of the driver were baked, also those below /opt/kiln/modules
    runfiles     [{name, version}]: NVIDIA .run installs
    efa          {installer, packages: […]} or null
    components   the record of each provisioner, by its name
    downloads    [{url, sha256, sha256_was, component}]
    paths        {name: path or [path]} of libraries and programs for users
    units        [{name, state}]: unit files that are not static
    held         package names (Debian), name-version-release locks (Amazon Linux)
    upgradable   [{name, version}] that the repositories have and the bake did not install
    files        {path: "sha256:… mode" or "link:target"} of what components installed, and of the
                 configuration that an image has of its own
    sysctls      {name: value} as the files in sysctl.d set them, the last one counting
    boot         {GRUB_CMDLINE_…: value}: the kernel's parameters
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import os
import platform
import re
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

MODULES = (
    "nvidia",
    "nvidia-uvm",
    "nvidia-modeset",
    "nvidia-drm",
    "nvidia-peermem",
    # Names of the same modules in Debian.
    "nvidia-current",
    "nvidia-current-uvm",
    "nvidia-current-modeset",
    "nvidia-current-drm",
    "nvidia-current-peermem",
    "gdrdrv",
    "efa",
    "efa_nv_peermem",
    "ena",
    "lustre",
)
LIBRARIES = {
    "libcuda": "libcuda.so.1",
    "libnvidia-ml": "libnvidia-ml.so.1",
    "libnccl": "libnccl.so.2",
    "libcudnn": "libcudnn.so.*",
    "libfabric": "libfabric.so.1",
    "libgdrapi": "libgdrapi.so.2",
    "libnccl-net": "libnccl-net*.so*",
}
TOOLS = {
    "nvidia-smi": "/usr/bin/nvidia-smi",
    "cuda": "/usr/local/cuda",
    "nvcc": "/usr/local/cuda/bin/nvcc",
    "fi_info": "/opt/amazon/efa/bin/fi_info",
    "nvidia-ctk": "/usr/bin/nvidia-ctk",
    "nv-fabricmanager": "/usr/bin/nv-fabricmanager",
}

# Both kinds of driver modules, ARCHIVE/<kernel>/<kind>/; kiln-gpu-boot installs one of them.
ARCHIVE = "/opt/kiln/modules"
LOCKS = ("/etc/yum/pluginconf.d/versionlock.list", "/etc/dnf/plugins/versionlock.list")

# Configuration that decides how a machine behaves, whoever wrote it.
CONFIGURATION = (
    "/etc/containerd",
    "/etc/default",
    "/etc/docker",
    "/etc/docker-runtimes.d",
    "/etc/ld.so.conf.d",
    "/etc/modprobe.d",
    "/etc/modules-load.d",
    "/etc/nvidia-container-runtime",
    "/etc/profile.d",
    "/etc/security/limits.d",
    "/etc/sysctl.conf",
    "/etc/sysctl.d",
    "/etc/systemd",
    "/etc/udev/rules.d",
    "/opt/aws/amazon-cloudwatch-agent/etc",
    "/opt/kiln",
    "/usr/local/bin",
    "/usr/local/sbin",
)
# Records of the bake itself, and modules, which `modules` lists.
NOT_INSTALLED = ("/etc/kiln/", ARCHIVE + "/")
SYSCTLS = ("/usr/lib/sysctl.d/*.conf", "/run/sysctl.d/*.conf", "/etc/sysctl.d/*.conf")


def run(*command: str) -> str:
    """Standard output of a command; empty when the command does not exist."""
    environment = dict(os.environ, LC_ALL="C")
    try:
        done = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
    except OSError:
        return ""
    return done.stdout.decode("utf-8", "replace")


def os_release(path: str = "/etc/os-release") -> dict[str, str]:
    fields = {}
    with open(path) as stream:
        for line in stream:
            key, _, value = line.strip().partition("=")
            fields[key] = value.strip("\"'")
    return {
        "id": fields.get("ID", ""),
        "version_id": fields.get("VERSION_ID", ""),
        "name": fields.get("PRETTY_NAME", ""),
    }


def packages() -> list[dict[str, str]]:
    """Every installed package, including several versions of one name."""
    entries = []
    query = "%{NAME}\t%{EPOCHNUM}\t%{VERSION}\t%{RELEASE}\t%{ARCH}\n"
    for line in run("rpm", "-qa", "--qf", query).splitlines():
        name, epoch, version, release, arch = line.split("\t")
        entries.append(entry("rpm", name, epoch, version, release, arch))
    query = "${db:Status-Status}\t${Package}\t${Version}\t${Architecture}\n"
    for line in run("dpkg-query", "-W", "-f", query).splitlines():
        status, name, full, arch = line.split("\t")
        if status == "installed":
            entries.append(entry("dpkg", name, *split_deb(full), arch=arch))
    return sorted(entries, key=lambda p: (p["manager"], p["name"], p["version"], p["release"]))


def entry(
    manager: str, name: str, epoch: str, version: str, release: str, arch: str
) -> dict[str, str]:
    return {
        "manager": manager,
        "name": name,
        "epoch": epoch,
        "version": version,
        "release": release,
        "arch": arch,
    }


def split_deb(full: str) -> tuple[str, str, str]:
    """'1:2.34-5+b1' → ('1', '2.34', '5+b1'); a native package has no release."""
    epoch, colon, rest = full.partition(":")
    if not colon:
        epoch, rest = "0", full
    version, _, release = rest.rpartition("-")
    return (epoch, version, release) if version else (epoch, release, "")


def kernels() -> list[str]:
    return sorted(os.path.basename(path) for path in glob.glob("/lib/modules/[0-9]*"))


def modules() -> list[dict[str, str]]:
    entries = []
    for kernel in kernels():
        pattern = os.path.join(glob.escape(os.path.join(ARCHIVE, kernel)), "**", "*.ko*")
        kept = sorted(glob.glob(pattern, recursive=True))
        text = run("modinfo", "-k", kernel, *MODULES, *kept)
        for block in re.split(r"^(?=filename: )", text, flags=re.MULTILINE):
            fields: dict[str, str] = {}
            for line in block.splitlines():
                key, _, value = line.partition(":")
                fields.setdefault(key.strip(), value.strip())
            path = fields.get("filename", "")
            if path.startswith("/"):
                name = re.sub(r"\.ko(\.\w+)?$", "", os.path.basename(path))
                keys = ("version", "srcversion", "vermagic", "license")
                values = {key: fields.get(key, "") for key in keys}
                entries.append(dict(values, name=name, kernel=kernel, path=path))
    return entries


def efa() -> dict[str, Any] | None:
    try:
        with open("/opt/amazon/efa_installed_packages") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return None
    versions = [line.split(":")[1].strip() for line in lines if "installer version" in line]
    # The installer writes the packages on one line.
    packages = [name for line in lines if not line.startswith("#") for name in line.split()]
    return {"installer": versions[0] if versions else "", "packages": packages}


def paths() -> dict[str, str | list[str]]:
    present: dict[str, str | list[str]] = {
        name: os.path.realpath(path) for name, path in TOOLS.items() if os.path.exists(path)
    }
    cache = [line.split(" => ")[-1].strip() for line in run("ldconfig", "-p").splitlines()[1:]]
    for name, pattern in LIBRARIES.items():
        wanted = re.compile(re.escape(pattern).replace(r"\*", ".*") + "$")
        hits = {os.path.realpath(path) for path in cache if wanted.match(os.path.basename(path))}
        if hits:
            present[name] = sorted(hits)
    return present


def units() -> list[dict[str, str]]:
    entries = []
    listing = run("systemctl", "list-unit-files", "--no-legend", "--no-pager", "--full")
    for line in listing.splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[1] not in ("static", "alias", "generated", "transient"):
            entries.append({"name": fields[0], "state": fields[1]})
    return entries


def held() -> list[str]:
    """Holds of apt by name; version locks of yum 3 and dnf 4 as name-version-release."""
    names = set(run("apt-mark", "showhold").split())
    for path in LOCKS:
        try:
            with open(path) as stream:
                locks = [line.strip() for line in stream]
        except OSError:
            continue
        for lock in locks:
            if lock.endswith(".*") and not lock.startswith("#"):
                names.add(re.sub(r"-\d+:", "-", re.sub(r"^\d+:", "", lock[:-2])))
    return sorted(names)


def upgradable() -> list[dict[str, str]]:
    """Packages of which the repositories have a newer version than the bake has installed: held
    ones, and those that an upgrade leaves. Who asks for pending updates needs to know them."""
    newer = set()
    for line in run("apt", "list", "--upgradable").splitlines():
        # openssl/stable-security 3.0.17-1~deb12u3 amd64 [upgradable from: 3.0.17-1~deb12u2]
        fields = line.split()
        if len(fields) > 2 and "/" in fields[0]:
            newer.add((fields[0].split("/")[0], fields[1]))
    tool = "dnf" if os.path.exists("/usr/bin/dnf") else "yum"
    # A locked package counts too, like a held one of apt's; without this the tool leaves it out.
    quiet = ("--quiet", "--cacheonly", "--disableplugin=versionlock")
    listed = run(tool, *quiet, "check-update").split("Obsoleting Packages")[0]
    # dnf prints such a line for a kernel that is installed and has not booted yet.
    lines = [line for line in listed.splitlines() if not line.startswith("Security: ")]
    # Name with architecture, version and repository; yum 3 may wrap a line between them.
    words = " ".join(lines).split()
    for name, version in zip(words[0::3], words[1::3]):
        newer.add((name.rpartition(".")[0], re.sub(r"^0:", "", version)))
    return [{"name": name, "version": version} for name, version in sorted(newer)]


def installed_files(components: dict[str, Any], root: str = "") -> dict[str, str]:
    """What components recorded as installed, and the configuration, each path once."""
    recorded = [path for record in components.values() for path in record.get("files", ())]
    found: dict[str, str] = {}
    for top in sorted({*recorded, *CONFIGURATION}):
        for path in paths_below(root + top):
            name = path[len(root) :]
            if not name.startswith(NOT_INSTALLED) and not name.endswith(".pyc"):
                found[name] = file_text(path)
    return {path: text for path, text in sorted(found.items()) if text}


def paths_below(top: str) -> list[str]:
    if os.path.islink(top) or os.path.isfile(top):
        return [top]
    paths = []
    for folder, names, inside in os.walk(top):
        links = [name for name in names if os.path.islink(os.path.join(folder, name))]
        paths += [os.path.join(folder, name) for name in inside + links]
    return paths


def file_text(path: str) -> str:
    """Hash and mode of a file, the target of a link; empty for anything else."""
    try:
        if os.path.islink(path):
            return "link:" + os.readlink(path)
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return ""
        with open(path, "rb") as stream:
            digest = hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return ""
    return f"sha256:{digest} {stat.S_IMODE(status.st_mode):04o}"


def configured_sysctls(root: str = "") -> dict[str, str]:
    """As systemd-sysctl reads them: by file name, whichever folder it is in."""
    by_name: dict[str, str] = {}
    for pattern in SYSCTLS:
        for path in glob.glob(root + pattern):
            # A file in /etc takes the place of one of that name in /usr/lib.
            by_name[os.path.basename(path)] = path
    paths = [by_name[name] for name in sorted(by_name)]
    values: dict[str, str] = {}
    for path in [*paths, root + "/etc/sysctl.conf"]:
        for line in text_lines(path):
            name, equals, value = line.partition("=")
            if equals and name[:1] not in "#;":
                values[name.strip().lstrip("-").replace("/", ".")] = " ".join(value.split())
    return values


def boot_parameters(root: str = "") -> dict[str, str]:
    """The kernel's parameters that the boot loader's configuration sets."""
    values = {}
    for path in [
        root + "/etc/default/grub",
        *sorted(glob.glob(root + "/etc/default/grub.d/*.cfg")),
    ]:
        for line in text_lines(path):
            match = re.match(r"(GRUB_CMDLINE_LINUX\w*)=(.*)", line)
            if match:
                values[match.group(1)] = match.group(2).strip("\"'")
    return values


def text_lines(path: str) -> list[str]:
    """The lines of a file without surrounding blanks; none when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return [line.strip() for line in stream if line.strip()]
    except OSError:
        return []


def load(path: str, default: Any) -> Any:
    try:
        with open(path) as stream:
            return json.load(stream)
    except OSError:
        return default


def collect(kernel: str, etc: str) -> dict[str, Any]:
    records = sorted(glob.glob(os.path.join(etc, "components", "*.json")))
    components = {record["component"]: record for record in (load(path, {}) for path in records)}
    runfile = components.get("nvidia-driver", {}).get("runfile")
    with ThreadPoolExecutor() as pool:
        # systemd and the package tool take as long as all the rest.
        unit_files, newer = pool.submit(units), pool.submit(upgradable)
        return {
            "schema": 1,
            "os": os_release(),
            "arch": platform.machine(),
            "kernel": {"boots": kernel, "running": platform.release()},
            "packages": packages(),
            "modules": modules(),
            "runfiles": [
                {"name": runfile, "version": components["nvidia-driver"].get("version", "")}
            ]
            if runfile
            else [],
            "efa": efa(),
            "components": components,
            "downloads": load(os.path.join(etc, "downloads.json"), []),
            "paths": paths(),
            "held": held(),
            "files": installed_files(components),
            "sysctls": configured_sysctls(),
            "boot": boot_parameters(),
            "units": unit_files.result(),
            "upgradable": newer.result(),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernel", required=True)
    parser.add_argument("--etc", default="/etc/kiln")
    arguments = parser.parse_args()
    print(json.dumps(collect(arguments.kernel, arguments.etc), indent=1, sort_keys=True))
