"""`./invoke bench`: what its figures are made of, and what it says when it cannot measure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from devel import bench, bench_first
from devel.figures import Figure, require, timed
from kiln.base.errors import KilnError, operation_failed
from kiln.cli import output as output_text

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


def parts(total: float) -> dict[str, Figure]:
    log = LOG.format("03:48:39", "03:48:41", "03:49:02")
    return {item.what.strip(): item for item in bench.split(total, SECONDS, log, "record.json")}


def test_a_build_is_split_into_packer_boots_checks_and_what_the_pipeline_adds() -> None:
    figures = parts(32.4)
    values = {what: item.value for what, item in figures.items()}
    assert values == {
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


def test_what_the_pipeline_adds_is_named_stage_by_stage_with_the_rest() -> None:
    assert parts(32.4)["added by the pipeline"].note == (
        "parse the scripts 0.3, key pair, security group 0.2, clean-up 1.0, start, plan, record 0.4"
    )


def test_a_figure_over_its_aim_is_missed() -> None:
    verdicts = {what: item.verdict for what, item in parts(33.1).items() if item.verdict}
    assert verdicts == {"warm lab build": "missed", "added by the pipeline": "missed"}
    assert parts(30.0)["warm lab build"].verdict == "met"


def test_a_build_may_run_over_midnight() -> None:
    assert bench.phases(LOG.format("23:59:58", "00:00:01", "00:00:21")) == (3, 20)


def test_a_log_without_the_moments_gives_no_figure() -> None:
    with pytest.raises(KilnError, match=r"packer\.log does not contain 'Connected to SSH!'"):
        bench.phases("03:48:39 Launching a source AWS instance...\n")


def test_list_is_held_against_bare_invoke() -> None:
    figure = bench.list_figure(0.093, 0.077)
    assert (figure.value, figure.unit, figure.verdict) == (1.21, "x", "met")
    assert figure.note == "93 ms / 77 ms"
    assert bench.list_figure(0.2, 0.1).verdict == "missed"


def test_validate_is_held_against_packers_own_time_on_all_cores() -> None:
    figure = bench.validate_figure(whole=6.6, row_s=0.6, rows=20, cores=2)
    assert (figure.value, figure.verdict) == (1.1, "met")
    assert bench.validate_figure(whole=7.8, row_s=0.6, rows=20, cores=2).verdict == "missed"


def fake_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_lab() -> list[Figure]:
        raise operation_failed("the lab cannot run here: it needs root", hint="use sudo")

    monkeypatch.setattr(bench, "list_figures", lambda: [bench.list_figure(0.1, 0.1)])
    monkeypatch.setattr(bench, "validate_figures", lambda: [bench.validate_figure(6, 0.6, 20, 2)])
    monkeypatch.setattr(bench, "build_figures", no_lab)


def test_what_cannot_be_measured_is_said_with_its_reason_and_the_rest_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_parts(monkeypatch)
    assert bench.run() == 1
    lines = capsys.readouterr().out.splitlines()
    assert any("bare invoke --list" in line and "1 x" in line and "met" in line for line in lines)
    (build,) = [line for line in lines if line.startswith("warm lab build")]
    assert "not measured" in build
    assert "the lab cannot run here: it needs root" in build


def test_json_has_the_figures_and_the_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_parts(monkeypatch)
    monkeypatch.setattr(output_text.FORMAT, "json", True)
    bench.run()
    data = json.loads(capsys.readouterr().out)
    assert data["machine"]["cpus"] >= 1
    assert {"load_1m", "load_1m_after", "loop_ms", "loop_ms_after"} <= set(data["machine"])
    assert [(figure["value"], figure["verdict"]) for figure in data["figures"]] == [
        (1.0, "met"),
        (1.0, "met"),
        (None, "not measured"),
    ]


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
    environment = bench_first.cold_environment(tmp_path / "home", tmp_path / "state")
    assert "mine" not in environment.values()
    assert environment["PIP_CERT"] == "the machine's own"
    assert environment["HOME"] == str(tmp_path / "home")
    assert environment["KILN_LAB_STATE"] == str(tmp_path / "state")


def test_a_first_run_that_fails_is_reported_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> list[Figure]:
        raise KilnError("no room")

    monkeypatch.setattr(bench_first.host, "can_run", lambda: None)
    monkeypatch.setattr(bench_first, "first_run", fail)
    (figure,) = bench_first.figures()
    assert (figure.verdict, figure.note) == ("not measured", "no room")
