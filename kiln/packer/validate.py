"""Whether rendered HCL is good: our policy, bash's and Packer's own opinion."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kiln.base import tags
from kiln.base.errors import Finding
from kiln.base.overlay import provisioner_file, shown_script
from kiln.base.paths import PROVISIONERS
from kiln.base.recipe import Recipe
from kiln.packer.folders import shown_packer, write_folders
from kiln.packer.program import EXAMPLE_VARIABLES, FOLDER_1_6, Packer, ask_packer, command

_TEMPLATES = "correct the template in templates/packer/"


@dataclass(frozen=True)
class Validation:
    """The findings about one recipe, and the seconds that Packer took."""

    name: str
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def valid(self) -> bool:
        """Return True if there are no findings."""
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """The validation as plain data."""
        findings = [finding.as_json() for finding in self.findings]
        return {
            "name": self.name,
            "valid": self.valid,
            "seconds": self.seconds,
            "findings": findings,
        }


def validate_recipes(recipes: Sequence[Recipe], packer: Packer) -> list[Validation]:
    """Check every recipe's folder as the matrix renders it now, in a temporary folder: what is
    committed stays as it is.

    Packer's processes run in parallel, and the policy is checked meanwhile.
    """
    if not recipes:
        return []
    with (
        tempfile.TemporaryDirectory(prefix="kiln-validate-") as temporary,
        # One more than cores: Packer spends part of its time waiting for its own processes.
        ThreadPoolExecutor(max_workers=(os.cpu_count() or 1) + 1) as workers,
    ):
        folders = write_folders(recipes, Path(temporary, "packer"))
        files = {name: _hcl_files(folder) for name, folder in folders.items()}
        answers = {name: workers.submit(_timed, packer, folder) for name, folder in folders.items()}
        every = sorted({path for of_row in files.values() for path in of_row})
        unformatted = workers.submit(badly_formatted, packer, every)
        found = {
            recipe.name: [*_policy(folders[recipe.name]), *check_scripts(recipe.components)]
            for recipe in recipes
        }
        validations = []
        for name, folder in folders.items():
            complaint, seconds = answers[name].result()
            if complaint:
                found[name].append(_finding("packer-validate", complaint, folder))
            for path in [path for path in unformatted.result() if path in files[name]]:
                message = "is not formatted as by `packer fmt`"
                found[name].append(_finding("packer-fmt", message, path, _TEMPLATES))
            findings = tuple(replace(finding, rows=(name,)) for finding in found[name])
            validations.append(Validation(name, findings, round(seconds, 3)))
        return validations


def _finding(rule: str, message: str, path: Path, hint: str = "", line: int = 1) -> Finding:
    """Return a finding about a rendered file or folder, by its place in packer/."""
    top = next(part for part in path.resolve().parents if part.name == "packer")
    shown = f"{shown_packer()}/{path.resolve().relative_to(top).as_posix()}"
    return Finding("error", rule, message, hint, file=shown, line=line)


def _timed(packer: Packer, folder: Path) -> tuple[str, float]:
    started = time.monotonic()
    return packer_validate(packer, folder), time.monotonic() - started


def packer_validate(packer: Packer, folder: Path) -> str:
    """Return the complaint of `packer validate` about the HCL in `folder`; empty if it is valid."""
    done = ask_packer(packer, command(packer, "validate", variables=EXAMPLE_VARIABLES), folder)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()


def _hcl_files(folder: Path) -> list[Path]:
    """Return the HCL files of an AMI's folder and those it links to, each once."""
    paths = [*folder.glob("*.pkr.hcl"), *folder.glob(f"{FOLDER_1_6}/*.pkr.hcl")]
    return sorted({path.resolve() for path in paths})


def badly_formatted(packer: Packer, files: Sequence[Path]) -> list[Path]:
    """Return the HCL files that `packer fmt` would change."""
    # packer fmt takes one file or one folder without subfolders, so copy all files into one.
    with tempfile.TemporaryDirectory(prefix="kiln-fmt-") as copies:
        for number, file in enumerate(files):
            shutil.copyfile(file, Path(copies, f"{number}.pkr.hcl"))
        done = ask_packer(packer, [str(packer.path), "fmt", "-check", "."], Path(copies))
        numbers = re.findall(r"(\d+)\.pkr\.hcl$", done.stdout, re.MULTILINE)
    return [files[int(number)] for number in sorted(set(numbers), key=int)]


