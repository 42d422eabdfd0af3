"""Packer: found, refused, run, stopped. Real Packer with a builder that needs no machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devel import packers
from kiln.base.errors import KilnError
from kiln.base.paths import ROOT
from kiln.base.stopping import Stop
from kiln.packer import output, plugins, process, program, validate
from kiln.packer.output import Event
from kiln.packer.program import Packer

OLD = Packer(Path("/usr/bin/packer"), (1, 6, 6))
NEW = Packer(Path("/usr/bin/packer"), (1, 11, 2))

# Builds nothing, on nothing; $SCRIPT runs here.
HCL = """
variable "manifest" {
  type = string
}
variable "script" {
  type = string
}
source "null" "here" {
  communicator = "none"
}
build {
  sources = ["source.null.here"]
  provisioner "shell-local" {
    inline = [var.script]
  }
  provisioner "shell-local" {
    inline = ["echo second step"]
  }
  post-processor "manifest" {
    output = var.manifest
  }
}
"""


def binary(folder: Path, says: str, name: str = "packer") -> Path:
    """An executable of that name which prints `says`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'E'\n{says}\nE\n")
    path.chmod(0o755)
    return path


@pytest.fixture(params=packers.usable() or [None], ids=str)
def real(request: pytest.FixtureRequest) -> Packer:
    if request.param is None:
        pytest.skip("needs Packer: there is none")
    found: Packer = request.param
    return found


def files(folder: Path) -> tuple[Path, Path]:
    """The HCL that new Packers read, and that of 1.6."""
    return folder / "build.pkr.hcl", folder / program.FOLDER_1_6 / "build.pkr.hcl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in files(tmp_path / "row"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HCL)
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


def until(flag: Path) -> str:
    """A step that lasts until the file is there (a minute, if it never is)."""
    return f"echo started; for i in $(seq 600); do [ -e {flag} ] && break; sleep 0.1; done"


def test_no_packer_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KILN_PACKER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KilnError, match="there is no packer on PATH") as caught:
        program.find_packer()
    assert "install packer" in caught.value.hint
    assert caught.value.exit_status == 1


