# ruff: noqa: F821, PTH123, UP031
# Runs on the machine as root, behind the functions of provisioners/lib/version_info.py, and changes
# nothing there: the machine may be at work. It prints one JSON object:
# {"now": parts of version_info.py's, "baked": all of it at the bake, "units": {name: {property:
# value}}, "failed": {unit: its last words}, "too_slow_for": [unit], "files": {path: {mode, size,
# mtime, target, major}}, "text": {path: content}, "commands": {name: {rc, out}}, "cycles": [message
# of systemd], "boot": {…},
# "efa_devices": {attached, driven, p2p}, "imds": {v1, v2, role: HTTP status, hop_limit}, "free":
# bytes of /,
# "modules_loaded": [name], "limits": {name: [soft, hard]} of this program's login, "sysctls":
# {name: value}}
# With the argument `own_kernel`, a kernel's release, it loads every module that was built for that
# kernel, and prints what own_kernel() finds.
import http.client
import pwd
import resource
import select
import socket
import stat
import time

PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,UnitFileState,ConditionResult,Result,Type,"
    "LimitMEMLOCK,LimitNOFILE"
)
UNITS = (
    "kiln-mig.service",
    "kiln-xid.service",
    "amazon-cloudwatch-agent.service",
    "cloud-init.service",
    "cloud-init-network.service",
    "kiln-gpu-boot.service",
    "kiln-gpu-clocks.service",
    "kiln-gpu-select.service",
    "nvidia-dcgm.service",
    "nvidia-dcgm-exporter.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "nvidia-mig-manager.service",
    "nvidia-persistenced.service",
    "multi-user.target",
    "dkms.service",
    "docker.service",
    "containerd.service",
    "ecs.service",
    "nodeadm-config.service",
    "nodeadm-run.service",
)
SELINUX_FOLDERS = ("/etc/kiln", "/opt/kiln/lib", "/etc/systemd/system")
# Units that join a cluster. ParallelCluster writes slurmd's at the first boot of a node.
JOINERS = ("kubelet", "ecs", "slurmd")
TEXTS = (
    "/etc/kiln/hygiene.json",
    "/etc/kiln/recipe.json",
    "/etc/kiln/kernel",
    "/etc/dnf/vars/releasever",
    "/etc/apt/sources.list.d/kiln-package-snapshot.list",
    "/etc/machine-id",
    "/etc/ld.so.conf.d/kiln-cuda.conf",
    "/etc/modules-load.d/kiln-nvlsm.conf",
    "/etc/profile.d/kiln-cuda.sh",
    "/etc/modprobe.d/kiln-nouveau.conf",
    "/etc/modprobe.d/kiln-gpu-select.conf",
    "/etc/modprobe.d/kiln-imex.conf",
    "/etc/apt/sources.list.d/nvidia-cuda.list",
    "/etc/apt/sources.list.d/nvidia-container-toolkit.list",
    "/etc/yum.repos.d/nvidia-cuda.repo",
    "/etc/yum.repos.d/nvidia-cuda-libraries.repo",
    "/etc/yum.repos.d/nvidia-container-toolkit.repo",
    "/etc/docker/daemon.json",
    "/etc/containerd/config.toml",
    "/etc/default/gpu-mig",
    # 0 or 1 (permissive, enforcing); absent where SELinux is disabled.
    "/sys/fs/selinux/enforce",
    *(f"/etc/systemd/system/{unit}.service.d/20-kiln-gpu-gate.conf" for unit in JOINERS),
    "/opt/parallelcluster/.bootstrapped",
    "/var/lib/ecs/ecs.config",
    "/run/cloud-init/result.json",
    "/run/cloud-init/status.json",
    "/opt/aws/amazon-cloudwatch-agent/logs/amazon-cloudwatch-agent.log",
    "/sys/module/nvidia/version",
    "/sys/module/nvidia/srcversion",
    "/run/kiln/gpu-boot/decision.json",
    "/etc/kiln/dcgm-counters.csv",
    "/etc/sysctl.d/60-kiln.conf",
    "/etc/security/limits.d/60-kiln.conf",
    "/etc/apt/sources.list.d/fsx-lustre.list",
    "/run/modprobe.d/kiln-gpu.conf",
    "/proc/driver/nvidia/params",
    "/proc/devices",
    "/proc/net/tcp",
    "/proc/net/tcp6",
)
ETH_P_IP = 0x0800
CLOCK_FIELDS = "index,clocks.applications.memory,clocks.applications.graphics"
HEALTH_FIELDS = ",".join(
    (
        "index,ecc.mode.current,ecc.mode.pending,ecc.errors.uncorrected.volatile.total",
        "retired_pages.pending",
        *(
            "clocks_throttle_reasons." + reason
            for reason in (
                "hw_slowdown",
                "hw_thermal_slowdown",
                "hw_power_brake_slowdown",
                "sw_thermal_slowdown",
            )
        ),
    )
)
FABRIC_QUERY = (
    "nvidia-smi",
    "--query-gpu=index,fabric.state,fabric.status",
    "--format=csv,noheader",
)
ROW_FIELDS = "gpu_bus_id,remapped_rows.pending,remapped_rows.failure"
GPU_FIELDS = "index,name,uuid,driver_version,pci.bus_id,persistence_mode,mig.mode.current"


