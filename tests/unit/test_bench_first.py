"""`./invoke bench --what first`: what is cold in it, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from devel import bench, bench_first
from devel.figures import Figure
from kiln.base.errors import KilnError


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


def test_a_commit_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KilnError, match="--against nowhere: no such commit") as refused:
        bench_first.commit_of("nowhere")
    assert refused.value.exit_status == 2


def test_only_the_first_run_is_held_against_another_commit() -> None:
    with pytest.raises(KilnError, match="--against requires --what first") as refused:
        bench.run("mig", as_json=False, against="HEAD")
    assert refused.value.exit_status == 2


def test_a_first_run_that_fails_is_reported_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(commit: str) -> list[Figure]:
        raise KilnError("no room")

    monkeypatch.setattr(bench_first, "first_run", fail)
    (figure,) = bench_first.measured_or_not("0123456789")
    assert (figure.verdict, figure.note) == ("not measured", "no room")
