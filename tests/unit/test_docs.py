"""What the pages and the source name exists: tasks, flags, variables, files, messages."""

import ast
import dataclasses
import json
import re
from pathlib import Path

import pytest
import yaml
from invoke import Program
from invoke.config import Config
from invoke.loader import FilesystemLoader

from devel import links, scripts
from kiln.base import account
from kiln.base.errors import KilnError
from kiln.matrix.flags import select
from kiln.matrix.load import load_recipes
from kiln.pipeline.record import Record
from tests.unit import commands, shown

ROOT = Path(__file__).resolve().parents[2]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in links.pages(ROOT)}
CODE_FOLDERS = (
    "devel",
    "kiln",
    "lab",
    "provisioners",
    "runtime",
    "templates",
    "tests",
    "setup",
)
# A call ends where the shell's next word is another's, or the inline code ends.
CALL = re.compile(r"\./invoke((?: +(?![|&>;#])[^\s`|&;)]+)*)")
FLAG = re.compile(r"--?[a-z][\w-]*")


def contexts():
    """The tasks as Invoke's parser has them. Each time but the first they lack their help."""
    config = Config(project_location=str(ROOT))
    module, _ = FilesystemLoader(start=str(ROOT), config=config).load("tasks")
    return module.ns.to_contexts()


CONTEXTS = contexts()


def tasks() -> dict[str, set[str]]:
    """Task → its flags, as Invoke reads tasks.py; '' has those of ./invoke itself."""
    own = {name for arg in Program().core_args() for name in (f"--{n}" for n in arg.names)}
    return {
        "": own,
        **{
            # A group's default task is called by the group's name.
            min([str(context.name), *context.aliases], key=len): set(context.flags)
            for context in CONTEXTS
        },
    }


TASKS = tasks()


def calls(text: str) -> list[tuple[str, set[str]]]:
    """Each ./invoke in a text: the task and its flags."""
    result = []
    for words in (match.group(1).split() for match in CALL.finditer(text)):
        plain = [word for word in words if not word.startswith("-")]
        if words and words[0].startswith("--help") and plain:
            result.append((plain[0], set()))
        elif words:
            name = "" if words[0].startswith("-") else words[0]
            result.append((name, {flag.group() for word in words if (flag := FLAG.match(word))}))
    return result


def wrong_calls(text: str) -> list[str]:
    """The calls of a text that Invoke would refuse."""
    result = []
    for name, flags in calls(text):
        if name not in TASKS:
            result.append(f"no task {name}")
        elif flags - TASKS[name]:
            result.append(f"{name} has no {', '.join(sorted(flags - TASKS[name]))}")
    return result


def code() -> str:
    """The project's source, literals that stand side by side joined as Python joins them."""
    files = [ROOT / "invoke", ROOT / "tasks.py"]
    for folder in CODE_FOLDERS:
        files += [
            path
            for path in (ROOT / folder).rglob("*")
            if path.suffix in {".py", ".sh", ".yaml", ".j2"} and path != Path(__file__)
        ]
    text = "\n".join(path.read_text(errors="replace") for path in files)
    return re.sub(r'"\s*\n\s*\+?\s*f?"', "", text)


CODE = code()
VARIABLES_OF_CODE = set(re.findall(r"\bKILN_\w+", CODE))
VARIABLES_OF_CODE |= {each for name in account.SETTINGS for each in account.variables(name)}


def message_parts(heading: str) -> list[str]:
    """The parts of the messages in a heading that do not differ from case to case."""
    text = "…".join(re.findall(r"`([^`]+)`", heading))
    # Places, quoted values and the names of rules are examples.
    text = re.sub(r"^[\w.]+:\d+:\d+: |'[^']*'|\bDRV-\w+", "…", text)
    parts = [part.strip(" :(),[]") for part in text.split("…")]
    return [part for part in parts if len(part) > 3]