def text(path):
    try:
        with open(path, "rb") as stream:
            return stream.read(200000).decode("utf-8", "replace")
    except OSError:
        return None


# An emulated processor is tens of times slower, and slower still while other work runs beside it.
EMULATED = "QEMU TCG CPU" in (text("/proc/cpuinfo") or "")


def command(*arguments, timeout=200 if EMULATED else 20):
    try:
        done = subprocess.run(
            arguments, timeout=timeout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except subprocess.TimeoutExpired:
        return {"rc": 124, "out": "no answer within %d s" % timeout}
    except OSError as error:
        return {"rc": 127, "out": str(error)}
    return {"rc": done.returncode, "out": done.stdout.decode("utf-8", "replace")}


def file_facts(path):
    try:
        facts = os.lstat(path)
    except OSError:
        return None
    link = os.readlink(path) if stat.S_ISLNK(facts.st_mode) else None
    mode = "%04o" % stat.S_IMODE(facts.st_mode)
    return {
        "mode": mode,
        "size": facts.st_size,
        "mtime": facts.st_mtime,
        "target": link,
        "major": os.major(facts.st_rdev),
    }


def unit_facts(names):
    found = {}
    shown = run("systemctl", "show", "--no-pager", "--property=" + PROPERTIES, *names)
    for block in shown.split("\n\n"):
        facts = dict(line.partition("=")[::2] for line in block.strip().splitlines())
        if facts.get("Id"):
            found[facts["Id"]] = facts
    return found


def last_words(unit):
    return command("journalctl", "-b", "--no-pager", "-o", "cat", "-n", "5", "-u", unit)["out"]


def ordering_cycles():
    """What systemd says of cycles, which it breaks by not starting a unit; None without a log."""
    log = run("journalctl", "-b", "--no-pager", "-o", "cat", "SYSLOG_IDENTIFIER=systemd")
    return [line for line in log.splitlines() if "ordering cycle" in line] if log else None


def authorized_keys():
    found = {}
    for user in pwd.getpwall():
        keys = text(os.path.join(user.pw_dir, ".ssh", "authorized_keys")) or ""
        found[user.pw_name] = [line for line in keys.splitlines() if line.strip()]
    return found


def agent_files():
    root = "/opt/aws/amazon-cloudwatch-agent/etc"
    names = glob.glob(root + "/*.json") + glob.glob(root + "/*.d/*.json")
    return {path: text(path) for path in names}


def dcgm_metrics(units):
    """What dcgm-exporter serves; it needs some seconds from its start to its first answer."""
    if units.get("nvidia-dcgm-exporter.service", {}).get("ActiveState") != "active":
        return ""
    for _ in range(30):
        answer = command("curl", "-sf", "-m", "5", "http://127.0.0.1:9400/metrics")
        if answer["rc"] == 0 and answer["out"].strip():
            return answer["out"]
        time.sleep(1)
    return ""


def limits():
    """-1 is unlimited."""
    names = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE}
    return {name: list(resource.getrlimit(number)) for name, number in names.items()}


def may_raise_limits():
    """Has root CAP_SYS_RESOURCE (bit 24) here, and can a login have the limits by that?

    In a user namespace the capability does not raise a limit above that of PID 1.
    """
    found = re.search(r"^CapBnd:\s*(\w+)", text("/proc/self/status") or "", re.MULTILINE)
    capable = bool(found) and bool(int(found.group(1), 16) >> 24 & 1)
    everybody = (text("/proc/self/uid_map") or "").split() == ["0", "0", "4294967295"]
    first = text("/proc/1/limits") or ""
    highest = re.search(r"^Max locked memory .* (\S+) +bytes", first, re.MULTILINE)
    return capable and (everybody or (bool(highest) and highest.group(1) == "unlimited"))