# ----------------------------------------------------------------------------------- the scripts


def check_scripts(components: Iterable[str]) -> list[Finding]:
    """Return an error for each provisioner of these components, and each file of their library,
    that bash cannot parse. (This machine's bash: 4.2 of Amazon Linux 2 knows less.)
    """
    files = [provisioner_file(name) for name in components]
    files += sorted((PROVISIONERS / "lib").glob("*.sh"))
    present = [(path, path.stat().st_mtime_ns) for path in files if path.is_file()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(_syntax_error, *zip(*present, strict=True))
    return [finding for finding in found if finding]


@cache
def _syntax_error(path: Path, _changed: int) -> Finding | None:
    done = subprocess.run(
        ["bash", "-n", str(path)],
        env={**os.environ, "LC_ALL": "C"},  # no word about a locale
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    # bash reports an unclosed [[, but its exit status is 0.
    if done.returncode == 0 and not done.stderr.strip():
        return None
    messages = [line.removeprefix(f"{path}: ") for line in done.stderr.splitlines()]
    place = re.match(r"line (\d+): ", messages[0]) if messages else None
    words = ": ".join(re.sub(r"^line \d+: ", "", line) for line in messages)
    return Finding(
        "error",
        "shell-syntax",
        words or f"bash -n ended with status {done.returncode}",
        hint="bash names the line where it noticed; what is not closed may begin above it",
        file=shown_script(path),
        line=int(place[1]) if place else 1,
    )


# ------------------------------------------------------------------------------------ the policy

REQUIRED_TAGS = tags.OF_A_BAKE
_TAGGED = ("tags", "snapshot_tags", "run_tags", "run_volume_tags")
_SOURCE, _BUILD, _VARIABLES = "source.pkr.hcl", "build.pkr.hcl", "variables.pkr.hcl"
_OWN, _PLUGINS = "recipe.pkr.hcl", "plugins.pkr.hcl"
# Attributes with prose, which may name what values may not.
_PROSE = ("condition", "description", "error_message")
_NUMBER = r"\d+\.\d+\.\d+"
_PINNED = re.compile(rf"=? ?{_NUMBER}|>= ?{_NUMBER}, ?< ?{_NUMBER}")
# Rule → what no value may contain. A package with "latest" in its name may be pinned:
# kmod-nvidia-latest-dkms=580.178.04.
_FORBIDDEN = {
    "ingress-closed": r"0\.0\.0\.0/0|::/0",
    "no-latest": r"(?i)(?<![\w-])latest\b|-latest\b(?![\w-]*=\d)",
    "no-identity": r"\b(AKIA|ASIA)[0-9A-Z]{16}\b|BEGIN [A-Z ]*PRIVATE KEY"
    r"|(?<![\w.-])\d{12}(?![\w.-])",
}
# Attribute of the source that must not be set → the rule.
_UNSET = {
    **dict.fromkeys(("access_key", "secret_key", "token"), "no-identity"),
    **dict.fromkeys(
        ("force_deregister", "force_delete_snapshot", "ami_groups", "snapshot_groups"), "not-public"
    ),
}


class _Violation(NamedTuple):
    rule: str
    file: str
    # Begins the line, after blanks and quotes.
    place: str
    message: str


def check_policy(folder: Path) -> list[Finding]:
    """Return the violations in an AMI's rendered folder, of what either Packer reads.

    A finding names the shared file, not the folder's link to it.
    """
    violations = {}
    for root in (folder, folder / FOLDER_1_6):
        for rule, name, place, message in _violations(root):
            file = (root / name).resolve()
            lines = file.read_text("utf-8").splitlines()
            match = re.compile(rf'[ "]*{place}')
            line = next((n for n, text in enumerate(lines, 1) if match.match(text)), 1)
            violations[rule, file, message] = _finding(rule, message, file, _TEMPLATES, line)
    return list(violations.values())


def _policy(folder: Path) -> list[Finding]:
    from lark.exceptions import LarkError

    try:
        return check_policy(folder)
    except (LarkError, KeyError) as error:
        return [_finding("hcl-syntax", f"the policy cannot read the HCL: {error}", folder)]


@cache
def read_hcl(text: str) -> dict[str, Any]:
    """Return an HCL text as data. Each block type is a list of blocks."""
    import hcl2

    how = hcl2.SerializationOptions(
        with_comments=False, strip_string_quotes=True, explicit_blocks=False
    )
    return dict(hcl2.loads(text, serialization_options=how))


def _violations(root: Path) -> Iterator[_Violation]:
    files = {path.name: read_hcl(path.read_text("utf-8")) for path in root.glob("*.pkr.hcl")}
    for name, data in files.items():
        for key, text in _values(data):
            for rule, pattern in _FORBIDDEN.items():
                if match := re.search(pattern, text):
                    message = f"{key} contains {match[0]!r}"
                    yield _Violation(rule, name, f".*{re.escape(match[0])}", message)
    yield from _source_violations(
        files[_SOURCE]["source"][0]["amazon-ebs"]["gpu"], imds=root.name != FOLDER_1_6
    )
    (build,), (values,) = files[_BUILD]["build"], files[_BUILD]["locals"]
    if lacking := [tag for tag in REQUIRED_TAGS if not values["tags"].get(tag)]:
        yield _Violation("tags-complete", _BUILD, "tags", f"local.tags lacks {', '.join(lacking)}")
    steps = [Path(step.get("shell", {}).get("script", "")).stem for step in build["provisioner"]]
    if steps[-2:] != ["cleanup", "hygiene"]:
        message = f"{steps[-1]} runs last: keys and identities may come back after hygiene"
        yield _Violation("cleaned-last", _BUILD, f"script.*/{steps[-1]}", message)
    if not any("manifest" in step for step in build.get("post-processor", [])):
        yield _Violation("manifest-kept", _BUILD, "build", "the build writes no manifest")
    (own,) = files[_OWN]["locals"]
    for name in {"cleanup", "hygiene"} - own["components"].keys():
        yield _Violation("cleaned-last", _OWN, "components", f"the AMI lacks component {name}")
    for variable in files[_VARIABLES]["variable"]:
        if "default" in variable.get("ssh_source_cidrs", {}):
            message = "a default of ssh_source_cidrs could open SSH to 0.0.0.0/0"
            yield _Violation("ingress-closed", _VARIABLES, 'variable "ssh_source_c', message)
    for block in files.get(_PLUGINS, {}).get("packer", []):
        version = block["required_plugins"][0]["amazon"]["version"]
        if not _PINNED.fullmatch(version):
            message = f"plugin amazon may change: version {version!r} is no range with a ceiling"
            yield _Violation("plugin-pinned", _PLUGINS, "version", message)


def _source_violations(source: dict[str, Any], *, imds: bool) -> Iterator[_Violation]:
    options = (source.get("metadata_options") or [{}])[0]
    if imds and options.get("http_tokens") != "required":
        message = "the build instance allows IMDSv1"
        yield _Violation("imdsv2-required", _SOURCE, "http_tokens", message)
    if imds and source.get("imds_support") != "v2.0":
        message = "instances of the AMI allow IMDSv1"
        yield _Violation("imdsv2-required", _SOURCE, "imds_support", message)
    volumes = source.get("launch_block_device_mappings") or [{}]
    if any(volume.get("encrypted") is not True for volume in volumes):
        yield _Violation("root-encrypted", _SOURCE, "encrypted", "a volume is not encrypted")
    cidrs = "temporary_security_group_source_cidrs"
    if not source.get(cidrs):
        yield _Violation("ingress-closed", _SOURCE, cidrs, "Packer would open SSH to 0.0.0.0/0")
    for attribute, rule in _UNSET.items():
        if source.get(attribute):
            yield _Violation(rule, _SOURCE, attribute, f"the HCL sets {attribute}")
    for attribute in _TAGGED:
        if "local.tags" not in str(source.get(attribute)):
            yield _Violation("tags-complete", _SOURCE, attribute, f"{attribute} lacks local.tags")


def _values(data: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text value and the key that holds it, without prose."""
    if isinstance(data, dict):
        for name, value in data.items():
            if name not in _PROSE:
                yield from _values(value, name)
    elif isinstance(data, list):
        for value in data:
            yield from _values(value, key)
    elif isinstance(data, str):
        yield key, data
