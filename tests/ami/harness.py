"""The harness for a booted AMI: expectations from the recipe, facts from the machine.

    KILN_EXPECT=expect.json pytest tests/ami --hosts=ssh://user@address --ssh-config=FILE

KILN_EXPECT: {"recipe": Recipe as JSON, "instance_type": str, "target": "aws"|"lab",
              "gpu": {"count": int, "name": str, "nvswitch": bool, "nvlsm": bool, "efa": int,
                      "mig": bool, "prefers": "open"|"proprietary",
                      "clocks": [memory, graphics] in MHz or null} or null,
              "needs_cluster": [units that fail without one],
              "exercise": bool, whether checks may act on the machine,
              "reboot": bool, whether to reboot it and check it again,
              "efa_attached": bool, whether it was launched with an EFA interface,
              "restart": {instance_id, region, ssh_interface} to stop and start it, or null,
              "own_kernel": bool, whether the lab boots the image's own kernel,
              "boot_budget": kiln/facts/knowledge/boot.yaml}

A single program on the machine (`collect.py`) collects all facts, so that checks cost nothing.
A check of what is not part of the image is neither run nor counted: see applies.py.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
import testinfra

HERE = Path(__file__).resolve().parent
VERSION_INFO = HERE.parent.parent / "provisioners/lib/version_info.py"
# sshd answers before the boot is complete: services may still be starting. test_boot.py reports
# what does not finish. systemd 219 (Amazon Linux 2) has no `is-system-running --wait`; elsewhere
# asking again and again would cost more than it waits for. sshd may also be up before D-Bus, by
# which systemd answers.
UNTIL_BOOTED = (
    "timeout 600 sh -c 'systemctl is-system-running --wait >/dev/null 2>&1; "
    "until case $(systemctl is-system-running 2>/dev/null) in "
    "running|degraded|maintenance) ;; *) false;; esac; do sleep 0.2; done'"
)
UNREACHABLE = 3
BAD_CALL = 2
REBOOT_TIMEOUT = 900
READ_BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


def read_expectations() -> dict[str, Any]:
    path = os.environ.get("KILN_EXPECT")
    if not path:
        pytest.exit("KILN_EXPECT must name the file with the expectations", BAD_CALL)
    try:
        expectations: dict[str, Any] = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        pytest.exit(f"KILN_EXPECT={path} cannot be read: {error}", BAD_CALL)
    return expectations


@pytest.fixture(scope="session")
def expect() -> dict[str, Any]:
    """What this machine should be: recipe, instance_type, gpu, target."""
    return read_expectations()


@pytest.fixture(scope="session")
def recipe(expect: dict[str, Any]) -> dict[str, Any]:
    """The recipe the AMI was made from."""
    result: dict[str, Any] = expect["recipe"]
    return result


def connected(config: pytest.Config, spec: str) -> testinfra.host.Host:
    options = ("ssh_config", "ssh_identity_file", "ssh_extra_args")
    return testinfra.get_host(spec, **{name: config.getoption(name) for name in options})


@pytest.fixture(scope="session")
def host(request: pytest.FixtureRequest, expect: dict[str, Any]) -> testinfra.host.Host:
    """The machine, connected once: no check runs while it does not answer or is booting."""
    spec = request.config.getoption("hosts")
    if not spec:
        pytest.exit("--hosts=ssh://user@address is missing", BAD_CALL)
    result = connected(request.config, spec)
    try:
        answer = result.run(f"sudo -n true && {{ {UNTIL_BOOTED}; true; }}")
    except RuntimeError as error:
        output = re.findall(r'stderr="?b?.?(.+?)["\']?\)?$', str(error))
        why = (output[0] if output else str(error)).replace("\\r\\n", "")
        pytest.exit(f"{spec} cannot be reached over SSH: {why}", UNREACHABLE)
    if answer.rc != 0:
        pytest.exit(f"{spec}: sudo asks for a password: {answer.stderr.strip()}", UNREACHABLE)
    return result


def packed(program: str, arguments: dict[str, str]) -> str:
    """A program as one line for `python3 -c`; it finds `arguments` as ARGUMENTS.

    Nothing is put before the program: its `from __future__` lines must stay first.
    """
    text = base64.b64encode(zlib.compress(program.encode())).decode()
    known = {"__name__": "__main__", "ARGUMENTS": arguments}
    return f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{text}')),{known!r})"


def run_python(host: testinfra.host.Host, program: str, **arguments: str) -> Any:
    """Run a Python 3.7 program as root on the machine; its standard output as JSON."""
    answer = host.run("sudo -n python3 -c %s", packed(program, arguments))
    assert answer.rc == 0, f"the program on the machine failed: {answer.stderr[-2000:]}"
    return json.loads(answer.stdout)


@pytest.fixture(scope="session")
def machine(host: testinfra.host.Host) -> dict[str, Any]:
    """What is on the machine now; collect.py describes the structure."""
    result: dict[str, Any] = run_python(host, collector())
    return result


def reboot(host: testinfra.host.Host) -> None:
    """Reboot the machine, and wait until that boot is over."""
    before = host.run(READ_BOOT_ID)
    assert before.rc == 0, before.stderr
    host.run(
        "sudo -n systemd-run --on-active=1 --timer-property=AccuracySec=100ms systemctl reboot"
    )
    wait_for_boot(host, before.stdout)


def stop_and_start(
    host: testinfra.host.Host, config: pytest.Config, expect: dict[str, Any]
) -> testinfra.host.Host:
    """Stop the machine and start it, as a rule on other hardware. Skips when EC2 has none."""
    from kiln.base.errors import KilnError
    from kiln.cli import targets
    from kiln.cloud.instance import restart
    from kiln.cloud.network import no_capacity

    where = expect["restart"]
    before = host.run(READ_BOOT_ID)
    assert before.rc == 0, before.stderr
    target = targets.choose(expect["target"], where["region"])
    try:
        address = restart(where["instance_id"], where["ssh_interface"], target)
    except KilnError as error:
        if no_capacity(str(error)):
            pytest.skip(str(error))
        raise
    user = config.getoption("hosts").rpartition("@")[0]
    started = connected(config, f"{user}@{address}")
    wait_for_boot(started, before.stdout)
    return started


def wait_for_boot(host: testinfra.host.Host, before: str) -> None:
    """Wait until a boot with another id than `before` is over."""
    deadline = time.monotonic() + REBOOT_TIMEOUT
    while time.monotonic() < deadline:
        time.sleep(0.5)
        # Without an answer, RuntimeError.
        with contextlib.suppress(RuntimeError):
            now = host.run(READ_BOOT_ID)
            if now.rc == 0 and now.stdout != before:
                host.run(UNTIL_BOOTED)
                return
    pytest.fail(f"the machine did not come back within {REBOOT_TIMEOUT} s of its boot")


def collector() -> str:
    """collect.py behind the functions that it takes from version_info.py."""
    library = VERSION_INFO.read_text().split('\nif __name__ == "__main__"')[0]
    return library + "\n" + (HERE / "collect.py").read_text()


@pytest.fixture(scope="session")
def version_info(machine: dict[str, Any]) -> dict[str, Any]:
    """/etc/kiln/version-info.json as it was baked."""
    baked: dict[str, Any] | None = machine["baked"]
    assert baked is not None, "/etc/kiln/version-info.json is missing or not JSON"
    return baked


@pytest.fixture(scope="session")
def gpu(expect: dict[str, Any], machine: dict[str, Any]) -> dict[str, Any]:
    """The GPUs of this instance type; skips when it has none, or when they cannot be used."""
    if expect["gpu"] is None:
        pytest.skip(f"{expect['instance_type']} has no NVIDIA GPU")
    if expect["target"] == "lab" and not machine["files"]["/usr/lib/kiln-lab/bin/kiln-lab-gpu"]:
        pytest.skip("a real driver runs in the lab, which has no GPU")
    result: dict[str, Any] = expect["gpu"]
    return result
