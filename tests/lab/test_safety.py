"""What a user of this machine, and root in a guest, try in order to become root here.

docs/security.md says what is defended. Each attack is the one that worked before.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
from pathlib import Path

import guests
import pytest
from conftest import ROOT, another_lab, launching

from kiln.base.errors import KilnError
from kiln.cloud import instance
from lab.base.settings import Lab
from lab.daemon import control, host, root_shell
from lab.machine.guest import leader_of


@pytest.fixture(scope="module")
def guest(ec2, key, source_ami):
    """One guest for all attacks. Its user data leaves a setuid shell, as the first attack did."""
    user_data = "#!/bin/sh\ncp /bin/dash /opt/rootshell && chmod 4755 /opt/rootshell\n"
    with launching(ec2, key, source_ami) as launch:
        found = launch(UserData=user_data)
        found.run("until [ -u /opt/rootshell ]; do sleep 0.2; done", timeout=120)
        yield found


def as_nobody(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, user=65534, group=65534, extra_groups=[], env={"PATH": os.environ["PATH"]},
        cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_user_of_this_machine_launches_nothing(lab: Lab) -> None:
    form = "Action=RunInstances&Version=2016-11-15&ImageId=ami-1&MinCount=1&MaxCount=1"
    for more in (
        (),
        ("--header", "Authorization: AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/ec2/"
         "aws4_request, SignedHeaders=host, Signature=0"),
    ):  # fmt: skip
        done = as_nobody("curl", "-s", "-d", form, *more, lab.endpoint)
        assert "<Code>AuthFailure</Code>" in done.stdout, done.stderr
    for call in ("down", "faults", "status"):
        done = as_nobody("curl", "-s", "-d", "{}", f"{lab.endpoint}/_lab/{call}")
        assert "no session token of this lab" in done.stdout
    assert control.status(lab)


def test_a_user_of_this_machine_reads_neither_keys_nor_disks(lab: Lab, guest) -> None:
    shell = lab.instances / guest.id / "upper/opt/rootshell"
    assert shell.stat().st_mode & 0o4000, "the setuid shell is on the disk"
    for path in (shell, lab.state / "session-token", lab.shared / "bases", lab.images, lab.log):
        assert path.exists()
        assert as_nobody("ls", str(path)).returncode != 0, path
    assert as_nobody("sh", "-c", f"{shell} -p -c 'id -u'").stdout == ""


def test_no_disk_of_a_guest_is_seen_outside_it(lab: Lab, guest) -> None:
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    seen = [line.split()[2] for line in mounts if str(lab.instances) in line]
    assert set(seen) == {"fuse"}, "kernel logs"


def leader(lab: Lab, guest) -> int:
    found = leader_of(int((lab.instances / guest.id / "nspawn.pid").read_text()))
    assert found
    return found


def test_the_root_of_a_guest_is_nobody_here(lab: Lab, guest) -> None:
    status = Path(f"/proc/{leader(lab, guest)}/status").read_text()
    (uids,) = (line.split()[1:] for line in status.splitlines() if line.startswith("Uid:"))
    assert set(uids) == {"1"}, "the first of the cell's ids that are nobody's"
    upper = lab.instances / guest.id / "upper"
    # On disk files have the owner that they have in the guest: an AMI is the same in any guest.
    assert (upper / "opt/rootshell").stat().st_uid == 1
    strange = subprocess.run(
        ["find", str(upper), "-uid", "-1", "-o", "-gid", "-1", "-o", "-uid", "+65535"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert strange == []


# Files of the host's kernel, reached through a fresh proc, sysfs or control group. Each line that
# it prints is one that opened for writing.
ATTACK = r"""
mkdir -p /tmp/p /tmp/s /tmp/c
mount -t proc p /tmp/p; mount -t sysfs s /tmp/s
for file in /proc/sys/kernel/core_pattern /tmp/p/sys/kernel/core_pattern /tmp/p/sysrq-trigger \
    /tmp/p/sys/kernel/modprobe /tmp/p/sys/kernel/hotplug /tmp/p/sys/kernel/dmesg_restrict \
    /tmp/p/sys/vm/drop_caches /tmp/p/sys/fs/binfmt_misc/register /tmp/s/kernel/uevent_helper \
    /tmp/s/kernel/mm/transparent_hugepage/enabled /tmp/s/power/state