def test_an_old_packer_is_refused_with_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary(tmp_path, "Packer v1.5.4")
    monkeypatch.delenv("KILN_PACKER", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with pytest.raises(KilnError, match=r"Packer 1\.5\.4 .* is too old") as caught:
        program.find_packer()
    assert "1.6.6" in caught.value.hint


def test_another_program_of_that_name_is_told_from_packer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = binary(tmp_path, "1024 words")
    monkeypatch.delenv("KILN_PACKER", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    with pytest.raises(KilnError, match="is not HashiCorp's Packer") as caught:
        program.find_packer()
    assert str(path) in caught.value.message
    assert "cracklib" in caught.value.message


def test_packer_is_found_behind_another_program_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary(tmp_path / "sbin", "usage: packer")
    right = binary(tmp_path / "bin", "Packer v1.11.2\n\nYour version of Packer is out of date!")
    monkeypatch.delenv("KILN_PACKER", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}/sbin:{tmp_path}/bin:/bin")
    assert program.find_packer() == Packer(right, (1, 11, 2))


def test_a_named_binary_goes_before_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = binary(tmp_path, "Packer v1.7.0", name="my-packer")
    monkeypatch.setenv("KILN_PACKER", str(named))
    assert program.find_packer() == Packer(named, (1, 7, 0))
    monkeypatch.setenv("KILN_PACKER", str(tmp_path / "nowhere"))
    with pytest.raises(KilnError, match=r"nowhere is not HashiCorp's Packer"):
        program.find_packer()


def test_the_old_packer_gets_a_folder_of_its_own_in_the_new_ones() -> None:
    assert program.command(OLD, "validate")[-1] == "packer-1.6"
    assert program.command(NEW, "validate")[-1] == "."
    assert Packer(OLD.path, (1, 7, 0)).has_plugins
    assert not OLD.has_plugins


def test_variables_are_written_as_packer_reads_them() -> None:
    given = {"region": "eu-west-1", "ssh_source_cidrs": ["192.0.2.1/32"], "skip": True, "n": 3}
    argv = program.command(OLD, "build", variables=given, var_files=[Path("/v.pkrvars.hcl")])
    assert argv[1:-1] == [
        "build",
        "-var-file=/v.pkrvars.hcl",
        *("-var", "region=eu-west-1"),
        *("-var", 'ssh_source_cidrs=["192.0.2.1/32"]'),
        *("-var", "skip=true"),
        *("-var", "n=3"),
    ]


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
def test_a_line_of_packers_output_is_read(line: str, event: Event | None) -> None:
    assert output.parse_event(line) == event


def test_an_event_knows_its_component_and_its_instance() -> None:
    text = "Provisioning with shell script: ../../provisioners/nvidia-driver.sh"
    assert Event(0, "say", text).component == "nvidia-driver"
    assert Event(0, "message", "Instance ID: i-0a1b").instance_id == "i-0a1b"
    assert Event(0, "message", "hello").component is None


def test_a_manifest_gives_the_ami_of_each_region(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(
        '{"builds": [{"artifact_id": "us-east-1:ami-old"},'
        ' {"artifact_id": "eu-west-1:ami-2,us-east-1:ami-1"}]}'
    )
    assert output.read_manifest(path) == {"eu-west-1": "ami-2", "us-east-1": "ami-1"}
    assert output.read_manifest(tmp_path / "nowhere") == {}


@pytest.mark.parametrize("text", ["", "[]", "7", '{"builds": []}', '{"builds": [{}]}'])
def test_a_manifest_without_a_build_gives_no_ami(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    assert output.read_manifest(tmp_path / "manifest.json") == {}


def test_a_build_passes_its_lines_on_and_keeps_them_all(real: Packer, folder: Path) -> None:
    seen: list[Event] = []
    result = run(real, folder, "echo one, two; echo three", on_event=seen.append)
    assert (result.exit_status, result.interrupted) == (0, False)
    texts = [event.text for event in seen]
    assert any(text.endswith("one, two") for text in texts)
    log = (folder.parent / "out" / "packer.log").read_text()
    assert "one, two" in log and "three" in log
    assert "\x1b" not in log


def test_a_build_that_fails_gives_packers_own_words(real: Packer, folder: Path) -> None:
    result = run(real, folder, "exit 3")
    assert result.exit_status == 1
    assert result.amis == {}
    assert any("exit status: 3" in error for error in result.errors)


def test_an_old_manifest_is_not_taken_for_a_new_one(real: Packer, folder: Path) -> None:
    manifest = folder.parent / "out" / "manifest.json"
    manifest.parent.mkdir()
    manifest.write_text('{"builds": [{"artifact_id": "us-east-1:ami-old"}]}')
    assert run(real, folder, "exit 3").amis == {}


def test_a_build_is_stopped_by_its_caller_and_packer_cleans_up(real: Packer, folder: Path) -> None:
    stop, flag = Stop(), folder / "flag"
    seen: list[str] = []

    def watch(event: Event) -> None:
        seen.append(event.text)
        if event.text.strip().endswith("started"):
            stop.set()
        if "Cancelling build" in event.text:
            flag.touch()

    result = run(real, folder, until(flag), on_event=watch, stop=stop)
    assert result.interrupted
    assert not result.cut_short
    assert result.exit_status != 0
    assert any("Cancelling build after receiving" in text for text in seen)
    assert not any("second step" in text for text in seen)


def test_a_packer_that_ends_by_itself_is_waited_for_and_not_taken_for_killed(
    tmp_path: Path, folder: Path
) -> None:
    """Its output ends before it does, for a moment that is long on a busy machine."""
    slow = tmp_path / "packer"
    slow.write_text(
        "#!/bin/bash\ntrap 'echo bye; exec >&- 2>&-; sleep 0.3; exit 7' TERM\n"
        "echo started; while :; do sleep 0.05; done\n"
    )
    slow.chmod(0o755)
    stop = Stop()

    def watch(event: Event) -> None:
        if event.text == "started":
            stop.set()

    result = run(Packer(slow, (1, 6, 6)), folder, "", on_event=watch, stop=stop)
    assert (result.exit_status, result.cut_short, result.interrupted) == (7, False, True)


def test_who_asks_again_does_not_wait_for_packer(tmp_path: Path, folder: Path) -> None:
    """It is killed, and the result says so: what it was asking EC2 for may appear after it.

    Not with the real Packer, which may be done with its cleaning up before it is killed.
    """
    busy = tmp_path / "packer"
    busy.write_text(
        "#!/bin/bash\ntrap 'echo Cancelling build' TERM\n"
        "echo started; while :; do sleep 0.05; done\n"
    )
    busy.chmod(0o755)
    stop = Stop()

    def watch(event: Event) -> None:
        if event.text in ("started", "Cancelling build"):
            stop.set()

    result = run(Packer(busy, (1, 6, 6)), folder, "", on_event=watch, stop=stop)
    assert (result.cut_short, result.interrupted) == (True, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_packer_once_and_waits_for_it(
    real: Packer, folder: Path, number: signal.Signals
) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from kiln.base import stopping
from kiln.packer import process, program
stop = stopping.Stop()
with stopping.on_signals(stop):
    result = process.run_build(
        program.find_packer(), Path({str(folder)!r}), log=Path({str(folder)!r}, "log"),
        manifest=Path({str(folder)!r}, "manifest.json"),
        variables={{"script": {until(folder / "flag")!r}}},
        on_event=lambda event: print(event.text, flush=True),
        stop=stop,
    )
print("interrupted", result.interrupted, flush=True)
"""
    caller = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert caller.stdout
    lines = []
    for line in caller.stdout:
        lines.append(line)
        if line.strip().endswith("started"):
            # As a terminal does it: to the whole foreground group.
            os.killpg(caller.pid, number)
        if "Cancelling build" in line:
            (folder / "flag").touch()
    assert caller.wait(timeout=120) == 0
    assert sum("Cancelling build after receiving" in line for line in lines) == 1
    assert lines[-1] == "interrupted True\n"
    assert not any("second step" in line for line in lines)


def test_an_error_in_the_caller_leaves_no_packer_behind(real: Packer, folder: Path) -> None:
    def fail(event: Event) -> None:
        if "started" in event.text:
            raise RuntimeError("caller")

    with pytest.raises(RuntimeError) as caught:
        run(real, folder, "echo started; exec sleep 2", on_event=fail)
    assert str(caught.value) == "caller"
    # Packer's command line names the folder's neighbour, where its manifest was to go.
    left = subprocess.run(["pgrep", "-f", str(folder.parent)], capture_output=True, check=False)
    assert left.stdout == b""


def test_packer_validate_finds_what_is_wrong(real: Packer, folder: Path) -> None:
    extra = 'variable "source_ami" {\n}\nvariable "ssh_source_cidrs" {\n  type = list(string)\n}\n'
    defaults = HCL.replace("type = string", 'type    = string\n  default = "x"')
    for path in files(folder):
        path.write_text(extra + defaults)
    assert validate.packer_validate(real, folder) == ""
    for path in files(folder):
        path.write_text(extra + defaults.replace("communicator", "comunicator"))
    assert "comunicator" in validate.packer_validate(real, folder)


def test_packer_fmt_finds_the_file_it_would_change(real: Packer, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.pkr.hcl", tmp_path / "bad.pkr.hcl"
    good.write_text('variable "a" {\n  type = string\n}\n')
    bad.write_text('variable "a" {\n    type = string\n}\n')
    assert validate.badly_formatted(real, [good, bad]) == [bad]
    assert validate.badly_formatted(real, [good]) == []


# ------------------------------------------------------------------- the plugin of newer versions


def with_plugins(folder: Path, *versions: str, init: int = 0) -> Packer:
    """A Packer 1.15 whose `init` ends with that status and which has these versions installed."""
    path = folder / "packer"
    listed = "".join(
        f"/plugins/packer-plugin-amazon_v{version}_x5.0_linux_amd64\\n" for version in versions
    )
    path.write_text(
        "#!/bin/sh\ncase $1 in\n"
        f"init) echo 'lookup api.github.com: no such host' >&2; exit {init} ;;\n"
        f"plugins) printf '{listed}' ;;\nesac\n"
    )
    path.chmod(0o755)
    return Packer(path, (1, 15, 1))


def test_the_newest_plugin_of_the_range_is_used(tmp_path: Path) -> None:
    found = with_plugins(tmp_path, "1.8.0", "1.8.10", "1.8.9", "1.9.0")
    assert plugins.install_plugins(found, tmp_path) == "1.8.10"
    assert plugins.described(found).endswith("plugin amazon 1.8.10")


def test_without_a_plugin_that_fits_the_message_says_what_is_there_and_how_to_place_one(
    tmp_path: Path,
) -> None:
    found = with_plugins(tmp_path, "1.8.0", init=1)
    with pytest.raises(KilnError, match="no plugin amazon that fits") as caught:
        plugins.install_plugins(found, tmp_path)
    assert "wanted is >= 1.8.2, < 1.9.0, installed: 1.8.0" in caught.value.message
    assert "packer plugins install --path FILE github.com/hashicorp/amazon" in caught.value.hint
    assert caught.value.exit_status == 1


def test_a_packer_with_the_builder_compiled_in_needs_no_plugin(tmp_path: Path) -> None:
    assert plugins.install_plugins(OLD, tmp_path) == ""
    assert plugins.described(OLD) == str(OLD)
