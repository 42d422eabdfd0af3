"""Which files the linters see: shell and Python by suffix and by shebang, on commit and by lint."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from devel import scripts, testing
from kiln.base.paths import ROOT

FILES = {
    "a.sh": "echo\n",
    "b.bash": "echo\n",
    "c.py": "pass\n",
    "bin/env-bash": "#!/usr/bin/env bash\n",
    "bin/posix": "#!/bin/sh -e\n",
    "bin/isolated": "#!/usr/bin/python3 -ISB\n",
    "bin/env-python": "#!/usr/bin/env python3\n",
    "hook.example": "#!/bin/bash\n",
    "fish": "#!/usr/bin/fish\n",
    "sheet.csv": "#,a\n",
    "page.md": "# /bin/sh is what a script begins with\n",
    "picture": "\x00\x01",
}
SHELL = ["a.sh", "b.bash", "bin/env-bash", "bin/posix", "hook.example"]
PYTHON = ["bin/env-python", "bin/isolated", "c.py"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / ".gitignore").write_text("ignored.sh\n")
    (tmp_path / "ignored.sh").write_text("echo\n")
    (tmp_path / "link.sh").symlink_to("a.sh")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def test_scripts_are_chosen_by_suffix_and_by_shebang(checkout: Path) -> None:
    files = scripts.committed(checkout)
    assert scripts.of_language("shell", files, checkout) == SHELL
    assert scripts.of_language("python", files, checkout) == PYTHON


@pytest.mark.parametrize("language", ["shell", "python"])
def test_a_hook_runs_on_the_scripts_of_its_language_alone(
    checkout: Path, language: str, capfd: pytest.CaptureFixture[str]
) -> None:
    files = [str(checkout / name) for name in FILES]
    assert scripts.main(language, "printf", "%s\n", "--", *files) == 0
    expected = SHELL if language == "shell" else PYTHON
    assert sorted(capfd.readouterr().out.split()) == [str(checkout / name) for name in expected]


def test_a_hook_without_a_script_of_its_language_runs_nothing(checkout: Path) -> None:
    assert scripts.main("shell", "false", "--", str(checkout / "c.py")) == 0


def test_a_hook_fails_when_its_linter_fails(checkout: Path) -> None:
    assert scripts.main("shell", "false", "--", str(checkout / "a.sh")) == 1


def test_lint_gives_every_script_to_its_linter(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, list[str]] = {}
    monkeypatch.setattr(testing.needs, "ensure", lambda *_, **__: None)
    monkeypatch.setattr(testing, "side_by_side", lambda commands: given.update(commands) or [])
    testing.lint(install=False)
    shellcheck = {*given["shellcheck (1/2)"], *given["shellcheck (2/2)"]}
    assert {
        "invoke",
        ".ci/run",
        "provisioners/nvidia-driver.sh",
        "runtime/opt/kiln/lib/kiln-agent-sources",
        "lab/vendors/packages/payloads/runfile/nvidia-installer",
    } <= shellcheck
    python = {
        ".",
        "runtime/usr/local/bin/gpu-xid",
        "lab/vendors/packages/payloads/docker/usr/bin/dockerd",
    }
    for check in ("ruff", "ruff format"):
        assert python <= set(given[check])


def test_the_hooks_of_pre_commit_choose_files_as_lint_does() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (repo,) = config["repos"]
    hooks = {hook["id"]: hook for hook in repo["hooks"] if hook["id"] != "lint"}
    languages = {name: hook["entry"].split()[3] for name, hook in hooks.items()}
    assert languages == {"ruff": "python", "ruff-format": "python", "shellcheck": "shell"}
    for hook in hooks.values():
        assert hook["entry"].startswith(".venv/bin/python -m devel.scripts ")
        assert hook["entry"].endswith(" --")
        # By pre-commit's own patterns and types it would miss some.
        assert hook["types"] == ["text"]
        assert "files" not in hook


def test_a_file_whose_name_is_not_utf_8_is_a_file_like_any_other(checkout: Path) -> None:
    name = os.fsdecode(b"caf\xe9.sh")
    (checkout / name).write_text("echo\n")
    assert name in scripts.of_language("shell", scripts.committed(checkout), checkout)