do if [ -e "$file" ] && ( : >>"$file" ) 2>/dev/null; then echo "opened $file"; fi; done
for kind in memory cpu devices freezer blkio pids rdma; do
  if mount -t cgroup -o $kind c /tmp/c 2>/dev/null; then
    find /tmp/c -name release_agent | while read -r file; do
      if ( : >>"$file" ) 2>/dev/null; then echo "opened $file"; fi
    done
    umount /tmp/c
  fi
done
find /sys/fs/cgroup -name release_agent | while read -r file; do
  if ( : >>"$file" ) 2>/dev/null; then echo "opened $file"; fi
done
for kind in debugfs tracefs securityfs bpf; do
  if mount -t $kind c /tmp/c 2>/dev/null && [ $kind != bpf ]; then echo "mounted $kind"; fi
done
# To what they are: were it allowed, this machine would stay as it is.
for device in null zero full random urandom tty net/tun; do
  if [ -O /dev/$device ]; then echo "owns /dev/$device"; fi
  if chown "$(stat -c %u:%g /dev/$device)" /dev/$device 2>/dev/null; then echo "took $device"; fi
  if chmod "$(stat -c %a /dev/$device)" /dev/$device 2>/dev/null; then echo "closed $device"; fi
done
if setpriv --reuid 65536 --clear-groups true 2>/dev/null; then echo "became the cell's root"; fi
python3 -c 'import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.unshare(0x20000)  # a mount namespace, MS_REC | MS_PRIVATE
libc.mount(None, b"/", None, 0x44000, None)
below = os.open("/proc/self/ns/mnt", os.O_RDONLY)
libc.umount2(b"/", 2)
libc.setns(below, 0x20000)
if not os.path.exists("/etc/kiln-lab-base"):  # which its own root has
    names = {text.partition("=")[0] for text in open("/proc/1/environ").read().split("\0")}
    names -= {"", "PATH", "PWD", "LC_CTYPE", "SYSTEMD_LOG_TARGET"}
    for each in [*filter(os.path.exists, sys.argv[1:]), *names]:
        print("saw", each)' HOSTS_FOLDERS
if mknod /tmp/disk b 254 0 2>/dev/null; then echo "made a disk"; fi
if mknod /tmp/mem c 1 1 2>/dev/null; then echo "made /dev/mem"; fi
if date -s 2020-01-01 >/dev/null 2>&1; then echo "set the clock"; fi
if dmesg --clear 2>/dev/null; then echo "cleared the kernel log"; fi
if python3 -c 'import ctypes,sys
sys.exit(ctypes.CDLL(None, use_errno=True).syscall(175, b"x", 1, b"") == -1
         and ctypes.get_errno() == 1)' ; then echo "may load modules"; fi
