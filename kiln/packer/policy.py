"""Rendered HCL → findings: what must hold whoever edited the template, read back by python-hcl2."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from kiln.base import tags
from kiln.base.findings import Finding
from kiln.packer.hclfile import Document, hcl_files, read, value_with

REQUIRED_TAGS = tags.OF_A_BAKE
TAGGED = ("tags", "snapshot_tags", "run_tags", "run_volume_tags")
WHOLE_INTERNET = ("0.0.0.0/0", "::/0")


def check(folder: Path) -> list[Finding]:
    """What is wrong with the HCL in a recipe's folder; empty when nothing is."""
    shown = f"{folder.parent.name}/{folder.name}"
    paths = hcl_files(folder)
    if not paths:
        return [Finding("error", "hcl-missing", f"{shown} holds no HCL", "run ./invoke render")]
    findings: list[Finding] = []
    documents: list[Document] = []
    for path in paths:
        found = read(path, f"{shown}/{path.relative_to(folder).as_posix()}")
        if isinstance(found, Finding):
            findings.append(found)
        else:
            documents.append(found)
    for document in documents:
        for rule in _RULES:
            findings += rule(document)
    findings += _plugin_pinned(shown, documents)
    return [replace(finding, rows=(folder.name,)) for finding in findings]


def _imdsv2(document: Document) -> Iterator[Finding]:
    if document.for_1_6:
        return
    for kind, name, source in document.sources():
        header = rf'^source "{kind}" "{name}"'
        options = (source.get("metadata_options") or [{}])[0]
        if options.get("http_tokens") != "required":
            yield document.finding(
                "imdsv2-required",
                "the build instance answers IMDSv1",
                'metadata_options { http_tokens = "required" }',
                header,
                r"^ *metadata_options",
                r"^ *http_tokens",
            )
        if source.get("imds_support") != "v2.0":
            yield document.finding(
                "imdsv2-required",
                "instances of the AMI answer IMDSv1 unless each launch says otherwise",
                'imds_support = "v2.0"',
                header,
                r"^ *imds_support",
            )


def _encrypted(document: Document) -> Iterator[Finding]:
    for kind, name, source in document.sources():
        volumes = source.get("launch_block_device_mappings") or [{}]
        for volume in volumes:
            if volume.get("encrypted") is not True:
                yield document.finding(
                    "root-encrypted",
                    f"volume {volume.get('device_name', 'of the parent AMI')} is not encrypted",
                    "encrypted = true in launch_block_device_mappings",
                    rf'^source "{kind}" "{name}"',
                    r"^ *launch_block_device_mappings",
                    r"^ *encrypted",
                )


def _closed_ingress(document: Document) -> Iterator[Finding]:
    for kind, name, source in document.sources():
        if not source.get("temporary_security_group_source_cidrs"):
            yield document.finding(
                "ingress-closed",
                "without temporary_security_group_source_cidrs Packer opens SSH to 0.0.0.0/0",
                "temporary_security_group_source_cidrs = var.ssh_source_cidrs",
                rf'^source "{kind}" "{name}"',
                r"^ *temporary_security_group_source_cidrs",
            )
    for block in document.data.get("variable", []):
        if block.get("ssh_source_cidrs", {}).get("default") == []:
            yield document.finding(
                "ingress-closed",
                "an empty ssh_source_cidrs opens SSH to 0.0.0.0/0",
                "give the variable no default",
                r'^variable "ssh_source_cidrs"',
                r"^ *default",
            )


def _no_open_cidr(document: Document) -> Iterator[Finding]:
    for cidr in WHOLE_INTERNET:
        if any(cidr in text for text in document.values()):
            yield document.finding(
                "ingress-closed",
                f"{cidr} lets the whole internet in",
                "name the addresses that build, or use ssh_interface = session_manager",
                value_with(re.escape(cidr)),
            )


def _nothing_latest(document: Document) -> Iterator[Finding]:
    for text in document.values():
        # A package may be called so and still be pinned: kmod-nvidia-latest-dkms=580.178.04.
        unpinned = re.sub(r"\b[a-z0-9-]*-latest-[a-z0-9-]+=\d[\w.]*", "", text)
        if re.search(r"\blatest\b", unpinned, re.IGNORECASE):
            yield document.finding(
                "no-latest",
                f"{_short(text)} takes whatever is newest on the day",
                "name a version",
                value_with("(?i:latest)"),
            )


def _no_secrets(document: Document) -> Iterator[Finding]:
    patterns = {
        "an AWS access key": r"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
        "a private key": r"BEGIN [A-Z ]*PRIVATE KEY",
        "an AWS account id": r"(?<![\w.-])\d{12}(?![\w.-])",
    }
    for what, pattern in patterns.items():
        if any(re.search(pattern, text) for text in document.values()):
            yield document.finding(
                "no-identity",
                f"{what} stands in the HCL",
                "pass it as a variable, or leave it to the AWS credential chain",
                value_with(pattern),
            )
    for _, _, source in document.sources():
        for attribute in ("access_key", "secret_key", "token"):
            if attribute in source:
                yield document.finding(
                    "no-identity",
                    f"{attribute} stands in the HCL",
                    "leave credentials to the AWS credential chain",
                    rf"^ *{attribute} *=",
                )


