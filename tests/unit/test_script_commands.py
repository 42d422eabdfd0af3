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
from kiln.components.script_syntax import parsed, script_syntax
from kiln.matrix.load import load_recipes
from kiln.packer import render

SCRIPTS = sorted(PROVISIONERS.glob("*.sh"))
LIBRARY = '. "$KILN_DIR/lib/kiln.sh"\n'


@pytest.fixture
def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What is said about a script with these lines, in an overlay that ships etc/acme/banner and
    other files."""

    def found(lines: str, others: dict[str, str] | None = None) -> list[Finding]:
        top = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        script = f"#!/bin/bash\n{lines}\n{LIBRARY}"
        files = {"provisioners/acme.sh": script, "runtime/etc/acme/banner": "Acme\n"}
        for name, text in {**files, **(others or {})}.items():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text(text)
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
        'echo x >"${KILN_DIR:?}/runtime/etc/x"\nkiln_install_runtime etc/x',
        "kiln_install_runtime $A/$B/x $A-$B-x",
        # Valid, and more than the grammar of the library can read.
        'if [ "$x" != \\"\\" ]; then\n    kiln_install_runtime etc/x\nfi',
        '(\n    kiln_install_runtime etc/x\n    if [ "$x" != \\"\\" ]; then\n    true\n    fi\n)',
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
        "kiln_install_runtime >/dev/null etc/x",
        '. "${KILN_DIR:?}/runtime/opt/acme/lib.sh"\nkiln_install_runtime etc/x',
        "true && >&2 kiln_install_runtime etc/acme/banner 2>/dev/null etc/x",
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
    "false || exec acme": "exec acme",
    "{ exec acme; }": "exec acme",
    "A=1 exec -a acme true": "exec -a acme true",
    "f() { true; }\nexec acme": "exec acme",
    "true && exec acme &>/dev/null": "exec acme &>/dev/null",
    "exec \\\n    acme <<END\nx\nEND": "exec acme",
    "time exec acme": "exec acme",
    "command exec acme": "exec acme",
    "while true; do exec acme; done </dev/null": "exec acme",
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
    "exec 3<> /dev/null",
    "exec {log}>>/var/log/acme.log",
    "exec {log}> /var/log/acme.log 2>&1",
    "true && exec 2>/dev/null",
    "dir=/var/log\nexec >$dir/$HOSTNAME/x 2>&1 || true; exec >>$dir/a.$HOSTNAME.log",
    "exec > >(tee -a /var/log/acme.log) 2>&1",
    "exec &>/dev/null",
    "(exec true)",
    "x=$(exec true)",
    "exec true | cat",
    "true | exec cat",
    "exec true &",
    "{ exec true; } 2>&1 | cat",
    "{ true && exec true; } &",
    "while true; do exec true; done | cat",
    "f() {\n    exec true\n}",
    "function f {\n exec true\n}",
    "f() { exec true; }\n(f)",
    "f() { exec true; }\nx=$(f)",
    "f() { exec true; }\nf | cat",
    "f() { exec true; }\nf &",
    "f() ( exec true )\nf",
    "f() { true; }\nf\ng() { exec true; }",
    # Valid, and more than the grammar of the library can read.
    '(\n    exec true\n    if [ "$x" != \\"\\" ]; then\n        true\n    fi\n)',
    "find . -exec true {} +",
    "echo exec true",
    "cat <<'END'\nexec true\nEND",
    "cat >acme <<END\n#!/bin/sh\nexec true\nEND",
    "# exec true",
    "x='\nexec true\n'",
]


@pytest.mark.parametrize("lines", HARMLESS)
def test_an_exec_that_leaves_the_script_running_is_not_judged(problems, lines):
    assert problems(lines) == []


# The line of the `exec` and the way to it, by the lines of a script whose first line is a shebang.
CALLED = {
    "f() {\n    exec acme\n}\nf": (3, "calls f in line 5"),
    "function f {\n    exec acme\n}\nif true; then f --now; fi": (3, "calls f in line 5"),
    "f() {\n    exec acme\n}\ng() {\n    f\n}\ntrue || exit 1\ng >/dev/null": (
        3,
        "calls g in line 9",
    ),
    "if true; then\n    f() { exec acme; }\nelse\n    f() { true; }\nfi\nf": (
        3,
        "calls f in line 7",
    ),
}


@pytest.mark.parametrize("lines", CALLED)
def test_an_exec_in_a_function_that_the_script_calls_is_named_with_the_call(problems, lines):
    (finding,) = problems(lines)
    line, way = CALLED[lines]
    assert (finding.level, finding.rule, finding.line) == ("error", "provisioner", line)
    assert finding.message.startswith(
        f"`exec acme` replaces the script, which {way}: nothing after it runs"
    )
    assert finding.hint == "write `acme`, without exec"


def ended(folder: Path, lines: str) -> bool:
    """Whether bash gets to the line after these."""
    script = f"acme() {{ true; }}\n{lines}\necho >ended\n".replace("/var/log", str(folder))
    subprocess.run(
        ["bash", "-c", script.replace("exec acme", "exec true")],
        cwd=folder,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    return (folder / "ended").exists()


@pytest.mark.parametrize("lines", HARMLESS)
def test_bash_goes_on_after_what_is_not_judged(tmp_path, lines):
    assert ended(tmp_path, lines)


@pytest.mark.parametrize("lines", [*CALLED, *(lines for lines in REPLACES if "KILN" not in lines)])
def test_bash_does_not_go_on_after_what_is_named(tmp_path, lines):
    assert not ended(tmp_path, lines.replace("/opt/acme/setup", "true"))


LIB = "runtime/opt/acme/lib.sh"


@pytest.mark.parametrize(
    "name",
    [
        "$KILN_DIR/{}",
        '"${{KILN_DIR:?}}/{}"',
        '"$KILN_DIR"/{}',
        "${{KILN_DIR}}/{}",
        "/opt/acme/lib.sh",
    ],
)
def test_an_exec_in_a_file_of_the_overlay_that_the_script_sources_is_named_there(problems, name):
    lines = f"true\nsource {name.format(LIB)}"
    (finding,) = problems(lines, {LIB: "# Ours.\nexec acme\n"})
    script = finding.file.replace(LIB, "provisioners/acme.sh")
    assert finding.file.endswith(LIB)
    assert finding.line == 2
    assert finding.message.startswith(
        f"`exec acme` replaces the script {script}, which sources this file in line 3: nothing"
    )


def test_functions_are_followed_from_file_to_file(problems):
    more = "runtime/opt/acme/more.sh"
    files = {
        LIB: f". /{more.removeprefix('runtime/')}\n",
        more: "setup() { f; }\nexec >/dev/null\n",
    }
    lines = "f() { exec acme; }\n. /opt/acme/lib.sh\n"
    assert problems(lines, files) == []
    (finding,) = problems(f"{lines}setup", files)
    assert (finding.line, "which calls setup in line 4:" in finding.message) == (2, True)
    assert finding.file.endswith("provisioners/acme.sh")


@pytest.mark.parametrize(
    "lines",
    [
        '. "$ACME_DIR/lib.sh"',
        "lib=/opt/acme/lib.sh\n. $lib",
        ". /opt/acme/other.sh",
        "(. /opt/acme/lib.sh)",
        "f() { . /opt/acme/lib.sh; }",
        "g=f\nf() { exec acme; }\n$g",
        # Valid, and more than the grammar of the library can read.
        'if [ "$x" != \\"\\" ]; then\n    exec acme\nfi',
    ],
)
def test_what_is_called_or_sourced_by_an_unknown_name_is_not_guessed(problems, lines):
    assert problems(lines, {LIB: "exec acme\n"}) == []


# ------------------------------------------------------------------- the library


def test_a_script_without_the_library_is_refused(problems, monkeypatch):
    monkeypatch.setitem(globals(), "LIBRARY", "")
    (finding,) = problems("touch /etc/acme")
    assert (finding.level, finding.line) == ("error", 1)
    assert "does not source the library" in finding.message
    assert finding.hint == 'begin it with source "${KILN_DIR:?}/lib/kiln.sh"'
    assert problems('source "$KILN_DIR/runtime/opt/acme/lib.sh"') == []


# ------------------------------------------------------------------- rendered files

RENDERED = frozenset({"etc/kiln/recipe.json", "etc/acme/rendered.conf"})


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        (
            "etc/acme/renderd.conf",
            "no such file is rendered for the image",
            "did you mean etc/acme/rendered.conf? Files come from files(recipe) of a component in "
            "Python",
        ),
        ("/etc/kiln", "the path begins with /", "write it without: etc/kiln"),
        (
            "etc/acme/banner",
            "no such file is rendered for the image",
            "it is in runtime/: kiln_install_runtime etc/acme/banner",
        ),
    ],
)
def test_a_file_that_is_not_rendered_is_named_at_its_line(problems, name, message, hint):
    problems(f"kiln_install_files etc/kiln \\\n  {name}\n")
    (finding,) = script_commands.rendered_file_problems("acme", RENDERED)
    assert (finding.level, finding.line, finding.hint) == ("error", 3, hint)
    assert finding.message == f"kiln_install_files {name}: {message}"


@pytest.mark.parametrize(
    "lines",
    [
        "kiln_install_files etc/acme etc/acme/rendered.conf 'etc/kiln/'",
        'kiln_install_files "etc/$NAME" etc/$x etc/*',
        "if [[ $KILN_FAMILY == al ]]; then kiln_install_files etc/x; fi",
        "[[ $KILN_FAMILY == debian ]] || kiln_install_files etc/x",
        "[[ -z $X ]] && exit 0\nkiln_install_files etc/x",
        'echo x >"$KILN_DIR/files/etc/x"\nkiln_install_files etc/x',
    ],
)
def test_what_may_be_rendered_or_may_not_be_run_is_left_to_the_bake(problems, lines):
    problems(lines)
    assert script_commands.rendered_file_problems("acme", RENDERED) == []


def test_our_own_scripts_install_what_is_rendered_in_every_row() -> None:
    rows = load_recipes()
    for row in rows:
        assert [f for f in engine.check_recipe(row) if f.rule == script_commands.RULE] == []


def test_check_and_render_refuse_a_file_that_is_not_rendered(own_exec: Path) -> None:
    own_exec.write_text((PROVISIONERS / "cuda.sh").read_text() + "kiln_install_files etc/nope\n")
    recipe = next(recipe for recipe in load_recipes() if recipe.cuda)
    (finding,) = [f for f in engine.check_recipe(recipe) if f.rule == script_commands.RULE]
    assert finding.message.startswith("kiln_install_files etc/nope: ")
    with pytest.raises(KilnError, match=rf"{own_exec}:\d+: kiln_install_files etc/nope"):
        render.render_files(recipe)


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


def test_render_says_of_each_of_several_mistakes_what_to_do(own_exec: Path) -> None:
    own_exec.write_text(f"{own_exec.read_text()}kiln_install_runtime /etc/acme\n")
    with pytest.raises(KilnError) as raised:
        render.render_files(next(recipe for recipe in load_recipes() if recipe.cuda))
    assert raised.value.hint.splitlines() == [
        "write it as below runtime/: etc/acme",
        "  write `true`, without exec",
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_our_own_scripts_pass(script: Path) -> None:
    assert script_commands.command_problems(script.stem) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_nothing_of_our_own_scripts_is_left_unjudged(script: Path) -> None:
    assert not script_syntax(script).has_gaps


def test_the_files_of_our_own_scripts_are_seen() -> None:
    written = "\n".join(script.read_text() for script in SCRIPTS)
    installs = [
        command for command in parsed(written).commands if command.name == "kiln_install_runtime"
    ]
    assert sum(len(command.arguments) for command in installs) > 20
    assert len(installs) == written.count("kiln_install_runtime ")
