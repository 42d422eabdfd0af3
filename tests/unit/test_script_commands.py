"""Commands of a provisioner that are refused before anything is launched."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kiln.base import overlay
from kiln.base.errors import KilnError
from kiln.base.findings import Finding
from kiln.base.paths import PROVISIONERS
from kiln.compat import engine
from kiln.components import script_commands
from kiln.components.script_code import parsed
from kiln.matrix.load import load_recipes
from kiln.packer import render

SCRIPTS = sorted(PROVISIONERS.glob("*.sh"))
LIBRARY = '. "$KILN_DIR/lib/kiln.sh"\n'


@pytest.fixture
def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What is said about a script with these lines, in an overlay that ships etc/acme/banner."""

    def found(lines: str) -> list[Finding]:
        top = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        for name in ("provisioners/acme.sh", "runtime/etc/acme/banner"):
            (top / name).parent.mkdir(parents=True)
        (top / "runtime/etc/acme/banner").write_text("Acme\n")
        (top / "provisioners/acme.sh").write_text(f"#!/bin/bash\n{lines}\n{LIBRARY}")
        monkeypatch.setenv("KILN_OVERLAY", str(top))
        overlay._folders.cache_clear()
        return script_commands.command_problems("acme")

    return found


# ------------------------------------------------------------------- files of the image


def test_a_file_that_no_runtime_has_is_named_at_the_line_where_it_is_written(problems):
    (finding,) = problems(
        "kiln_install_runtime etc/acme/banner \\\n    etc/acme/baner  # etc/x\ntrue"
    )
    assert (finding.level, finding.line) == ("error", 3)
    assert finding.file.endswith("provisioners/acme.sh")
    assert finding.message == (
        "kiln_install_runtime etc/acme/baner: no runtime/ has this file or folder"
    )
    assert finding.hint.startswith("did you mean etc/acme/banner? A new one is ")
    assert finding.hint.endswith("/runtime/etc/acme/baner")


def test_a_path_of_the_machine_is_told_how_to_be_written(problems):
    (finding,) = problems("kiln_install_runtime /etc/acme/banner")
    assert "begins with /" in finding.message
    assert finding.hint == "write it as below runtime/: etc/acme/banner"


@pytest.mark.parametrize(
    "lines",
    [
        "kiln_install_runtime etc/acme/banner etc/acme 'etc/acme/banner'",
        "kiln_install_runtime etc/kiln",  # one of ours
        'kiln_install_runtime "etc/$ACME_FILE" etc/$x etc/{a,b} etc/* $(echo x)',
        "echo kiln_install_runtime etc/x",
        'echo "\nkiln_install_runtime etc/x\n"',
        "cat <<END\nkiln_install_runtime etc/x\nEND",
        "# kiln_install_runtime etc/x",
        'echo x >"$KILN_DIR/runtime/etc/x"\nkiln_install_runtime etc/x',
    ],
)
def test_what_is_there_or_is_known_on_the_machine_only_is_not_judged(problems, lines):
    assert problems(lines) == []


@pytest.mark.parametrize(
    "lines",
    [
        "if true; then kiln_install_runtime etc/x; fi",
        "true && kiln_install_runtime etc/x || exit 1",
        "case $X in\n a) kiln_install_runtime etc/x ;;\nesac",
        "f() {\n    kiln_install_runtime 'etc/x'\n}\nf",
        'x=$((1 << 2))\nkiln_install_runtime "etc/x" 2>/dev/null',
    ],
)
def test_a_missing_file_is_seen_wherever_it_is_installed(problems, lines):
    (finding,) = problems(lines)
    assert "etc/x" in finding.message


# ------------------------------------------------------------------- exec

REPLACES = {
    "exec /opt/acme/setup --now": "exec /opt/acme/setup --now",
    'true\nexec "$KILN_DIR/x"': 'exec "$KILN_DIR/x"',
    "if true; then exec acme >/dev/null 2>&1; fi": "exec acme >/dev/null 2>&1",
    "true || exec acme": "exec acme",
    "{ exec acme; }": "exec acme",
    "A=1 exec -a acme true": "exec -a acme true",
    "f() { true; }\nexec acme": "exec acme",
}