def sysctls(recorded):
    names = [pair.partition("=")[0] for pair in recorded.get("sysctls", [])]
    return {n: (text("/proc/sys/" + n.replace(".", "/")) or "").strip() for n in names}


def efa_devices():
    """EFA interfaces that EC2 attached (PCI), devices that the efa driver made of them, and by
    whom these reach a GPU's memory.

    https://github.com/amzn/amzn-drivers/blob/efa_linux_2.15.0/kernel/linux/efa/src/efa_sysfs.c
    """
    attached = 0
    for folder in glob.glob("/sys/bus/pci/devices/*"):
        vendor, device = ((text(folder + "/" + n) or "").strip() for n in ("vendor", "device"))
        attached += vendor == "0x1d0f" and device.startswith("0xefa")
    links = glob.glob("/sys/class/infiniband/*/device/driver")
    driven = sorted(p.split("/")[4] for p in links if os.path.realpath(p).endswith("/efa"))
    p2p = [text("/sys/class/infiniband/%s/device/p2p" % name) for name in driven]
    return {
        "attached": attached,
        "driven": driven,
        "p2p": [t.strip() for t in p2p if t is not None],
    }


def imds():
    """HTTP status: v1 (without a token), v2 (with one), role (does an instance profile exist?);
    hop_limit: how many hops the token may go, a container's bridge being the second."""

    def ask(method, path, **headers):
        link = http.client.HTTPConnection("169.254.169.254", timeout=2)
        link.request(method, "/latest/" + path, headers=headers)
        answer = link.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")

    try:
        v1, _ = ask("GET", "meta-data/")
        with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP)) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            _, token = ask("PUT", "api/token", **{"X-aws-ec2-metadata-token-ttl-seconds": "60"})
            # The time to live is the ninth byte of an IP packet.
            hops = next((packet[8] for packet in received(link) if token.encode() in packet), None)
        paths = {"v2": "meta-data/", "role": "meta-data/iam/security-credentials/"}
        with_token = {"X-aws-ec2-metadata-token": token}
        found = {n: ask("GET", p, **with_token)[0] for n, p in paths.items()}
        return dict(found, v1=v1, hop_limit=hops)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return {"error": str(error)}


def received(link):
    """The packets that a socket receives, until none comes for a second."""
    deadline = time.time() + 5
    while select.select([link], [], [], 1)[0] and time.time() < deadline:
        yield link.recv(65536)


def free_bytes(path):
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize


def file_names(folders):
    """Every file that the image has of Kiln there."""
    found = [
        os.path.join(at, name) for f in folders for at, _, names in os.walk(f) for name in names
    ]
    return sorted(path for path in found if "/__pycache__/" not in path)


def programs():
    """The programs that run now: the first words of their command lines."""
    lines = [text(path) or "" for path in glob.glob("/proc/[0-9]*/cmdline")]
    return sorted({word for line in lines for word in line.split("\0")[:2] if word[:1] == "/"})


def dkms_modules(kernel):
    """The modules that were built on the image: where DKMS and packages of modules put them."""
    folders = [
        "/lib/modules/%s/%s" % (kernel, name) for name in ("updates", "extra", "weak-updates")
    ]
    found = set()
    for folder in folders:
        for _, _, files in os.walk(folder):
            found.update(name.split(".ko")[0] for name in files if ".ko" in name)
    return sorted(found)


def loads(names, kernel):
    """What modprobe says of each module.

    It loads what a module needs first, and stops at what refuses: asking again for every module
    above that one would say the same, seconds of an emulated processor later.
    """
    results = {}
    refused = {}
    for name in names:
        shown = command("modprobe", "-S", kernel, "--show-depends", name)["out"]
        files = [line.split()[1] for line in shown.splitlines() if line.startswith("insmod ")]
        below = [refused[path] for path in files[:-1] if path in refused]
        if below:
            results[name] = below[0]
            continue
        results[name] = command("modprobe", name, timeout=600 if EMULATED else 60)
        if results[name]["rc"] and files:
            refused[files[-1]] = results[name]
    return results


def result_of(unit):
    # systemd 219 (Amazon Linux 2) has no --value.
    return run("systemctl", "show", "--property=Result", unit).strip().partition("=")[2]