@pytest.mark.parametrize("page", PAGES)
def test_every_invoke_call_names_a_task_and_flags_that_exist(page):
    assert wrong_calls(PAGES[page]) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`./invoke list --json | jq .`", []),
        ("./invoke check && ./invoke rendre", ["no task rendre"]),
        ("(`./invoke build --distrib al2`)", ["build has no --distrib"]),
        ("./invoke --lists", [" has no --lists"]),
        ("./invoke --help bild", ["no task bild"]),
        ("./invoke lab.up --no-install    # not --force", []),
    ],
)
def test_a_wrong_call_would_be_found(text, wrong):
    assert wrong_calls(text) == wrong


def test_every_task_is_in_the_documentation():
    named = {name for text in PAGES.values() for name, _ in calls(text)}
    assert set(TASKS) - {""} - named == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_environment_variable_is_read_somewhere(page):
    named = set(re.findall(r"\bKILN_[A-Z_]*[A-Z]\b", PAGES[page]))
    assert named - VARIABLES_OF_CODE == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_is_named_is_in_the_checkout(page):
    top = "|".join((*CODE_FOLDERS, "docs", "packer", r"\.ci"))
    named = re.findall(rf"`((?:{top})/[\w./*-]*)`", PAGES[page])
    # x and acme-baseline are any component.
    example = re.compile(r"[/_](x|acme[-_]baseline)\.\w+$")
    paths = [path.rstrip("/") for path in named if not example.search(path)]
    assert [path for path in paths if not list(ROOT.glob(path))] == []


# A whole word of a code block: not the end of a longer path, not a pattern, not a placeholder.
BLOCK_PATH = re.compile(
    rf"(?<![^\s`'\"(=])((?:{'|'.join((*CODE_FOLDERS, 'docs', 'packer'))})/[\w./-]+)(?![\w./*<{{$-])"
)


def missing_in_blocks(text: str) -> list[str]:
    """The repository's paths in a page's code blocks, such as output, that do not exist."""
    blocks = re.findall(r"^ *```[^\n]*\n(.*?)^ *```", text, flags=re.MULTILINE | re.DOTALL)
    paths = [path.rstrip("./") for block in blocks for path in BLOCK_PATH.findall(block)]
    return [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_every_path_in_a_code_block_is_in_the_checkout(page):
    assert missing_in_blocks(PAGES[page]) == []


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("HCL  packer/al2-classic-base-x86_64", []),
        ("HCL  packer/al2-gone-base-x86_64", ["packer/al2-gone-base-x86_64"]),
        ("record  build/packer/gone/record.json", []),
        ("bash provisioners/gone.sh", ["provisioners/gone.sh"]),
        ("packer validate packer/<name>", []),
    ],
)
def test_a_missing_path_in_a_code_block_would_be_found(line, missing):
    assert missing_in_blocks(f"Text\n\n```sh\n{line}\n```\n\npacker/gone\n") == missing


# A file of this repository, not one of another repository or below another folder.
SOURCE_PATH = re.compile(
    rf"(?<![\w/.~@-])((?:{'|'.join(CODE_FOLDERS)}|docs)/[\w./-]*\.(?:py|sh|yaml|json|j2|md|txt))\b"
)
# A table named without the folder that it is in.
KNOWLEDGE_FILE = re.compile(r"(?<![\w/])(knowledge/[\w*<>-]+[./]\w*)")
# A name as in an import: kiln.compat.engine.
MODULE = re.compile(r"(?<![\w./-])((?:kiln|devel)(?:\.[a-z_]+)+)")


def missing_files(text: str) -> list[str]:
    """The repository's files that a text names and that are not there."""
    # The paths of other repositories stand behind their name: `github:owner/name path @commit`.
    own = re.sub(r"github:\S+ \S+|(?:amazon|aws)-[\w-]+ templates/\S+", "", text)
    names = [(ROOT / name, name) for name in SOURCE_PATH.findall(own)]
    missing = {name for path, name in names if not path.exists()}
    return sorted(missing | set(KNOWLEDGE_FILE.findall(own)))


def missing_modules(text: str) -> list[str]:
    """The modules below kiln and devel that a text names and that are not there."""
    missing = set()
    for name in MODULE.findall(text):
        top, second = [*name.split("."), ""][:2]
        if not (ROOT / top / second).is_dir() and not (ROOT / top / f"{second}.py").is_file():
            missing.add(name)
    # File names that begin like a module: provisioners/lib/kiln.sh, the agent's folder kiln.d.
    return sorted(missing - {"kiln.sh", "kiln.d"})


