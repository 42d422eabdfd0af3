"""Hooks: which events they get, which files they are, and what happens when they misbehave."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kiln.base import paths
from kiln.base.paths import RUNTIME

config = paths.runtime_module("gpu_xid.config")
hooks = paths.runtime_module("gpu_xid.hooks")

EXAMPLES = sorted((RUNTIME / "etc/kiln/xid.d").glob("*.example"))


def conf(folder: Path, **settings: Any) -> dict[str, Any]:
    """The `hooks` part of a configuration, with its directory below `folder`."""
    (folder / "xid.d").mkdir(exist_ok=True)
    (folder / "spool").mkdir(exist_ok=True)
    checked = config.check({"hooks": {"dir": str(folder / "xid.d"), **settings}}, "test")
    result: dict[str, Any] = checked["hooks"]
    return result


def hook(folder: Path, name: str, body: str, mode: int = 0o755) -> None:
    path = folder / "xid.d" / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)


def run(settings: dict[str, Any], folder: Path) -> int:
    status: int = hooks.run(settings, lambda text: print(text, file=sys.stderr), f"{folder}/spool")
    return status


def event(**more: Any) -> dict[str, Any]:
    line = {"time": "2026-11-21T01:02:03.000004Z", "seq": 7, "xid": 79, "sxid": None}
    return {**line, "severity": "fatal", **more}


LOST = event(xid=None, implied_xid=79, event="gpu-lost", pci="0000:3b:00", name="fallen off")


CHOSEN = {"codes": ["xid 63", "sxid 12028"], "severity": [], "injected": True}


@pytest.mark.parametrize(
    ("settings", "line", "runs"),
    [
        ({}, event(), True),
        ({}, event(severity="error"), False),
        ({}, event(injected=True), False),
        (CHOSEN, event(xid=63, severity="warning", injected=True), True),
        (CHOSEN, event(xid=None, sxid=12028, severity="warning"), True),
        (CHOSEN, event(), False),
        ({"codes": ["xid 79"], "severity": []}, LOST, True),
    ],
)
def test_hooks_run_on_chosen_events(
    settings: dict[str, Any], line: dict[str, Any], runs: bool, tmp_path: Path
) -> None:
    assert hooks.matches(conf(tmp_path, **settings), line) is runs


def test_examples_and_files_that_are_not_executable_are_off(tmp_path: Path) -> None:
    conf(tmp_path)
    for name, mode in (("10-a", 0o755), ("20-b", 0o644), ("x.example", 0o755), (".c", 0o755)):
        hook(tmp_path, name, "true", mode)
    assert [Path(p).name for p in hooks.executables(str(tmp_path / "xid.d"))] == ["10-a"]


def test_every_hook_gets_the_event_on_stdin(tmp_path: Path) -> None:
    settings = conf(tmp_path)
    for name in ("10-a", "20-b"):
        hook(tmp_path, name, f"cat >> {tmp_path}/{name}.got")
        (tmp_path / f"{name}.got").touch()
    spool = hooks.Spool(settings, str(tmp_path / "spool"))
    for xid in (79, 48):  # of one moment
        spool.put(event(xid=xid))
    assert run(settings, tmp_path) == 0
    for name in ("10-a", "20-b"):
        got = (tmp_path / f"{name}.got").read_text().splitlines()
        assert [json.loads(line) for line in got] == [event(xid=79), event(xid=48)]
    assert list((tmp_path / "spool").iterdir()) == []


def test_without_a_hook_nothing_is_spooled(tmp_path: Path) -> None:
    hooks.Spool(conf(tmp_path), str(tmp_path / "spool")).put(event())
    assert list((tmp_path / "spool").iterdir()) == []


def test_hanging_hook_is_killed_and_the_next_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = conf(tmp_path, timeout_s=1)
    hook(tmp_path, "10-hang", f"sleep 60 & echo $! > {tmp_path}/child; wait")
    hook(tmp_path, "20-next", f"touch {tmp_path}/next")
    hooks.Spool(settings, str(tmp_path / "spool")).put(event())
    assert run(settings, tmp_path) == 1
    assert (tmp_path / "next").exists()
    assert "killed after 1 s" in capfd.readouterr().err
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "status")
    deadline = time.monotonic() + 120  # it was sent SIGKILL, and dies when its turn comes
    while lives(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lives(status: Path) -> bool:
    try:
        return "State:\tZ" not in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_failing_hook_is_only_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = conf(tmp_path)
    hook(tmp_path, "10-fail", "exit 3")
    hook(tmp_path, "23-crlf", "true")
    (tmp_path / "xid.d" / "23-crlf").write_bytes(b"#!/bin/sh\r\ntrue\r\n")
    hook(tmp_path, "30-next", f"touch {tmp_path}/next")
    hooks.Spool(settings, str(tmp_path / "spool")).put(event(raw="x" * 200000))
    assert run(settings, tmp_path) == 1
    output = capfd.readouterr().err
    assert "10-fail: exit status 3" in output
    assert "23-crlf: cannot be run: its first line names a program that does not exist" in output
    assert (tmp_path / "next").exists()


def test_a_spool_that_fills_up_is_bounded_and_counted(tmp_path: Path) -> None:
    settings = conf(tmp_path)
    hook(tmp_path, "10-a", "true")
    spool = hooks.Spool(settings, str(tmp_path / "spool"))
    for seq in range(250):
        spool.put(event(seq=seq))
    assert len(list((tmp_path / "spool").iterdir())) == 200
    assert spool.dropped == 50


def test_a_file_that_is_not_an_event_is_hidden_from_systemd(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`DirectoryNotEmpty=` looks away from hidden files only; else it starts this for ever."""
    settings = conf(tmp_path)
    (tmp_path / "spool" / "folder").mkdir()
    assert run(settings, tmp_path) == 0
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [".folder"]
    assert "folder: cannot be read: Is a directory" in capfd.readouterr().err