def own_kernel(kernel):
    """Root, boot loader, log, boot time and modules of a machine that runs its own kernel."""
    line = (text("/proc/cmdline") or "").strip()
    root = dict(word.partition("=")[::2] for word in line.split()).get("root", "")
    in_fstab = ("findmnt", "--fstab", "--evaluate", "-nro", "SOURCE", "/")
    names = [*dkms_modules(kernel), "ib_umad", "efa"]
    return {
        "cmdline": line,
        "root": command("findmnt", "-nro", "SOURCE", "/")["out"].strip(),
        "root_in_fstab": command(*in_fstab)["out"].strip(),
        "root_of_loader": command("findfs", root)["out"].strip() if "=" in root else root,
        "log": command("dmesg")["out"],
        "known": [n for n in names if command("modinfo", "-k", kernel, n)["rc"] == 0],
        "loads": loads(names, kernel),
        "emulated": EMULATED,
        "time": command("systemd-analyze", "time")["out"],
        "blame": command("systemd-analyze", "blame", "--no-pager")["out"],
    }


ASKS_DRIVER = (
    "nvidia-smi",
    "gpu-clocks",
    "gpu-health",
    "gpu-rows",
    "gpu-fabric",
    "gpu-topology",
    "gpu-nvlink",
    "gpu-mig-verify",
    "nvidia-container-cli",
)


def not_to_ask(container, loaded, units):
    """Name → why a program is not asked: it would start what it asks about."""
    why = {}
    # As root it has nvidia-modprobe load the driver.
    if not container and "nvidia" not in loaded:
        for name in ASKS_DRIVER:
            why[name] = "the module nvidia is not loaded"
    # Its socket starts it.
    if units.get("docker.service", {}).get("ActiveState") != "active":
        why["docker-info"] = "docker.service is not active"
    return {name: {"rc": 127, "out": words} for name, words in why.items()}


def programs_to_ask(kernel):
    """Name → command line of the programs that say what they are, or what the machine is."""
    return {
        "nvidia-smi": ("nvidia-smi", "--query-gpu=" + GPU_FIELDS, "--format=csv,noheader,nounits"),
        "gpu-clocks": (
            "nvidia-smi",
            "--query-gpu=" + CLOCK_FIELDS,
            "--format=csv,noheader,nounits",
        ),
        "gpu-health": (
            "nvidia-smi",
            "--query-gpu=" + HEALTH_FIELDS,
            "--format=csv,noheader,nounits",
        ),
        "gpu-rows": ("nvidia-smi", "--query-remapped-rows=" + ROW_FIELDS, "--format=csv,noheader"),
        "gpu-fabric": FABRIC_QUERY,
        "gpu-topology": ("nvidia-smi", "topo", "-m"),
        "gpu-nvlink": ("nvidia-smi", "nvlink", "-s"),
        "gpu-mig-verify": ("/usr/local/bin/gpu-mig", "verify"),
        "nvidia-container-cli": ("nvidia-container-cli", "info"),
        "dcgm-discovery": ("dcgmi", "discovery", "-l"),
        "kernel-log": ("dmesg", "--kernel"),
        "dkms": ("dkms", "status"),
        # A first answer of the time server takes some seconds after the boot.
        "chrony": ("sh", "-c", "chronyc waitsync 15 0 0 1 >/dev/null; chronyc -c tracking"),
        "selinux": ("matchpathcon", "-V", *file_names(SELINUX_FOLDERS)),
        "efa-providers": ("/opt/amazon/efa/bin/fi_info", "-p", "efa", "-t", "FI_EP_RDM"),
        "dkms-gdrdrv": ("dkms", "status", "-m", "gdrdrv"),
        "lfs": ("lfs", "--version"),
        "mount.lustre": ("sh", "-c", "command -v mount.lustre"),
        "snap": ("snap", "list", "amazon-ssm-agent"),
        "service-limits": ("systemctl", "show", "--property=DefaultLimitMEMLOCK"),
        "nvcc": ("/usr/local/cuda/bin/nvcc", "--version"),
        "fi_info": ("/opt/amazon/efa/bin/fi_info", "--version"),
        "nv-fabricmanager": ("nv-fabricmanager", "--version"),
        "nvidia-ctk": ("nvidia-ctk", "--version"),
        "containerd-config": ("containerd", "config", "dump"),
        "docker-info": ("docker", "info"),
        "ib_umad": ("modinfo", "-k", kernel, "-F", "filename", "ib_umad"),
        "mlx5_ib": ("modinfo", "-k", kernel, "-F", "filename", "mlx5_ib"),
        "gpu-mig": ("/usr/local/bin/gpu-mig", "validate"),
        "login-nvcc": ("bash", "-lc", "command -v nvcc"),
    }


