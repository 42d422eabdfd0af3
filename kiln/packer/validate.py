"""Checks before a bake: bash's opinion of its scripts, ours and Packer's of its HCL."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from kiln.base import processes
from kiln.base.errors import Finding
from kiln.base.overlay import provisioner_file, shown_path
from kiln.base.paths import PROVISIONERS
from kiln.base.recipe import Recipe
from kiln.packer.program import EXAMPLE_VARIABLES, FOLDER_1_6, Packer, ask_packer, command
from kiln.packer.render import shown_packer, write_folders


def validate_recipes(recipes: Sequence[Recipe], packer: Packer) -> dict[str, list[Finding]]:
    """Map each recipe's name to the findings about its folder as the matrix renders it now, in a
    temporary folder: what is committed stays as it is.

    Packer's processes run in parallel, and the rest is checked meanwhile.
    """
    with (
        tempfile.TemporaryDirectory(prefix="kiln-validate-") as temporary,
        # One more than cores: Packer spends part of its time waiting for its own processes.
        ThreadPoolExecutor(max_workers=(os.cpu_count() or 1) + 1) as workers,
    ):
        folders = write_folders(recipes, Path(temporary, "packer"))
        answers = [workers.submit(packer_validate, packer, folders[r.name]) for r in recipes]
        found = {}
        for recipe, answer in zip(recipes, answers, strict=True):
            folder = folders[recipe.name]
            findings = [*check_policy(folder), *check_scripts(recipe.components)]
            if complaint := answer.result():
                findings.append(_finding("packer-validate", complaint, folder))
            found[recipe.name] = [replace(finding, rows=(recipe.name,)) for finding in findings]
        return found


def packer_validate(packer: Packer, folder: Path) -> str:
    """Return the complaint of `packer validate` about the HCL in `folder`; empty if it is valid."""
    done = ask_packer(packer, command(packer, "validate", variables=EXAMPLE_VARIABLES), folder)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()


def check_scripts(components: Iterable[str]) -> list[Finding]:
    """Return an error for each provisioner of these components, and each file of their library,
    that bash cannot parse. (This machine's bash: 4.2 of Amazon Linux 2 knows less.)
    """
    files = [provisioner_file(name) for name in components]
    files += sorted((PROVISIONERS / "lib").glob("*.sh"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(_syntax_error, [path for path in files if path.is_file()])
    return [finding for finding in found if finding]


@cache
def _syntax_error(path: Path) -> Finding | None:
    # No word about a locale.
    done = processes.run(["bash", "-n", str(path)], env={**os.environ, "LC_ALL": "C"})
    # bash reports an unclosed [[, but its exit status is 0.
    if done.returncode == 0 and not done.stderr.strip():
        return None
    place = re.search(r": line (\d+): ", done.stderr)
    words = ": ".join(re.findall(r": line \d+: (.*)", done.stderr))
    return Finding(
        "error",
        "shell-syntax",
        words or f"bash -n ended with status {done.returncode}",
        hint="bash names the line where it noticed; what is not closed may begin above it",
        file=shown_path(path),
        line=int(place[1]) if place else 1,
    )


# ------------------------------------------------------------------------------------ the policy

_SOURCE = "source.pkr.hcl"
_SECRET = re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b|BEGIN [A-Z ]*PRIVATE KEY")
# Attribute of the source → its rule, and what every value of it must be. None: it is not set.
_POLICY: dict[str, tuple[str, Any]] = {
    # The variable refuses 0.0.0.0/0, to which Packer opens SSH by itself.
    "temporary_security_group_source_cidrs": ("ingress-closed", "${var.ssh_source_cidrs}"),
    "encrypted": ("root-encrypted", True),
    "http_tokens": ("imdsv2-required", "required"),
    "imds_support": ("imdsv2-required", "v2.0"),
    "force_deregister": ("not-public", False),
    "force_delete_snapshot": ("not-public", False),
    **dict.fromkeys(("ami_groups", "snapshot_groups"), ("not-public", None)),
    **dict.fromkeys(("access_key", "secret_key", "token"), ("no-identity", None)),
}
# Packer 1.6 does not know these; the pipeline sets them on its AMIs.
_NOT_IN_1_6 = {"http_tokens", "imds_support"}


def check_policy(folder: Path) -> list[Finding]:
    """Return what an AMI's rendered folder would open, leave unencrypted or give away.

    A finding names the shared file, not the folder's link to it.
    """
    found = [
        *_source_violations(folder / _SOURCE, set()),
        *_source_violations(folder / FOLDER_1_6 / _SOURCE, _NOT_IN_1_6),
    ]
    secrets = [
        (path, secret[0])
        for path in sorted(folder.glob("*.pkr.hcl"))
        for secret in _SECRET.finditer(path.read_text("utf-8"))
    ]
    return found + [_finding("no-identity", f"contains {s}", path, s) for path, s in secrets]


def _source_violations(path: Path, unknown: set[str]) -> Iterator[Finding]:
    source = read_hcl(path.read_text("utf-8"))["source"][0]["amazon-ebs"]["gpu"]
    volumes = source.get("launch_block_device_mappings", [])
    values = {name: [source.get(name)] for name in _POLICY} | {
        "encrypted": [volume.get("encrypted") for volume in volumes] or [None],
        "http_tokens": [source.get("metadata_options", [{}])[0].get("http_tokens")],
    }
    for name, (rule, wanted) in _POLICY.items():
        for value in values[name]:
            if value != wanted and name not in unknown:
                yield _finding(rule, f"{name} must be {json.dumps(wanted)}", path, name)


@cache
def read_hcl(text: str) -> dict[str, Any]:
    """Return an HCL text as data. Each block type is a list of blocks."""
    import hcl2

    how = hcl2.SerializationOptions(
        with_comments=False, strip_string_quotes=True, explicit_blocks=False
    )
    return dict(hcl2.loads(text, serialization_options=how))


def _finding(rule: str, message: str, path: Path, word: str = "") -> Finding:
    """Return a finding about a rendered file or folder, by its place in packer/, at the first line
    with `word`."""
    path = path.resolve()
    lines = path.read_text("utf-8").splitlines() if word else []
    line = next((number for number, text in enumerate(lines, 1) if word in text), 1)
    top = next(part for part in path.parents if part.name == "packer")
    shown = f"{shown_packer()}/{path.relative_to(top).as_posix()}"
    hint = "correct the template in templates/packer/" if word else ""
    return Finding("error", rule, message, hint, file=shown, line=line)
