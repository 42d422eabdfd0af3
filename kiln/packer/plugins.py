"""The amazon plugin, which Packer loads from 1.7 on: which versions fit, which is used."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from kiln.base.errors import operation_failed
from kiln.packer.program import Packer, ask_packer, packer_facts, parse_version


def install_plugins(packer: Packer, folder: Path) -> str:
    """Install the plugin in plugins.pkr.hcl, unless the builders are compiled into Packer.

    Returns the version of the plugin that Packer will use; empty where the builders are compiled
    in. Raises KilnError (exit status 1) if none that fits is there or can be had.
    """
    if not packer.has_plugins:
        return ""
    done = ask_packer([str(packer.path), "init", "."], folder)
    installed = installed_plugins(packer)
    fitting = [version for version in installed if _fits(version)]
    if done.returncode or not fitting:
        plugin = packer_facts()["plugin"]
        listed = ", ".join(installed) or "none"
        raise operation_failed(
            f"{packer} has no plugin amazon that fits: wanted is >= {plugin['floor']}, "
            f"< {plugin['ceiling']}, installed: {listed}; it could not fetch one: "
            f"{_last_words(done)}",
            hint="`packer init .` downloads from github.com/hashicorp. Without access to GitHub, "
            "download the plugin (packer-plugin-amazon's release for this machine) on another "
            f"machine, then run: packer plugins install --path FILE {plugin['source']}",
        )
    return fitting[-1]


def described(packer: Packer) -> str:
    """Packer with the amazon plugin that it uses, if it loads one, for the record."""
    if not packer.has_plugins:
        return str(packer)
    fitting = [version for version in installed_plugins(packer) if _fits(version)]
    return f"{packer}, plugin amazon {fitting[-1] if fitting else 'not installed'}"


def installed_plugins(packer: Packer) -> list[str]:
    """The versions of the amazon plugin that Packer finds on this machine, oldest first."""
    done = ask_packer([str(packer.path), "plugins", "installed"])
    versions = re.findall(r"packer-plugin-amazon_v(\d+\.\d+\.\d+)_", done.stdout)
    return [
        ".".join(map(str, version))
        for version in sorted({parse_version(text) for text in versions})
    ]


def _fits(version: str) -> bool:
    plugin = packer_facts()["plugin"]
    return (
        parse_version(plugin["floor"]) <= parse_version(version) < parse_version(plugin["ceiling"])
    )


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit status {done.returncode}"