echo "tried as $(id -u)"
"""


def test_root_in_a_guest_changes_nothing_of_this_machines_kernel(lab: Lab, guest) -> None:
    others = f"/sys/fs/cgroup/{lab.bridge}"
    tried = ATTACK.replace("HOSTS_FOLDERS", f"{ROOT} {lab.root} /dev/shm /dev/kmsg {others}")
    done = guest.run(f"sudo bash -s <<'END'\n{tried}\nEND")
    assert done.stdout.splitlines() == ["tried as 0"], done.stdout + done.stderr


# Runs in the place of the guest's shell, and notes whether /proc has the process that it is.
_SHELL = r"""
cat >/tmp/sh <<'END'
#!/usr/bin/sh.real
[ -e /proc/self ] || echo outside >>/tmp/ran
exec /usr/bin/sh.real "$@"
END
chmod 755 /tmp/sh && mv /usr/bin/sh /usr/bin/sh.real && mv /tmp/sh /usr/bin/sh
"""


def test_lab_shell_gives_a_guest_nothing(lab: Lab, guest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest may have replaced its programs: `lab.shell` runs them in it alone, with its rights,
    and without the variables that `lab.up` prints."""
    assert guest.run(f"sudo bash -c {shlex.quote(_SHELL)}").returncode == 0
    monkeypatch.setenv("AWS_SESSION_TOKEN", "secret")
    ask = ["bash", "-c", "readlink /proc/self/ns/user >/tmp/user; env >/tmp/env"]
    assert root_shell.shell(lab, guest.id, ask) == 0
    restored = guest.run("sudo mv /usr/bin/sh.real /usr/bin/sh; cat /tmp/user; cat /tmp/ran")
    user = Path(f"/proc/{leader(lab, guest)}/ns/user").readlink()
    assert restored.stdout == f"{user}\n"
    assert "AWS_SESSION_TOKEN" not in guest.run("cat /tmp/env").stdout


def test_guest_reaches_the_lab_and_nothing_else_here(lab: Lab, guest) -> None:
    other = another_lab(__file__)
    add = ["ip", "address", "add", f"{other.gateway}/32", "dev", "lo"]
    with contextlib.ExitStack() as stack:
        # As if the other lab ran; if it does, the address is there.
        if subprocess.run(add, capture_output=True, check=False).returncode == 0:
            stack.callback(subprocess.run, [*add[:2], "delete", *add[3:]], check=True)
        for address in (lab.gateway, other.gateway):
            stack.enter_context(socket.create_server((address, 8000)))
        for address, port, reached in (
            (lab.gateway, 80, "open"),
            (lab.gateway, 8000, "closed"),
            (other.gateway, 8000, "closed"),
        ):
            probe = f"timeout 2 bash -c '</dev/tcp/{address}/{port}' && echo open || echo closed"
            assert guest.run(probe).stdout.strip() == reached, (address, port)
    # Two lengths could hide a second request in the body of the first.
    ask = "curl -s -o /dev/null -w '%{http_code}' -d x" + " -H 'Content-Length: 1'" * 2
    assert guest.run(f"{ask} -H 'Host: ec2.us-east-1.amazonaws.com' {lab.gateway}").stdout == "411"


def test_guest_cannot_reach_the_hosts_cloud_metadata(guest) -> None:
    """A machine beside this one that has an ordinary address and three of clouds' services."""
    services = ("198.51.100.2", "169.254.170.2", "168.63.129.16", "100.100.100.200")
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(guests.network())
        beside = f"nsenter --target={network} --net"
        for command in (
            f"ip link add kilnbeside type veth peer name eth0 netns {network}",
            "ip link set kilnbeside up",
            "ip address add 198.51.100.1/24 dev kilnbeside",
            f"{beside} ip link set eth0 up",
            *(f"{beside} ip address add {service}/24 dev eth0" for service in services),
            *(f"ip route add {item}/32 dev kilnbeside src 198.51.100.1" for item in services[1:]),
        ):
            subprocess.run(command.split(), check=True)
        serve = [*beside.split(), "python3", "-m", "http.server", "8000"]
        server = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(server.wait)
        stack.callback(server.kill)
        here = f"until (</dev/tcp/{services[0]}/8000) 2>/dev/null; do sleep 0.1; done"
        subprocess.run(["timeout", "30", "bash", "-c", here], check=True)
        for service, reached in zip(services, ("open", *["closed"] * 3), strict=True):
            probe = f"timeout 2 bash -c '</dev/tcp/{service}/8000' && echo open || echo closed"
            assert guest.run(probe).stdout.strip() == reached, service