SOURCES = [
    path
    for folder in CODE_FOLDERS
    if folder != "tests"  # tests invent files
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".sh", ".yaml", ".j2", ".json"} and path.is_file()
]


def test_every_file_and_module_that_the_source_names_exists():
    wrong = {}
    for path in [*SOURCES, ROOT / "amis.yaml", ROOT / "pyproject.toml", ROOT / "tasks.py"]:
        text = path.read_text(errors="replace")
        missing = missing_files(text) + missing_modules(text)
        if missing:
            wrong[str(path.relative_to(ROOT))] = missing
    assert wrong == {}


@pytest.mark.parametrize("page", PAGES)
def test_every_module_that_a_page_names_exists(page):
    assert missing_modules(PAGES[page]) == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("# see kiln/knowledge/components.yaml", ["kiln/knowledge/components.yaml"]),
        (
            "as in lab/commands.py and knowledge/gone.yaml",
            ["knowledge/gone.yaml", "lab/commands.py"],
        ),
        ("kiln/cli/main.py, kiln/facts/knowledge/rules.yaml, kiln/facts/knowledge/*.yaml", []),
        (
            "knowledge/rules.yaml, `knowledge/indexes/`",
            ["knowledge/indexes/", "knowledge/rules.yaml"],
        ),
        ("github:awslabs/amazon-eks-ami templates/al2023/gone.sh @1a2b", []),
    ],
)
def test_a_file_that_does_not_exist_would_be_found(text, missing):
    assert missing_files(text) == missing


def test_a_module_that_does_not_exist_would_be_found():
    assert missing_modules("kiln.offline, kiln.cli.main and kiln.facts") == ["kiln.offline"]


@pytest.mark.parametrize("page", PAGES)
def test_every_dotted_name_of_the_lab_is_a_task_or_a_module(page):
    named = re.findall(r"`(?:\./invoke )?lab\.([a-z]+)(?![\w.])", PAGES[page])
    assert [
        name
        for name in named
        if f"lab.{name}" not in TASKS and not (ROOT / "lab" / f"{name}.py").exists()
    ] == []


HEADINGS = re.findall(r"^### (.*`.*)$", PAGES["docs/troubleshooting.md"], re.MULTILINE)


@pytest.mark.parametrize("heading", HEADINGS)
def test_troubleshooting_quotes_messages_that_the_program_has(heading):
    assert [part for part in message_parts(heading) if part not in CODE] == []


def test_a_message_that_nobody_says_would_be_found():
    parts = message_parts("`the oven is cold: …, so nothing bakes`")
    assert parts == ["the oven is cold", "so nothing bakes"]
    assert not any(part in CODE for part in parts)


def test_records_explains_every_key_that_a_run_writes():
    keys = {field.name for field in dataclasses.fields(Record)}
    record, version_info = PAGES["docs/records.md"].split("## version-info.json")
    assert explained(record) == keys
    assert explained(version_info.split("##")[0]) == version_info_keys()


def explained(text: str) -> set[str]:
    """The keys in the first column of a page's tables."""
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`(\w+)`", row)}


def version_info_keys() -> set[str]:
    text = (ROOT / "provisioners" / "lib" / "version_info.py").read_text()
    collect = next(
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == "collect"
    )
    answer = next(node for node in ast.walk(collect) if isinstance(node, ast.Return))
    return {ast.literal_eval(key) for key in answer.value.keys}


def test_the_design_page_answers_where_it_is_decided_by_files_that_exist():
    section = PAGES["docs/design.md"].split("## Where is it decided?")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert rows
    for row in rows:
        files = re.findall(r"`((?:kiln|lab|tests|runtime|provisioners)/[^`]+)`", row)
        assert files, row
        missing = [name for name in files if not (ROOT / name).exists()]
        assert not missing, row


def test_the_design_page_names_every_folder_of_the_product():
    page = PAGES["docs/design.md"]
    folders = [path.name for path in (ROOT / "kiln").iterdir() if (path / "__init__.py").exists()]
    assert [name for name in folders if f"`kiln/{name}/`" not in page] == []