@pytest.mark.parametrize("lines", REPLACES)
def test_an_exec_of_a_command_is_named_at_its_line(problems, lines):
    (finding,) = problems(lines)
    assert (finding.level, finding.rule) == ("error", "provisioner")
    assert finding.line == 1 + lines[: lines.index("exec")].count("\n") + 1
    assert finding.message.startswith(f"`{REPLACES[lines]}` replaces the script: nothing after it")
    assert "without exec" in finding.hint


HARMLESS = [
    "exec >/var/log/acme.log 2>&1",
    "exec 3<>/dev/null 4<&- 5>&1",
    "exec {log}>>/var/log/acme.log",
    "exec > >(tee -a /var/log/acme.log) 2>&1",
    "exec &>/dev/null",
    "(exec true)",
    "x=$(exec true)",
    "exec true | cat",
    "true | exec cat",
    "exec true &",
    "find . -exec true {} +",
    "echo exec true",
    "cat <<'END'\nexec true\nEND",
    "cat >acme <<END\n#!/bin/sh\nexec true\nEND",
    "# exec true",
    "x='\nexec true\n'",
]


@pytest.mark.parametrize(
    "lines", [*HARMLESS, "f() {\n    exec acme\n}", "function f {\n exec a\n}"]
)
def test_an_exec_that_leaves_the_script_running_is_not_judged(problems, lines):
    assert problems(lines) == []


@pytest.mark.parametrize("lines", HARMLESS)
def test_bash_goes_on_after_what_is_not_judged(tmp_path, lines):
    script = f"{lines}\necho >ended\n"
    subprocess.run(
        ["bash", "-c", script.replace("/var/log", str(tmp_path))],
        cwd=tmp_path,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    assert (tmp_path / "ended").exists()


# ------------------------------------------------------------------- the library


def test_a_script_without_the_library_is_refused(problems, monkeypatch):
    monkeypatch.setitem(globals(), "LIBRARY", "")
    (finding,) = problems("touch /etc/acme")
    assert (finding.level, finding.line) == ("error", 1)
    assert "does not source the library" in finding.message
    assert finding.hint == 'begin it with source "${KILN_DIR:?}/lib/kiln.sh"'
    assert problems('source "$KILN_DIR/runtime/opt/acme/lib.sh"') == []


# ------------------------------------------------------------------- where it is said


@pytest.fixture
def own_exec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "cuda.sh"
    script.write_text((PROVISIONERS / "cuda.sh").read_text() + "exec true\n")
    monkeypatch.setattr(
        script_commands,
        "provisioner_file",
        lambda name: script if name == "cuda" else PROVISIONERS / f"{name}.sh",
    )
    return script


def test_check_and_all_that_renders_refuse_it(own_exec: Path) -> None:
    recipe = next(recipe for recipe in load_recipes() if recipe.cuda)
    (finding,) = [f for f in engine.check_recipe(recipe) if f.rule == script_commands.RULE]
    assert finding.rows == (recipe.name,)
    with pytest.raises(KilnError, match=rf"{own_exec}:\d+: `exec true` replaces") as raised:
        render.render_files(recipe)
    assert raised.value.exit_status == 2


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_our_own_scripts_pass(script: Path) -> None:
    assert script_commands.command_problems(script.stem) == []


def test_the_files_of_our_own_scripts_are_seen() -> None:
    names = [
        word
        for script in SCRIPTS
        for match in script_commands.commands_named(
            parsed(script.read_text()), "kiln_install_runtime"
        )
        for word in match["words"].split()
    ]
    written = "\n".join(script.read_text() for script in SCRIPTS)
    assert len(names) > 20
    assert len(list(script_commands.commands_named(parsed(written), "kiln_install_runtime"))) == (
        written.count("kiln_install_runtime ")
    )
