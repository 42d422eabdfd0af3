"""The answer of `./invoke check`: findings for the matrix or for one combination."""

from __future__ import annotations

import shutil
import sys
from typing import Any

from kiln.base import vocabulary
from kiln.base.errors import INVALID_INPUT, KilnError
from kiln.base.findings import Finding, errors, findings_lines, gravest_last
from kiln.compat import engine
from kiln.compat.unconfirmed import RULE, unconfirmed_of_row
from kiln.components import rendered_files
from kiln.matrix import load
from kiln.publish import line_flags


def check_answer(versions: dict[str, str | None], *, strict: bool) -> dict[str, Any]:
    """Findings for a combination, or for the whole matrix if nothing is given.

    Returns {"findings": [Finding as JSON], "instance_types": [str], "unconfirmed_facts": their
    number}; for the matrix also "amis", their number, "unconfirmed_by_row", row → the number of
    unconfirmed facts that it rests on, and "replaced", the files of AMI Kiln in whose place
    overlays have one. Raises KilnError (exit status 2) for a combination without --distro or
    --driver, and for an invalid version or an unknown region.
    """
    chosen = {name: value for name, value in versions.items() if value is not None}
    if chosen:
        for name in ("distro", "driver"):
            if name not in chosen:
                raise KilnError(
                    f"a combination needs --{name}",
                    hint="./invoke check --distro al2 --driver 510.47.03, or no flags to check "
                    "the matrix",
                )
        _versions(chosen)
        return engine.check_combination(**chosen, strict=strict)  # type: ignore[arg-type]
    recipes = load.load_recipes()
    publishing = load.load_publishing()
    line_flags.require_regions(recipes, publishing.values())
    once = [
        *engine.check_matrix(recipes, strict=strict),
        *load.sharing_warnings(recipes, publishing, strict=strict),
    ]
    findings = [finding.as_json() for finding in once]
    rests_on = {recipe.name: unconfirmed_of_row(recipe) for recipe in recipes}
    types = sorted({kind for recipe in recipes for kind in recipe.target_instance_types})
    return {
        "amis": len(recipes),
        "findings": findings,
        "instance_types": types,
        "unconfirmed_facts": len({fact.message for found in rests_on.values() for fact in found}),
        "unconfirmed_by_row": {name: len(found) for name, found in rests_on.items()},
        "replaced": rendered_files.replaced_files(),
    }


# The formats of versions on the command line, with an example.
_VERSIONS = {
    "driver": (vocabulary.DRIVER, "580.178.04"),
    "cuda": (vocabulary.SERIES_OR_RELEASE, "13.0.2"),
    "nccl": (vocabulary.THREE_NUMBERS, "2.28.9"),
    "efa": (vocabulary.THREE_NUMBERS, "1.51.0"),
    "kubernetes": (vocabulary.KUBERNETES, "1.35"),
    "parallelcluster": (vocabulary.THREE_NUMBERS, "3.16.3"),
}
_OF_FLAVOR = {"kubernetes": "eks", "parallelcluster": "parallelcluster"}


def _versions(chosen: dict[str, str]) -> None:
    """Raises KilnError for an incomplete version, and for the version of another flavour."""
    for name, (form, example) in _VERSIONS.items():
        value = chosen.get(name)
        flavor = _OF_FLAVOR.get(name)
        if value is None:
            continue
        if flavor and chosen.get("flavor") != flavor:
            raise KilnError(
                f"--{name} is valid only for flavour {flavor}",
                hint=f"add --flavor {flavor}, or leave --{name} out",
            )
        if form.fits(value) or (value == engine.LATEST and not flavor):
            continue
        meant = engine.nearest_version(name, value)
        raise KilnError(
            f"--{name} {value} is not a version such as {example}",
            hint=f"did you mean {meant}?" if meant else "",
        )


def findings_text(answer: dict[str, Any], width: int | None = None) -> str:
    """The findings for a person, those of a rule together, errors last.

    `width` is the terminal's width in columns; a pipe gets unfolded lines.
    """
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    findings = gravest_last(Finding.from_json(entry) for entry in answer["findings"])
    count = len(errors(findings))
    lines = findings_lines(findings, width) if width else findings_lines(findings)
    lines += [""] if lines else []
    subject = f"{answer['amis']} AMIs" if "amis" in answer else "this combination"
    untried = "amis" not in answer and any(finding.rule == "UNTRIED" for finding in findings)
    verdict = "cannot work" if count else "untried" if untried else "valid"
    accepted = sum(finding.level == "accepted" for finding in findings)
    counts = f"{_counted(count, 'error')}, {_counted(len(findings) - count - accepted, 'warning')}"
    counts += f", {accepted} accepted" if accepted else ""
    lines.append(f"{subject}: {verdict} ({counts})")
    if "amis" not in answer and not count:
        lines.append(
            "not judged: whether its packages are published; that is told of rows (./invoke check, "
            "./invoke preflight)"
        )
    listed = any(finding.rule == RULE for finding in findings)
    if (number := answer["unconfirmed_facts"]) and not listed:
        by_row = answer.get("unconfirmed_by_row", {})
        rows = f" ({sum(map(bool, by_row.values()))} of {len(by_row)} AMIs)" if by_row else ""
        lines.append(f"{_counted(number, 'unconfirmed fact')}{rows}: see check --strict")
    if replaced := answer.get("replaced"):
        files = "a file" if len(replaced) == 1 else f"{len(replaced)} files"
        lines.append(f"the overlay replaces {files} of AMI Kiln:")
        lines += [f"  {ours} by {theirs}" for ours, theirs in replaced.items()]
    if answer["instance_types"] and "amis" not in answer:
        serves = "by the facts it would serve" if untried else "serves"
        lines.append(f"{serves}: {', '.join(answer['instance_types'])}")
    return "\n".join(lines)


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def exit_status(answer: dict[str, Any]) -> int:
    """2 if any finding is an error, since the matrix or combination is invalid input; else 0."""
    return INVALID_INPUT if any(entry["level"] == "error" for entry in answer["findings"]) else 0
