"""The policy of rendered HCL: what every AMI's builder, build and values must say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kiln.base import tags
from kiln.base.findings import Finding
from kiln.packer.program import FOLDER_1_6
from kiln.packer.staleness import shown_packer

REQUIRED_TAGS = tags.OF_A_BAKE
TAGGED = ("tags", "snapshot_tags", "run_tags", "run_volume_tags")
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
            shown = f"{shown_packer()}/{file.relative_to(folder.parent.resolve()).as_posix()}"
            hint = "correct the template in templates/packer/"
            violations[rule, shown, message] = Finding(
                "error", rule, message, hint, (folder.name,), shown, line
            )
    return list(violations.values())


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
    volumes = source.get("launch_block_device_mappings") or [{}]
    public = "the image would be public or removed before anybody has verified it"
    rules = {
        "the build instance allows IMDSv1": (
            "imdsv2-required",
            "http_tokens",
            not imds or options.get("http_tokens") == "required",
        ),
        "instances of the AMI allow IMDSv1": (
            "imdsv2-required",
            "imds_support",
            not imds or source.get("imds_support") == "v2.0",
        ),
        "a volume is not encrypted": (
            "root-encrypted",
            "encrypted",
            all(volume.get("encrypted") is True for volume in volumes),
        ),
        "Packer would open SSH to 0.0.0.0/0": (
            "ingress-closed",
            "temporary_security_group_source_cidrs",
            bool(source.get("temporary_security_group_source_cidrs")),
        ),
    }
    for message, (rule, attribute, kept) in rules.items():
        if not kept:
            yield _Violation(rule, _SOURCE, attribute, message)
    for attribute in ("access_key", "secret_key", "token"):
        if attribute in source:
            yield _Violation("no-identity", _SOURCE, attribute, f"the HCL sets {attribute}")
    for attribute in ("force_deregister", "force_delete_snapshot", "ami_groups", "snapshot_groups"):
        if source.get(attribute):
            yield _Violation("not-public", _SOURCE, attribute, f"{attribute}: {public}")
    for attribute in TAGGED:
        if "local.tags" not in str(source.get(attribute)):
            yield _Violation("tags-complete", _SOURCE, attribute, f"{attribute} lacks local.tags")


def _values(data: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Each text value and the key that holds it, without prose."""
    if isinstance(data, dict):
        for name, value in data.items():
            if name not in _PROSE:
                yield from _values(value, name)
    elif isinstance(data, list):
        for value in data:
            yield from _values(value, key)
    elif isinstance(data, str):
        yield key, data
