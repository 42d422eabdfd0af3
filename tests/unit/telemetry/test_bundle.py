"""The bundle for running instances, against system images mounted somewhere (`--root`).

What needs a running system (start, restart, a real agent) is in tests/lab/test_telemetry_bundle.py.
"""

import base64
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from kiln.base.paths import RUNTIME
from kiln.cli import telemetry as tasks
from kiln.facts.packages import read_lock_file
from kiln.telemetry import bundle
from kiln.telemetry.settings import Telemetry

pytestmark = pytest.mark.slow

AGENT = "opt/aws/amazon-cloudwatch-agent"
EVENTS = f"{AGENT}/etc/amazon-cloudwatch-agent.d/kiln-events.json"
MONITOR = "etc/systemd/system/kiln-xid.service"
# Of the original pipeline; our unit has the name as an alias.
ORIGINAL = "etc/systemd/system/aws-hw-monitor.service"
WANTS = "etc/systemd/system/multi-user.target.wants/kiln-xid.service"

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("systemctl"),
    reason="the installer asks for root and for systemctl --root",
)


@pytest.fixture(scope="module")
def installer(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("bundle") / "kiln-telemetry.sh"
    bundle.write_bundle(out, Telemetry(efa=True))
    return out


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return make_image(tmp_path / "image")


def make_image(
    root: Path,
    os_release: str = 'ID="amzn"\nVERSION_ID="2023"\n',
    python: str = "3.9",
    systemd: str = "252",
    agent: str | None = "1.300072.0b1766",
) -> Path:
    for folder in ("opt", "usr/local/bin", "var/lib"):
        (root / folder).mkdir(parents=True)
    # systemctl takes an empty .wants away; an image never has it empty.
    put(root / "etc/systemd/system/multi-user.target.wants/sshd.service", "")
    put(root / "etc/os-release", os_release)
    put(root / "usr/bin/python3", "")
    put(root / f"usr/bin/python{python}", "")
    if systemd != "219":
        put(root / f"usr/lib/systemd/libsystemd-shared-{systemd}.so", "")
    if agent:
        put(root / AGENT / "bin/CWAGENT_VERSION", f"{agent}\n")
        (root / AGENT / "etc/amazon-cloudwatch-agent.d").mkdir(parents=True)
        put(
            root / "etc/systemd/system/amazon-cloudwatch-agent.service",
            "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
        )
    return root


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def run(installer: Path, root: Path, *options: str, rc: int = 0) -> str:
    done = subprocess.run(
        ["bash", str(installer), "--root", str(root), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == rc, done.stdout + done.stderr
    return done.stdout + done.stderr


def tree(root: Path) -> dict[str, str]:
    """Every file with its content's digest, every link with its target, every folder's mode."""

    def content(path: Path) -> str:
        if path.is_symlink():
            return str(path.readlink())
        mode = oct(path.stat().st_mode)
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else mode

    return {".": content(root)} | {
        str(path.relative_to(root)): content(path) for path in sorted(root.rglob("*"))
    }


def test_installer_has_each_locked_agent_package(tmp_path):
    tasks.bundle.body.__wrapped__(out=str(tmp_path / "installer"), settings=tasks.Profile())
    payload = (tmp_path / "installer").read_text().split("<<'EOF'\n")[-1].partition("\nEOF")[0]
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(payload))) as files:
        rows = files.extractfile("packages.tsv").read().decode().splitlines()
    known = {
        entry["url"]: entry["sha256"]
        for entry in read_lock_file()["artifacts"]
        if "/amazon-cloudwatch-agent." in entry["url"] and entry.get("sha256")
    }
    assert known
    assert dict(row.split("\t")[2:] for row in rows) == known


@needs_root
def test_bundle_installs_repairs_updates_and_goes(installer, image, tmp_path):
    before = tree(image)
    older = tmp_path / "older.sh"
    bundle.write_bundle(older, Telemetry(dcgm=True))
    run(older, image)
    assert (image / AGENT / "etc/kiln.d/dcgm.json").exists()
    output = run(installer, image)
    assert "starts at the next boot" in output
    assert not (image / AGENT / "etc/kiln.d/dcgm.json").exists()
    assert (image / EVENTS).exists()
    assert (image / MONITOR).read_text() == (RUNTIME / MONITOR).read_text()
    assert (image / WANTS).is_symlink()
    program = image / "opt/kiln/lib/kiln-agent-sources"
    assert program.stat().st_mode & 0o777 == 0o755
    installed = tree(image)
    assert "nothing to do" in run(installer, image)
    program.write_text("")
    run(installer, image)
    assert tree(image) == installed
    counters = image / "etc/kiln/dcgm-counters.csv"
    known = counters.read_text()
    counters.write_text("mine\n")
    assert "left your own /etc/kiln/dcgm-counters.csv" in run(installer, image)
    assert counters.read_text() == "mine\n"
    counters.write_text(known)
    run(installer, image, "--uninstall")
    assert tree(image) == before
    assert "nothing to do" in run(installer, image, "--uninstall")


@needs_root
def test_what_was_there_before_comes_back(installer, image):
    theirs = (
        "[Service]\nExecStart=/opt/aws/aws-hw-monitor.sh\n[Install]\nWantedBy=multi-user.target\n"
    )
    put(image / ORIGINAL, theirs)
    subprocess.run(["systemctl", f"--root={image}", "enable", "aws-hw-monitor"], check=True)
    image.chmod(0o555)  # as Amazon Linux has it
    before = tree(image)
    output = run(installer, image)
    assert f"kept the /{ORIGINAL} that was here before" in output
    assert (image / ORIGINAL).readlink().name == "kiln-xid.service"
    run(installer, image)
    run(installer, image, "--uninstall")
    assert tree(image) == before


@needs_root
@pytest.mark.parametrize(
    ("agent", "log_class", "efa"),
    [
        ("1.300031.1", False, False),
        ("1.300032.3", True, False),
        ("1.300072.0b1766", True, True),
    ],
)
def test_configuration_fits_the_agent(installer, tmp_path, agent, log_class, efa):
    image = make_image(tmp_path, agent=agent)
    run(installer, image)
    assert ("log_group_class" in (image / EVENTS).read_text()) is log_class
    assert (image / AGENT / "etc/kiln.d/efa.json").exists() is efa


@needs_root
@pytest.mark.parametrize(("systemd", "dropins"), [("239", False), ("240", True)])
def test_old_systemd_gets_no_dropins(installer, tmp_path, systemd, dropins):
    image = make_image(tmp_path, systemd=systemd)
    run(installer, image)
    assert (image / MONITOR).read_text() == (RUNTIME / MONITOR).read_text()
    assert (image / "etc/systemd/system/kiln-.service.d").exists() is dropins
    assert "nothing to do" in run(installer, image)


@needs_root
@pytest.mark.parametrize(
    ("machine", "options", "rc", "message"),
    [
        ({"os_release": 'ID=ubuntu\nVERSION_ID="18.04"\n'}, (), 2, "no support for ubuntu 18.04"),
        ({"python": "3.6"}, (), 1, "needs Python 3.7"),
        ({"agent": None}, (), 1, "the CloudWatch agent is not in"),
        ({"agent": "1.247349.0"}, (), 1, "must be 1.247350.0 or newer"),
        ({}, ("--frobnicate",), 2, "unknown option --frobnicate"),
    ],
)
def test_unsupported_machine_is_refused_unchanged(
    installer, tmp_path, machine, options, rc, message
):
    image = make_image(tmp_path, **machine)
    before = tree(image)
    assert message in run(installer, image, *options, rc=rc)
    assert tree(image) == before


@needs_root
def test_torn_installer_changes_nothing(installer, image, tmp_path):
    lines = installer.read_text().splitlines()
    middle = len(lines) - 10
    torn = tmp_path / "torn.sh"
    torn.write_text("\n".join(lines[:middle] + lines[middle + 1 :]) + "\n")
    before = tree(image)
    assert "damaged" in run(torn, image, rc=1)
    half = tmp_path / "half.sh"
    half.write_text("\n".join(lines[:middle]))
    subprocess.run(["bash", str(half), "--root", str(image)], check=False, capture_output=True)
    assert tree(image) == before