def _tagged(document: Document) -> Iterator[Finding]:
    shared = {
        tag
        for block in document.data.get("locals", [])
        for tag, value in block.get("tags", {}).items()
        if value
    }
    for kind, name, source in document.sources():
        for attribute in TAGGED:
            given = str(source.get(attribute, ""))
            present = {tag for tag in REQUIRED_TAGS if tag in given}
            if "local.tags" in given:
                present |= shared
            missing = [tag for tag in REQUIRED_TAGS if tag not in present]
            if missing:
                yield document.finding(
                    "tags-complete",
                    f"{attribute} lacks {', '.join(missing)}",
                    f"{attribute} = merge(local.tags, ...), with every tag in local.tags",
                    rf'^source "{kind}" "{name}"',
                    rf"^ *{attribute} ",
                )


def _files_exist(document: Document) -> Iterator[Finding]:
    for kind, attributes in document.provisioners():
        named = {"shell": ["script", "scripts"], "file": ["source", "sources"]}.get(kind, [])
        for attribute in named:
            given = attributes.get(attribute, [])
            for path in [given] if isinstance(given, str) else given:
                if not (document.folder / path).exists():
                    yield document.finding(
                        "provisioner-exists",
                        f"{path} does not exist",
                        "write it, or take its component out of kiln/components/__init__.py",
                        rf'^ *{attribute} *= .*"{re.escape(path)}"',
                    )


def _cleaned_last(document: Document) -> Iterator[Finding]:
    scripts = [
        Path(str(attributes.get("script", ""))).stem
        for kind, attributes in document.provisioners()
        if kind == "shell"
    ]
    if scripts and scripts[-2:] != ["cleanup", "hygiene"]:
        yield document.finding(
            "cleaned-last",
            f"{scripts[-1] or 'an inline script'} runs after the clean-up: keys and identities "
            "may come back",
            "let cleanup and hygiene be the last two provisioners, in this order",
            rf'^ *script *= .*/{re.escape(scripts[-1])}\.sh"',
        )


def _nothing_forced(document: Document) -> Iterator[Finding]:
    for _, _, source in document.sources():
        for attribute in ("force_deregister", "force_delete_snapshot"):
            if source.get(attribute, False) is not False:
                yield document.finding(
                    "nothing-forced",
                    f"{attribute} removes an AMI that may be in use",
                    f"{attribute} = false",
                    rf"^ *{attribute} ",
                )
        for attribute in ("ami_groups", "snapshot_groups"):
            if "all" in source.get(attribute, []):
                yield document.finding(
                    "not-public",
                    f"{attribute} makes the image public before it is verified",
                    "leave it out: publishing is a step of its own",
                    rf"^ *{attribute} ",
                )


def _manifest_kept(document: Document) -> Iterator[Finding]:
    for build in document.data.get("build", []):
        kinds = {kind for block in build.get("post-processor", []) for kind in block}
        if "manifest" not in kinds:
            yield document.finding(
                "manifest-kept",
                "there is no manifest: the AMI ids would have to be read off the log",
                'post-processor "manifest" { output = var.manifest }',
                r"^build ",
            )


def _plugin_pinned(shown: str, documents: list[Document]) -> Iterator[Finding]:
    used = {kind.split("-")[0] for d in documents for kind, _, _ in d.sources() if not d.for_1_6}
    for document in documents:
        for block in document.data.get("packer", []):
            for plugins in block.get("required_plugins", []):
                for name, plugin in plugins.items():
                    if not isinstance(plugin, dict):
                        continue
                    used.discard(name)
                    if not re.fullmatch(r"=? ?\d+\.\d+\.\d+", str(plugin.get("version", ""))):
                        yield document.finding(
                            "plugin-pinned",
                            f"plugin {name} may be {plugin.get('version', 'any version')!r}",
                            'name one version, such as version = "1.8.0"',
                            rf"^ *{name} *=",
                            r"^ *version",
                        )
    for name in sorted(used):
        file = f"{shown}/plugins.pkr.hcl"
        yield Finding(
            "error",
            "plugin-pinned",
            f"no required_plugins names the plugin {name} that the HCL uses",
            "run ./invoke render",
            file=file,
            line=1,
        )


Rule = Callable[[Document], Iterator[Finding]]
_RULES: tuple[Rule, ...] = (
    _no_open_cidr,
    _nothing_latest,
    _no_secrets,
    _imdsv2,
    _encrypted,
    _closed_ingress,
    _tagged,
    _files_exist,
    _cleaned_last,
    _nothing_forced,
    _manifest_kept,
)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
