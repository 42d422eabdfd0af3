"""`./invoke bench`: what its figures are made of, and what it says when it cannot measure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from devel import bench
from devel.bench import Figure, require, timed
from kiln.base.errors import KilnError, operation_failed
from kiln.cli.output import FORMAT

LOG = """\
{0} Launching a source AWS instance...
{1} Connected to SSH!
{1} Provisioning with shell script: ../../provisioners/kernel.sh
{2} Stopping the source instance...
{2} Build 'al2.amazon-ebs.gpu' finished after 24 seconds.
"""
SECONDS = {
    "lab": 0.5,
    "parse the scripts": 0.3,
    "key pair, security group": 0.2,
    "packer build": 24.8,
    "boot the AMI": 1.2,
    "checks": 4.0,
    "clean-up": 1.0,
}


def test_a_build_is_split_into_packer_boots_checks_and_what_the_pipeline_adds() -> None:
    log = LOG.format("03:48:39", "03:48:41", "03:49:02")
    figures = {each.what.strip(): each for each in bench.split(32.4, SECONDS, log, "record.json")}
    assert {what: each.value for what, each in figures.items()} == {
        "warm lab build": 32.4,
        "packer build": 24.8,
        "boot of the build instance": 2,
        "provisioners": 21,
        "image, Packer itself": 1.8,
        "boot of the AMI": 1.2,
        "checks": 4.0,
        "lab": 0.5,
        "added by the pipeline": 1.9,
    }
    verdicts = {what: each.verdict for what, each in figures.items() if each.verdict}
    assert verdicts == {"warm lab build": "missed", "added by the pipeline": "met"}
    assert figures["added by the pipeline"].note == (
        "parse the scripts 0.3, key pair, security group 0.2, clean-up 1.0, start, plan, record 0.4"
    )


def test_phases_are_read_from_packers_log() -> None:
    # A build may run past midnight.
    assert bench.phases(LOG.format("23:59:58", "00:00:01", "00:00:21")) == (3, 20)
    with pytest.raises(KilnError, match=r"packer\.log does not contain 'Connected to SSH!'"):
        bench.phases("03:48:39 Launching a source AWS instance...\n")


def test_list_is_held_against_bare_invoke(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(argv: list[str], **_: object) -> tuple[float, CompletedProcess[str]]:
        return (0.093 if argv[0] == bench.INVOKE else 0.077), CompletedProcess(
            argv, 0, "No tasks found", ""
        )

    monkeypatch.setattr(bench, "timed", fake)
    (figure,) = bench.list_figures()
    assert (figure.value, figure.verdict, figure.note) == (1.21, "met", "93 ms / 77 ms")


@pytest.mark.parametrize("as_json", [False, True])
def test_what_cannot_be_measured_is_said_with_its_reason_and_the_rest_is_there(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_lab() -> list[Figure]:
        raise operation_failed("the lab cannot run here: it needs root", hint="use sudo")

    monkeypatch.setattr(bench, "list_figures", lambda: [Figure("list", 1.0, "x", 1.5)])
    monkeypatch.setattr(bench, "validate_figures", lambda: [Figure("validate", 2.0, "x", 1.2)])
    monkeypatch.setattr(bench, "build_figures", no_lab)
    monkeypatch.setattr(FORMAT, "json", as_json)
    assert bench.run() == 1
    out = capsys.readouterr().out
    assert "the lab cannot run here: it needs root" in out
    if as_json:
        data = json.loads(out)
        assert {"load_1m", "load_1m_after", "loop_ms", "loop_ms_after"} <= set(data["machine"])
        verdicts = [figure["verdict"] for figure in data["figures"]]
        assert verdicts == ["met", "missed", "not measured"]


def test_a_command_that_fails_gives_no_figure(tmp_path: Path) -> None:
    program = tmp_path / "fails.py"
    program.write_text("import sys; sys.exit('error: no flour')")
    _, done = timed([sys.executable, str(program)])
    with pytest.raises(KilnError, match=r"fails.py failed: error: no flour"):
        require(done.returncode == 0, done)


def test_a_first_run_has_no_cache_no_credentials_and_a_lab_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_PROFILE", "UV_CACHE_DIR", "PIP_CACHE_DIR", "XDG_CACHE_HOME", "KILN_MATRIX"):
        monkeypatch.setenv(name, "mine")
    monkeypatch.setenv("PIP_CERT", "the machine's own")
    environment = bench.cold_environment(tmp_path / "home", tmp_path / "state")
    assert "mine" not in environment.values()
    assert environment["PIP_CERT"] == "the machine's own"
    assert environment["KILN_LAB_STATE"] == str(tmp_path / "state")