def test_half_an_event_is_handed_to_no_hook(tmp_path: Path) -> None:
    settings = conf(tmp_path)
    hook(tmp_path, "10-a", "true")
    spool = hooks.Spool(settings, str(tmp_path / "spool"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        spool.put(event())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert spool.dropped == 1
    assert list((tmp_path / "spool").iterdir()) == []


def platform(tmp_path: Path, **more: str) -> Path:
    """The platforms' tools: stand-ins that note how they were called in the file returned.

    `more`: what a tool does besides, in shell.
    """
    calls = tmp_path / "calls"
    calls.touch()
    for tool in ("kubectl", "aws", "scontrol"):
        hook_like = tmp_path / tool
        hook_like.write_text(f'#!/bin/sh\necho "{tool} $*" >> {calls}\n{more.get(tool, "")}\n')
        hook_like.chmod(0o755)
    curl = tmp_path / "curl"
    curl.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        '  *51678*) echo \'{"Cluster": "c1", "ContainerInstanceArn": "arn:ci"}\' ;;\n'
        "  *placement/region*) echo us-west-2 ;;\n  *instance-id*) echo i-0abc ;;\n"
        "  *) echo token ;;\nesac\n"
    )
    curl.chmod(0o755)
    return calls


@pytest.mark.parametrize(
    ("example", "program"),
    [
        ("autoscaling-unhealthy", "curl"),
        ("ecs-drain", "python3"),
        ("eks-cordon", "hostname"),
        ("slurm-drain", "python3"),
    ],
)
def test_example_that_does_not_know_its_node_fails(
    example: str, program: str, tmp_path: Path
) -> None:
    calls = platform(tmp_path)
    (tmp_path / program).write_text("#!/bin/sh\nexit 97\n")
    (tmp_path / program).chmod(0o755)
    done = subprocess.run(
        ["bash", str(EXAMPLES[0].with_name(f"{example}.example"))],
        input=json.dumps(event(pci="0000:3b:00", name="x")), text=True, check=False,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )  # fmt: skip
    assert (done.returncode, calls.read_text()) == (97, "")


EVENTS = {
    "xid": event(pci="0000:3b:00", name="GPU has fallen off the bus"),
    "sxid": event(xid=None, sxid=20034, pci="0000:05:00.0", name="LTSSM fault"),
    "gpu-lost": {**LOST, "pci": None},
    "health": event(xid=None, event="health", pci="0000:3b:00.0", name="Row remapping failure"),
}
CODES = {"xid": "Xid-79", "sxid": "SXid-20034", "gpu-lost": "Xid-79", "health": "health"}
REASONS = {
    "xid": "Xid 79 on 0000:3b:00: GPU has fallen off the bus",
    "sxid": "SXid 20034 on 0000:05:00.0: LTSSM fault",
    "gpu-lost": "Xid 79 on this node: fallen off",
    "health": "GPU health on 0000:3b:00.0: Row remapping failure",
}
# Example → the calls of its platform's tools.
CALLS = {
    "eks-cordon": "kubectl cordon n1\nkubectl label node n1 kiln.gpu/event={code} --overwrite\n",
    "ecs-drain": "aws ecs update-container-instances-state --cluster c1 "
    "--container-instances arn:ci --status DRAINING\n",
    "slurm-drain": "scontrol --oneliner show node n1\nscontrol reboot ASAP "
    "nextstate=RESUME reason={reason} n1\n",
    "autoscaling-unhealthy": "aws autoscaling set-instance-health --region us-west-2 "
    "--instance-id i-0abc --health-status Unhealthy\n",
}


@pytest.mark.parametrize("kind", EVENTS)
def test_examples_do_their_work_on_each_kind_of_event(kind: str, tmp_path: Path) -> None:
    assert {path.stem for path in EXAMPLES} == set(CALLS)
    calls = platform(tmp_path)
    for example in EXAMPLES:
        assert not example.stat().st_mode & 0o111, "none is switched on"
        calls.write_text("")
        subprocess.run(
            ["bash", str(example)],
            input=json.dumps(EVENTS[kind]), text=True, check=True,
            env=environment(tmp_path, NODE_NAME="n1", SLURMD_NODENAME="n1"),
        )  # fmt: skip
        wanted = CALLS[example.stem].format(code=CODES[kind], reason=REASONS[kind])
        assert calls.read_text() == wanted


def environment(folder: Path, **more: str) -> dict[str, str]:
    own = {"PATH": f"{folder}:/usr/bin:/bin", "KILN_SLURM_REBOOTED": str(folder / "rebooted")}
    return {**own, **more}


# How Slurm 22.05 answered: tests/lab/test_slurm.py.
NODE = (
    '[ "$2" != show ] || echo "NodeName=n1 NodeAddr=n1 State={} NextState=RESUME Reason=x [root@…]"'
)
NO_PROGRAM = '[ "$1" != reboot ] || exit 1; '


@pytest.mark.parametrize(
    ("node", "rebooted", "asked"),
    [
        (NODE.format("MIXED"), "", ["--oneliner", "reboot"]),
        (NODE.format("MIXED"), "SXid 20034 on 0000:05:00.0: LTSSM fault", ["--oneliner", "reboot"]),
        (NODE.format("MIXED"), REASONS["xid"], ["--oneliner", "update"]),  # it has not helped
        (NO_PROGRAM + NODE.format("IDLE+CLOUD"), "", ["--oneliner", "reboot", "update"]),
        (NODE.format("IDLE+DRAIN"), "", ["--oneliner"]),
        (NODE.format("ALLOCATED+DRAIN+REBOOT_REQUESTED"), "", ["--oneliner"]),
    ],
)
def test_slurm_reboots_once_for_an_event(
    node: str, rebooted: str, asked: list[str], tmp_path: Path
) -> None:
    calls = platform(tmp_path, scontrol=node)
    if rebooted:
        (tmp_path / "rebooted").write_text(rebooted + "\n")
    subprocess.run(
        ["bash", str(EXAMPLES[0].with_name("slurm-drain.example"))],
        input=json.dumps(EVENTS["xid"]), text=True, check=True, env=environment(tmp_path),
    )  # fmt: skip
    assert [line.split()[1] for line in calls.read_text().splitlines()] == asked
    assert (tmp_path / "rebooted").exists() == bool(rebooted or asked[-1] == "reboot")


def test_invalid_configuration_still_runs_the_hooks(tmp_path: Path) -> None:
    """With a directory of the defaults; the event leaves the spool, or systemd would spin."""
    (tmp_path / "gpu-xid.json").write_text("{")
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "1.json").write_text("{}")
    program = (
        f"import sys; sys.path.insert(0, {str(RUNTIME / 'opt/kiln/lib')!r}); "
        "from gpu_xid import cli, config, hooks; "
        f"hooks.run.__defaults__ = ({str(tmp_path / 'spool')!r},); "
        f"config.HOOK_DEFAULTS['dir'] = {str(tmp_path / 'xid.d')!r}; "
        f"sys.exit(cli.main(['hooks', '--config', {str(tmp_path / 'gpu-xid.json')!r}]))"
    )
    (tmp_path / "xid.d").mkdir()
    hook(tmp_path, "10-a", f"cat > {tmp_path}/got")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "not valid JSON" in done.stderr
    assert (tmp_path / "got").read_text() == "{}"
    assert list((tmp_path / "spool").iterdir()) == []
