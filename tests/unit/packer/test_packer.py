"""Packer: found, fetched, run, stopped. Real Packer with a builder that needs no machine."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from kiln.base import needs
from kiln.base.errors import KilnError
from kiln.base.processes import Stop
from kiln.packer import process, program
from kiln.packer.process import Event, waits_for
from kiln.packer.program import Packer

pytestmark = pytest.mark.slow
VENDOR = "https://releases.hashicorp.com"

# Builds nothing, on nothing; $SCRIPT runs here.
HCL = """
variable "manifest" { type = string }
variable "script" { type = string }
source "null" "here" { communicator = "none" }
build {
  sources = ["source.null.here"]
  provisioner "shell-local" { inline = [var.script] }
  provisioner "shell-local" { inline = ["echo second step"] }
  post-processor "manifest" { output = var.manifest }
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The HCL that new Packers read, and that of 1.6."""
    for path in (tmp_path / "row", tmp_path / "row" / program.FOLDER_1_6):
        path.mkdir()
        (path / "build.pkr.hcl").write_text(HCL)
    return tmp_path / "row"


def run(real: Packer, folder: Path, script: str, **more: object) -> process.BuildResult:
    return process.run_build(
        real,
        folder,
        log=folder.parent / "out" / "packer.log",
        manifest=folder.parent / "out" / "manifest.json",
        variables={"script": script},
        **more,  # type: ignore[arg-type]
    )


def binary(folder: Path, version: str, *plugins: str, name: str = "packer") -> Path:
    """A program that says it is this version of Packer, with these versions of the plugin."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    listed = "".join(f"/p/packer-plugin-amazon_v{plugin}_x5.0_linux_amd64\\n" for plugin in plugins)
    says = f"Packer v{version}" if version else "1024 words"
    path.write_text(
        f"#!/bin/sh\ncase $1 in version) echo '{says}' ;; plugins) printf '{listed}' ;; esac\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Packer, and with a cache of its own; on PATH are folders 0, 1 and 2."""
    monkeypatch.delenv("KILN_PACKER", raising=False)
    monkeypatch.delenv(program.TESTS_ALLOW_1_6, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", ":".join(str(tmp_path / number) for number in "012"))
    monkeypatch.setattr(needs, "_SBIN", ())
    return tmp_path


# What is on PATH, as (version, plugins) → what is found in the lab, and in AWS.
FETCHED = "_linux_amd64.zip is needed, and --no-install was given"
FOUND = {
    "Debian's": ([("1.6.6",)], "1.6.6", None),
    "with its plugin": ([("1.11.2", "1.8.2")], "1.11.2 1.8.2", "1.11.2 1.8.2"),
    "several plugins": ([("1.9.0", "1.8.0", "1.8.10", "1.8.9", "1.9.0")], *["1.9.0 1.8.10"] * 2),
    "behind cracklib's": ([("",), ("1.6.6",)], "1.6.6", None),
    "behind Debian's": ([("1.6.6",), ("1.15.4", "1.8.3")], "1.6.6", "1.15.4 1.8.3"),
    "older than plugins are tried with": ([("1.7.10", "1.8.2")], FETCHED, None),
    "none": ([], FETCHED, None),
    "another program": ([("",)], FETCHED, None),
}


@pytest.mark.parametrize(("there", "lab", "aws"), FOUND.values(), ids=FOUND)
def test_packer_on_path_is_chosen(machine: Path, there: Any, lab: str, aws: str | None) -> None:
    for number, (version, *plugins) in enumerate(there):
        binary(machine / str(number), version, *plugins)
    assert lab in found(in_aws=False)
    assert (aws or FETCHED) in found(in_aws=True)


def found(*, in_aws: bool) -> str:
    """The versions of Packer and its plugin, or why there is none."""
    try:
        packer = program.find_packer(in_aws=in_aws, install=False)
    except KilnError as error:
        assert error.exit_status == 1
        return error.message
    return f"{packer.version} {packer.plugin}".strip()


def test_named_packer_comes_before_path(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary(machine / "0", "1.11.2", "1.8.2")
    monkeypatch.setenv("KILN_PACKER", str(binary(machine, "1.6.6", name="mine")))
    assert program.find_packer().path == machine / "mine"
    with pytest.raises(KilnError, match=r"1\.6\.6 at .*mine is too old"):
        program.find_packer(in_aws=True)
    monkeypatch.setenv(program.TESTS_ALLOW_1_6, "1")
    assert program.find_packer(in_aws=True).path == machine / "mine"


# ------------------------------------------------------------------------------- what is fetched


@pytest.fixture
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """HashiCorp's host, played here: archives of both programs. URL → file."""
    monkeypatch.setattr(program.platform, "system", lambda: "Linux")
    monkeypatch.setattr(program.platform, "machine", lambda: "x86_64")
    facts = program.table("packer")
    served = {}
    releases = {}
    for name, release in facts["releases"].items():
        values = {"version": release["version"], "platform": "linux_amd64"}
        script = binary(tmp_path / "made", release["version"]).read_bytes()
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w") as archive:
            archive.writestr("LICENSE.txt", "a license")
            archive.writestr(release["file"].format(**values), script)
        path = tmp_path / "host" / release["url"].format(**values).removeprefix(f"{VENDOR}/")
        path.parent.mkdir(parents=True)
        path.write_bytes(whole.getvalue())
        served[name] = str(path)
        sha256 = {"linux_amd64": hashlib.sha256(whole.getvalue()).hexdigest()}
        releases[name] = {**release, "sha256": sha256}
    monkeypatch.setitem(facts, "releases", releases)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "host"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("KILN_MIRRORS", f"{VENDOR}=http://127.0.0.1:{server.server_port}")
    yield served
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("in_aws", [True, False])
def test_packer_and_plugin_are_fetched_once(
    machine: Path, vendor: dict[str, str], tmp_path: Path, *, in_aws: bool
) -> None:
    """In AWS beside Debian's 1.6.6; for the lab where apt-get has none."""
    if in_aws:
        binary(machine / "0", "1.6.6")
    said: list[str] = []
    found = program.find_packer(in_aws=in_aws, say=said.append)
    cache = tmp_path / "cache" / "ami-kiln" / "packer"
    assert [line.rpartition("/")[2] for line in said] == [
        *(["packer is too old"] if in_aws else []),
        "packer_1.15.4_linux_amd64.zip",
        "packer-plugin-amazon_1.8.2_linux_amd64.zip",
    ]
    assert found == Packer(cache / "packer-1.15.4", "1.15.4", "1.8.2", cache / "plugins")
    assert found.environment({})["PACKER_PLUGIN_PATH"] == str(cache / "plugins")
    plugin = "packer-plugin-amazon_v1.8.2_x5.0_linux_amd64"
    placed = cache / "plugins" / "github.com" / "hashicorp" / "amazon" / plugin
    assert os.access(placed, os.X_OK)
    checksum = placed.with_name(f"{plugin}_SHA256SUM").read_text()
    assert checksum == hashlib.sha256(placed.read_bytes()).hexdigest()
    again: list[str] = []
    assert program.find_packer(in_aws=in_aws, say=again.append) == found
    assert again == said[:-2]


@pytest.mark.parametrize(
    "kept", ["packer-1.15.4", "packer_1.15.4_linux_amd64.zip", "*x5.0*64", "*SUM"]
)
def test_changed_file_in_cache_is_fetched_again(
    machine: Path, vendor: dict[str, str], tmp_path: Path, kept: str
) -> None:
    program.find_packer(in_aws=True)
    (path,) = (tmp_path / "cache").rglob(kept)
    whole = path.read_bytes()
    path.write_bytes(b"#!/bin/sh\necho Packer v1.15.4\n")
    said: list[str] = []
    program.find_packer(in_aws=True, say=said.append)
    assert path.read_bytes() == whole
    assert bool(said) == (path.suffix == ".zip")


@pytest.mark.parametrize("wrong", ["another archive", "no archive", "no host", "no such platform"])
def test_failed_fetch_names_what_to_install(
    machine: Path, vendor: dict[str, str], monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    archive = Path(vendor["packer"])
    reason = f"_linux_amd64.zip has sha256 {hashlib.sha256(b'x').hexdigest()}, expected "
    if wrong == "another archive":
        archive.write_bytes(b"x")
    elif wrong == "no archive":
        archive.unlink()
        reason = "does not answer: 404"
    elif wrong == "no host":
        monkeypatch.setenv("KILN_MIRRORS", f"{VENDOR}=http://127.0.0.1:1")
        reason = "127.0.0.1:1 does not answer: "
    else:
        monkeypatch.setattr(program.platform, "machine", lambda: "riscv64")
        reason = "no hash of it is known for linux_riscv64"
    with pytest.raises(KilnError) as caught:
        program.find_packer(in_aws=True)
    assert caught.value.exit_status == 1
    assert reason in caught.value.message
    assert "install Packer 1.9.0 or newer with its amazon plugin 1.8.2" in caught.value.hint
    assert caught.value.hint.endswith("/packer/" + caught.value.message.partition(" ")[0])
    assert not list(Path(os.environ["XDG_CACHE_HOME"]).rglob("packer-1*"))


# ------------------------------------------------------------------------------------ what is run


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (
            "1795225487,,ui,say,==> al2-510.47.03-cuda11.6-base-x86_64.amazon-ebs.gpu: Waiting",
            Event(1795225487, "say", "Waiting"),
        ),
        (
            "7,,ui,message,    al2-1.amazon-ebs.gpu: a%!(PACKER_COMMA) b\\n",
            Event(7, "message", "a, b"),
        ),
        (
            "7,,ui,error,Build 'x.amazon-ebs.gpu' errored: a\\nb",
            Event(7, "error", "Build 'x.amazon-ebs.gpu' errored: a\nb"),
        ),
        ("7,x.gpu,artifact,0,id,us-east-1:ami-1", Event(7, "artifact", "0,id,us-east-1:ami-1")),
        ("panic: runtime error", None),
    ],
)
def test_output_line_is_parsed(line: str, event: Event | None) -> None:
    assert process.parse_event(line) == event


@pytest.mark.parametrize(
    ("line", "wait"),
    [
        ("Waiting for instance (i-1) to become ready...", "i-1 to start"),
        ("Waiting for SSH to become available...", "SSH on i-1"),
        (
            "Provisioning with shell script: packer-1.6/../../../provisioners/kernel.sh",
            "provisioner kernel on i-1",
        ),
        ("Provisioning with shell script: /tmp/packer-shell1175941336", "a command on i-1"),
        ("Stopping the source instance...", "i-1 to stop"),
        ("Waiting for AMI to become ready...", "the AMI to become available"),
        ("Complete!", ""),
    ],
)
def test_output_line_says_what_packer_waits_for(line: str, wait: str) -> None:
    assert waits_for(Event(0, "say", line), "i-1") == wait
    assert waits_for(Event(0, "error", line), "i-1") == ""


def test_manifest_gives_ami_of_each_region(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(
        '{"builds": [{"artifact_id": "us-east-1:ami-old"},'
        ' {"artifact_id": "eu-west-1:ami-2,us-east-1:ami-1"}]}'
    )
    assert process.read_manifest(path) == {"eu-west-1": "ami-2", "us-east-1": "ami-1"}
    assert process.read_manifest(tmp_path / "nowhere") == {}


def test_build_logs_all_lines(real: Packer, folder: Path) -> None:
    seen: list[Event] = []
    result = run(real, folder, "echo one, two; echo three", on_event=seen.append)
    assert (result.exit_status, result.interrupted) == (0, False)
    texts = [event.text for event in seen]
    assert any(text.endswith("one, two") for text in texts)
    log = (folder.parent / "out" / "packer.log").read_text()
    assert "one, two" in log and "three" in log
    assert "\x1b" not in log


def test_failed_build_ignores_old_manifest(real: Packer, folder: Path) -> None:
    manifest = folder.parent / "out" / "manifest.json"
    manifest.parent.mkdir()
    manifest.write_text('{"builds": [{"artifact_id": "us-east-1:ami-old"}]}')
    assert run(real, folder, "exit 3").amis == {}


# What Packer does when it is interrupted → exit status, if it was killed.
SLOW = {
    # Its output ends before it does, for a moment that is long on a busy machine.
    "ends": ("echo bye; exec >&- 2>&-; sleep 0.3; exit 7", 7, False),
    # It goes on, and is interrupted again: what it asks EC2 for may appear after it.
    "goes-on": ("echo Cancelling build", -signal.SIGKILL, True),
}


@pytest.mark.parametrize("what", SLOW)
def test_packer_is_killed_on_second_interrupt_only(tmp_path: Path, folder: Path, what: str) -> None:
    trap, status, killed = SLOW[what]
    packer = tmp_path / "packer"
    packer.write_text(
        f"#!/bin/bash\ntrap '{trap}' TERM\necho started; while :; do sleep 0.05; done\n"
    )
    packer.chmod(0o755)
    stop = Stop()

    def watch(event: Event) -> None:
        if event.text in ("started", "Cancelling build"):
            stop.set()

    result = run(Packer(packer, "1.6.6"), folder, "", on_event=watch, stop=stop)
    assert result.interrupted
    assert (result.exit_status, result.cut_short) == (status, killed)


def test_error_of_the_caller_ends_packer(real: Packer, folder: Path) -> None:
    def fail(event: Event) -> None:
        if "started" in event.text:
            raise RuntimeError("caller")

    with pytest.raises(RuntimeError) as caught:
        run(real, folder, "echo started; exec sleep 2", on_event=fail)
    assert str(caught.value) == "caller"
    # Packer's command line names the folder's neighbour, where its manifest was to go.
    left = subprocess.run(["pgrep", "-f", str(folder.parent)], capture_output=True, check=False)
    assert left.stdout == b""