def registered_fabric():
    """The fabric's state once no GPU is registering: on B200 that takes minutes after the boot."""
    deadline = time.time() + 240
    while True:
        answer = command(*FABRIC_QUERY)
        if "In Progress" not in answer["out"] or time.time() > deadline:
            return answer
        time.sleep(5)


def answers(asked):
    return {name: answer.result() for name, answer in asked.items()}


def facts(pool):
    """All of it. The programs are asked side by side: most of the time they start or wait."""
    loaded = [line.split()[0] for line in (text("/proc/modules") or "").splitlines()]
    baked = load("/etc/kiln/version-info.json", None)
    kernel = (baked or {}).get("kernel", {}).get("boots", "")
    components = (baked or {}).get("components", {})
    recorded = [u for r in components.values() for u in r.get("units", [])]
    nccl_tests = components.get("nccl-tests", {})
    built = ["%s/%s" % (nccl_tests["folder"], t) for t in nccl_tests.get("tests", [])]
    host_keys = glob.glob("/etc/ssh/ssh_host_*_key")
    looked_at = [
        "/usr/local/cuda",
        "/var/log/gpuevent.log",
        "/var/lib/dbus/machine-id",
        "/opt/amazon/efa/bin/fi_info",
        "/opt/amazon/efa_installed_packages",
        "/opt/nvidia/nvlsm/sbin/nvlsm",
        "/etc/docker-runtimes.d/nvidia",
        "/usr/bin/nvidia-container-runtime",
        "/lib/modules/%s/build" % kernel,
        "/usr/src/kernels/%s" % kernel,
        "/boot/vmlinuz-%s" % kernel,
        "/var/tmp/kiln",
        "/dev/gdrdrv",
        # Comes with the lab's stand-in of a driver.
        "/usr/lib/kiln-lab/bin/kiln-lab-gpu",
        "/etc/kiln/version-info.json",
        *host_keys,
    ]
    linked = {path: pool.submit(command, "ldd", path) for path in built}
    container = run("systemd-detect-virt", "--container").strip() not in ("", "none")
    units = unit_facts(sorted({*UNITS, *recorded}))
    unasked = not_to_ask(container, loaded, units)
    asked = {
        name: pool.submit(command, *words)
        for name, words in programs_to_ask(kernel).items()
        if name not in unasked
    }
    if "gpu-fabric" in asked and not container:
        asked["gpu-fabric"] = pool.submit(registered_fabric)
    # Before the tables of /proc/net are read: the exporter listens when it answers.
    metrics = dcgm_metrics(units)
    listed = run("systemctl", "list-units", "--failed", "--no-legend", "--plain", "--no-pager")
    failed = [line.split()[0] for line in listed.splitlines() if line.strip()]
    return {
        # Not all of collect(): unit files and hashes would cost more than the rest.
        "now": {
            "kernel": {"running": platform.release()},
            "packages": packages(),
            "modules": modules(),
            "efa": efa(),
            "paths": paths(),
            "held": held(),
        },
        "baked": baked,
        "units": units,
        "dcgm_metrics": metrics,
        "failed": {unit: last_words(unit) for unit in failed},
        "cycles": ordering_cycles(),
        # Units that waited too short for an emulated processor.
        "too_slow_for": [u for u in failed if EMULATED and result_of(u) == "timeout"],
        "files": {path: file_facts(path) for path in [*looked_at, *built]},
        "linked": answers(linked),
        "limits": limits(),
        "sysctls": sysctls(components.get("tuning", {})),
        "host_keys": sorted(host_keys),
        "efa_devices": efa_devices(),
        "imds": imds(),
        "free": free_bytes("/"),
        "text": {path: text(path) for path in TEXTS},
        "agent_files": agent_files(),
        "authorized_keys": authorized_keys(),
        "commands": dict(unasked, **answers(asked)),
        "boot": {
            "container": container,
            "may_raise_limits": may_raise_limits(),
            "time": time.time() - float((text("/proc/uptime") or "0").split()[0]),
            "instance_id": (text("/var/lib/cloud/data/instance-id") or "").strip(),
            "now": time.time(),
        },
        "programs": programs(),
        "modules_loaded": loaded,
    }


def main():
    if "own_kernel" in ARGUMENTS:
        print(json.dumps(own_kernel(ARGUMENTS["own_kernel"])))
        return
    with ThreadPoolExecutor() as pool:
        print(json.dumps(facts(pool)))


main()