# Announces another's address, as an owner of that address does, and asks IMDS as its owner would.
# Then the same with the other's MAC.
_IMPERSONATE = r"""
gateway=$1 address=$2 mac=$3
announce() {
  python3 - "$gateway" "$address" <<'END'
import socket, sys
gateway, address = map(socket.inet_aton, sys.argv[1:])
with open("/sys/class/net/eth0/address") as file:
    own = bytes.fromhex(file.read().strip().replace(":", ""))
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
    out.bind(("eth0", 0))
    for operation in (1, 2):
        arp = bytes.fromhex("0001080006040%03x" % operation) + own + address + own + gateway
        out.send(b"\xff" * 6 + own + bytes.fromhex("0806") + arp)
END
}
ask() { curl -s -m 3 --interface "$address" http://169.254.169.254/latest/meta-data/instance-id; }
own=$(cat /sys/class/net/eth0/address)
ip address add "$address/32" dev eth0
announce
echo "address: $(ask)"
ip link set eth0 address "$mac"
announce
echo "address and MAC: $(ask)"
ip link set eth0 address "$own"
ip address delete "$address/32" dev eth0
"""


def test_a_guest_cannot_take_anothers_address(lab: Lab, ec2, guest, launch) -> None:
    """IMDS knows instances by their address: it would hand out another's role credentials."""
    thief = launch()
    (described,) = ec2.describe_instances(InstanceIds=[guest.id])["Reservations"][0]["Instances"]
    mac = described["NetworkInterfaces"][0]["MacAddress"]
    own = guest.run("cat /sys/class/net/eth0/address").stdout.strip()
    assert mac == own, "EC2 shows the MAC that the guest has"
    done = subprocess.run(
        [*root_shell.entering(leader(lab, thief)), "bash", "-s",
         lab.gateway, guest.address, mac],
        input=_IMPERSONATE, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["address: ", "address and MAC: "], done.stderr
    # Both still have what is theirs.
    for each in (guest, thief):
        asked = each.run("curl -s http://169.254.169.254/latest/meta-data/instance-id")
        assert asked.stdout == each.id


def test_a_guest_does_not_reach_this_machine_over_ipv6(lab: Lab, guest) -> None:
    """Every service that listens on `::`, sshd for one, has the bridge's link-local address too."""
    listed = subprocess.run(
        ["ip", "-6", "-oneline", "address", "show", "dev", lab.bridge],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    local = re.findall(r"inet6 (fe80[0-9a-f:]+)", listed)
    with socket.create_server(("::", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        for address in local or ["fe80::1"]:
            code = (
                "import socket; s = socket.socket(socket.AF_INET6); s.settimeout(2); "
                f"s.connect(('{address}', {port}, 0, socket.if_nametoindex('eth0')))"
            )
            probe = f'python3 -c "{code}" && echo open || echo closed'
            assert guest.run(probe).stdout == "closed\n"
    assert not local


def test_the_console_is_the_guests_own_and_shows_its_host_keys(ec2, guest) -> None:
    text = ec2.get_console_output(InstanceId=guest.id)["Output"]
    shown = instance.keys_in_console(text)
    scanned = subprocess.run(
        ["ssh-keyscan", guest.address], capture_output=True, text=True, check=True
    ).stdout
    offered = {line.split(" ", 1)[1].strip() for line in scanned.splitlines()}
    assert shown
    assert offered <= set(shown)


def test_state_folder_that_cannot_hold_disks_is_refused(tmp_path: Path) -> None:
    """An overlay cannot: guests would not boot."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    merged = tmp_path / "merged"
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    subprocess.run(
        ["mount", "-t", "overlay", "o", "-o", f"{options},userxattr", str(merged)], check=True
    )
    try:
        lab = Lab(54, merged)
        lab.instances.mkdir(parents=True)
        with pytest.raises(KilnError, match="cannot give guests a user namespace") as error:
            host.can_have_disks(lab)
        assert "folder is on overlayfs; if that is not ext4, xfs or btrfs" in str(error.value)
        assert not list(lab.instances.iterdir())
    finally:
        subprocess.run(["umount", str(merged)], check=True)
