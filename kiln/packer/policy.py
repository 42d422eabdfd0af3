"""Rendered HCL → findings: checks that the HCL, read back as data, follows the policy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kiln.base import tags
from kiln.base.findings import Finding
from kiln.facts import table
from kiln.packer.hclfile import Document, Template, blocks_in, read_folder, value_with
from kiln.packer.staleness import renewal, shown_packer

REQUIRED_TAGS = tags.OF_A_BAKE
TAGGED = ("tags", "snapshot_tags", "run_tags", "run_volume_tags")
WHOLE_INTERNET = ("0.0.0.0/0", "::/0")


def check_policy(folder: Path) -> list[Finding]:
    """The violations in an AMI's folder, for both versions of Packer.

    Findings name the file with the text, even if the folder only links to it.
    """
    shown = f"{shown_packer()}/{folder.name}"
    templates, findings = read_folder(folder)
    if not findings:
        findings = [finding for template in templates for finding in _incomplete(template, folder)]
    for template in templates:
        for rule in _RULES:
            findings += rule(template)
    findings += _plugin_pinned(shown, templates[0])
    # The two folders share most of their files.
    return [replace(finding, rows=(folder.name,)) for finding in dict.fromkeys(findings)]


def _incomplete(template: Template, folder: Path) -> Iterator[Finding]:
    lacks = [kind for kind in ("variable", "source", "build") if not any(template.blocks(kind))]
    if lacks:
        path = f"{folder.parent.name}/{template.folder.relative_to(folder.parent).as_posix()}"
        message = f"{path} has no block {' and no block '.join(lacks)}"
        yield Finding("error", "hcl-missing", message, f"run {renewal()}")


def _imdsv2(template: Template) -> Iterator[Finding]:
    if template.for_1_6:
        return
    for document, kind, name, source in template.sources():
        header = rf'^source "{kind}" "{name}"'
        options = (blocks_in(source, "metadata_options") or [{}])[0]
        if options.get("http_tokens") != "required":
            yield document.finding(
                "imdsv2-required",
                "the build instance allows IMDSv1",
                'metadata_options { http_tokens = "required" }',
                header,
                r"^ *metadata_options",
                r"^ *http_tokens",
            )
        if source.get("imds_support") != "v2.0":
            yield document.finding(
                "imdsv2-required",
                "instances of the AMI allow IMDSv1 unless each launch forbids it",
                'imds_support = "v2.0"',
                header,
                r"^ *imds_support",
            )


def _encrypted(template: Template) -> Iterator[Finding]:
    for document, kind, name, source in template.sources():
        volumes = blocks_in(source, "launch_block_device_mappings") or [{}]
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


def _closed_ingress(template: Template) -> Iterator[Finding]:
    for document, kind, name, source in template.sources():
        if not source.get("temporary_security_group_source_cidrs"):
            yield document.finding(
                "ingress-closed",
                "without temporary_security_group_source_cidrs Packer opens SSH to 0.0.0.0/0",
                "temporary_security_group_source_cidrs = var.ssh_source_cidrs",
                rf'^source "{kind}" "{name}"',
                r"^ *temporary_security_group_source_cidrs",
            )
    for document, block in template.blocks("variable"):
        if block.get("ssh_source_cidrs", {}).get("default") == []:
            yield document.finding(
                "ingress-closed",
                "an empty ssh_source_cidrs opens SSH to 0.0.0.0/0",
                "give the variable no default",
                r'^variable "ssh_source_cidrs"',
                r"^ *default",
            )


def _no_open_cidr(template: Template) -> Iterator[Finding]:
    for document in template.documents:
        for cidr in WHOLE_INTERNET:
            if any(cidr in text for text in document.values()):
                yield document.finding(
                    "ingress-closed",
                    f"{cidr} opens SSH to the whole internet",
                    "name the builders' addresses, or use ssh_interface = session_manager",
                    value_with(re.escape(cidr)),
                )


def _nothing_latest(template: Template) -> Iterator[Finding]:
    for document, text in ((each, text) for each in template.documents for text in each.values()):
        # A package name may contain it and still be pinned: kmod-nvidia-latest-dkms=580.178.04.
        unpinned = re.sub(r"\b[a-z0-9-]*-latest-[a-z0-9-]+=\d[\w.]*", "", text)
        if re.search(r"\blatest\b", unpinned, re.IGNORECASE):
            yield document.finding(
                "no-latest",
                f"{_short(text)} means whatever is newest at build time",
                "name a version",
                value_with("(?i:latest)"),
            )


def _no_secrets(template: Template) -> Iterator[Finding]:
    patterns = {
        "an AWS access key": r"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
        "a private key": r"BEGIN [A-Z ]*PRIVATE KEY",
        "an AWS account id": r"(?<![\w.-])\d{12}(?![\w.-])",
    }
    for document in template.documents:
        for what, pattern in patterns.items():
            if any(re.search(pattern, text) for text in document.values()):
                yield document.finding(
                    "no-identity",
                    f"the HCL contains {what}",
                    "pass it as a variable, or leave it to the AWS credential chain",
                    value_with(pattern),
                )
    for document, _, _, source in template.sources():
        for attribute in ("access_key", "secret_key", "token"):
            if attribute in source:
                yield document.finding(
                    "no-identity",
                    f"the HCL sets {attribute}",
                    "leave credentials to the AWS credential chain",
                    rf"^ *{attribute} *=",
                )


def _tagged(template: Template) -> Iterator[Finding]:
    _, tags = template.local("tags") or (None, {})
    with_value: list[str] | str = str(tags)  # those of an expression are in its text
    if isinstance(tags, dict):
        with_value = [tag for tag, value in tags.items() if value]
    shared = {tag for tag in REQUIRED_TAGS if tag in with_value}
    for document, kind, name, source in template.sources():
        for attribute in TAGGED:
            expression = str(source.get(attribute, ""))
            present = {tag for tag in REQUIRED_TAGS if tag in expression}
            if "local.tags" in expression:
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


def _files_exist(template: Template) -> Iterator[Finding]:
    listed = template.components()
    for document, kind, attributes in template.provisioners():
        if _skipped(attributes, listed):
            continue
        named = {"shell": ["script", "scripts"], "file": ["source", "sources"]}.get(kind, [])
        for attribute in named:
            files = attributes.get(attribute, [])
            for path in [files] if isinstance(files, str) else files:
                if not template.path(path).exists():
                    yield document.finding(
                        "provisioner-exists",
                        f"{path} does not exist",
                        "write it, or remove its component from kiln/components/__init__.py",
                        rf'^ *{attribute} *= .*"{re.escape(path)}"',
                    )


def _components_baked(template: Template) -> Iterator[Finding]:
    listed = template.local("components")
    if listed is None:
        for document in template.documents[:1]:
            yield document.finding(
                "components-baked",
                "no file here lists the AMI's components",
                f"run {renewal()}",
            )
        return
    baked = {name for name, _ in _scripts(template)}
    for name in template.components():
        if name not in baked:
            yield listed[0].finding(
                "components-baked",
                f"component {name} has no provisioner: Packer would silently leave it out",
                "add its provisioner to templates/packer/build.pkr.hcl.j2, or correct its name",
                rf'^ *"?{re.escape(name)}"? *=',
            )


def _cleaned_last(template: Template) -> Iterator[Finding]:
    scripts = list(_scripts(template))
    if scripts and [name for name, _ in scripts[-2:]] != ["cleanup", "hygiene"]:
        last, document = scripts[-1]
        yield document.finding(
            "cleaned-last",
            f"{last or 'an inline script'} runs last, not cleanup and hygiene: keys and "
            "identities may come back",
            "make cleanup and hygiene the last two provisioners, in this order",
            rf'^ *script *= .*/{re.escape(last)}\.sh"',
        )


def _scripts(template: Template) -> Iterator[tuple[str, Document]]:
    """Name and file of each shell script that runs for this AMI, in order; inline: no name."""
    listed = template.components()
    for document, kind, attributes in template.provisioners():
        if kind == "shell" and not _skipped(attributes, listed):
            yield Path(str(attributes.get("script", ""))).stem, document


def _skipped(attributes: dict[str, Any], listed: dict[str, Any]) -> bool:
    """Does the AMI lack the component that a provisioner is limited to?"""
    match = re.search(r'local\.runs_on, "([\w-]+)"', str(attributes.get("only", "")))
    return match is not None and match[1] not in listed


def _nothing_forced(template: Template) -> Iterator[Finding]:
    for document, _, _, source in template.sources():
        for attribute in ("force_deregister", "force_delete_snapshot"):
            if source.get(attribute, False) is not False:
                yield document.finding(
                    "nothing-forced",
                    f"{attribute} removes an AMI that may be in use",
                    f"{attribute} = false",
                    rf"^ *{attribute} ",
                )
        for attribute in ("ami_groups", "snapshot_groups"):
            if "all" in (source.get(attribute) or []):
                yield document.finding(
                    "not-public",
                    f"{attribute} makes the image public before it is verified",
                    "leave it out: publishing is a separate step",
                    rf"^ *{attribute} ",
                )


def _manifest_kept(template: Template) -> Iterator[Finding]:
    for document, build in template.blocks("build"):
        kinds = {kind for block in blocks_in(build, "post-processor") for kind in block}
        if "manifest" not in kinds:
            yield document.finding(
                "manifest-kept",
                "there is no manifest: the AMI ids would only be in the log",
                'post-processor "manifest" { output = var.manifest }',
                r"^build ",
            )


# One version, or a floor and a ceiling.
_NUMBER = r"\d+\.\d+\.\d+"
_PINNED = re.compile(rf"=? ?{_NUMBER}|>= ?{_NUMBER}, ?< ?{_NUMBER}")


def _plugin_range() -> str:
    """The versions of the amazon plugin that this pipeline takes, as HCL writes them."""
    plugin = table("packer")["plugin"]
    return f">= {plugin['floor']}, < {plugin['ceiling']}"


def _plugin_pinned(shown: str, template: Template) -> Iterator[Finding]:
    used = {kind.split("-")[0] for _, kind, _, _ in template.sources()}
    for document, block in template.blocks("packer"):
        for plugins in blocks_in(block, "required_plugins"):
            for name, plugin in plugins.items():
                used.discard(name)
                version = str(plugin.get("version", "") if isinstance(plugin, dict) else plugin)
                if not _PINNED.fullmatch(version):
                    yield document.finding(
                        "plugin-pinned",
                        f"plugin {name} may change: {version or 'any version'!r}",
                        f'name a floor and a ceiling, such as version = "{_plugin_range()}", '
                        "or one version",
                        rf"^ *{name} *=",
                        r"^ *version",
                    )
    for name in sorted(used):
        yield Finding(
            "error",
            "plugin-pinned",
            f"no required_plugins names the plugin {name} that the HCL uses",
            f"run {renewal()}",
            file=f"{shown}/plugins.pkr.hcl",
            line=1,
        )


Rule = Callable[[Template], Iterator[Finding]]
_RULES: tuple[Rule, ...] = (
    _no_open_cidr,
    _nothing_latest,
    _no_secrets,
    _imdsv2,
    _encrypted,
    _closed_ingress,
    _tagged,
    _files_exist,
    _components_baked,
    _cleaned_last,
    _nothing_forced,
    _manifest_kept,
)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