def test_the_design_page_names_what_is_in_the_root_folder():
    page = PAGES["docs/design.md"]
    root = {file.split("/")[0] for file in scripts.committed() if (ROOT / file).is_file()}
    # Where every repository has them.
    usual = {name for name in root if name == "LICENSE" or name.endswith(".md")}
    usual |= {".editorconfig", ".github", ".gitignore", ".pre-commit-config.yaml"}
    assert [name for name in sorted(root - usual) if f"`{name}" not in page] == []


# The rows of the others are in the overlays that they show; their own tests build or plan them.
WITH_ROWS_OF_AMIS_YAML = [
    page
    for page in PAGES
    if shown.selections(PAGES[page])
    and page not in ("docs/overlay.md", "docs/add-a-distribution.md", "CHANGELOG.md")
]


@pytest.mark.parametrize("page", WITH_ROWS_OF_AMIS_YAML)
def test_a_build_that_a_page_shows_is_of_a_single_row(page):
    for flags in shown.selections(PAGES[page]):
        assert len(select(load_recipes(ROOT / "amis.yaml"), **flags)) == 1


def test_a_build_that_several_rows_match_would_be_found():
    (flags,) = shown.selections("then `./invoke build --distro al2023 --dry-run` and --name NAME")
    with pytest.raises(KilnError, match="rows match"):
        select(load_recipes(ROOT / "amis.yaml"), **flags)


PYTEST = re.compile(r"((?:KILN_\w+=\S+ )*)(\S*)python -m pytest((?: [^\s`]+)+)")


@pytest.mark.parametrize("page", [page for page in PAGES if "-m pytest" in PAGES[page]])
def test_a_call_of_pytest_works_as_it_is_written(page):
    calls_ = PYTEST.findall(PAGES[page])
    assert calls_
    for variables, python, words in calls_:
        assert python == ".venv/bin/", f"{python}python lacks what the tests import"
        assert [
            path for path in re.findall(r"tests/\S+", words) if not (ROOT / path).exists()
        ] == []
        for name in re.findall(r"(\w+)=", variables):
            assert f'"{name}"' in CODE, f"nothing reads {name}"


def test_every_flags_help_has_the_form_in_which_it_is_typed():
    wrong = []
    for context in CONTEXTS:
        for argument in context.args.values():
            dashes = "-" if len(argument.name) == 1 else "--"
            flag = f"{dashes}{argument.name.replace('_', '-').strip('-')}"
            typed = re.search(rf"(?<!\S){re.escape(flag)}[ =]\S", argument.help or "")
            if not argument.help or not (argument.positional or argument.kind is bool or typed):
                wrong.append(f"{context.name} {flag}: {argument.help}")
    assert wrong == []


def test_a_flag_in_the_help_can_be_copied_from_a_narrow_terminal():
    lines = commands.invoke("--help", "build").stdout.splitlines()
    assert [line for line in lines if line.endswith("-")] == []
    assert any(line.endswith(" kiln-builder") for line in lines)
    assert max(map(len, lines)) > 80  # a long value is whole, too


def test_the_files_for_ci_are_well_formed():
    page = PAGES["docs/ci.md"]
    workflow, pipeline = (
        yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.S)
    )
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(step.keys() & {"uses", "run"} for step in steps)
    assert workflow["jobs"]["nightly"]["needs"] in workflow["jobs"]
    jobs = {name: job for name, job in pipeline.items() if name != "default"}
    assert all("./invoke" in " ".join(job["script"]) for job in jobs.values())
    (policy,) = (json.loads(text) for text in re.findall(r"```json\n(.*?)```", page, re.S))
    (statement,) = policy["Statement"]
    keys = statement["Condition"]["StringEquals"]
    assert {key.partition(":")[2] for key in keys} == {"aud", "sub"}


def test_the_changelog_says_each_change_once():
    """Two branches that are merged may both bring a line."""
    lines = [line for line in PAGES["CHANGELOG.md"].splitlines() if line.startswith("- ")]
    assert [line for line in lines if lines.count(line) > 1] == []
