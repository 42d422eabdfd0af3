"""Overlays: folders with a company's own components, facts, rows and checks, beside the checkout's.

`KILN_OVERLAY` names them, separated by `:`; where two say the same, the last one counts. Without it
the overlay is `overlay/` in the checkout, if that exists. Whatever reads a kind of file that an
overlay may have asks here for the folders.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from kiln.base.errors import KilnError, Place, did_you_mean
from kiln.base.paths import AMI_TESTS, PROVISIONERS, ROOT

CONTENT = ("amis.yaml", "components", "facts", "lab", "provisioners", "runtime", "tests")


def overlays() -> tuple[Path, ...]:
    """The overlays in their order."""
    return _folders(os.environ.get("KILN_OVERLAY"))


@cache
def _folders(named: str | None) -> tuple[Path, ...]:
    if named is None:
        folders = [own] if (own := ROOT / "overlay").is_dir() else []
    else:
        folders = [Path(text).absolute() for text in named.split(":") if text]
    for folder in folders:
        if not folder.is_dir():
            raise KilnError(
                f"KILN_OVERLAY names {folder}, which is not a folder",
                hint="make it (docs/overlay.md), or correct the variable",
            )
        for path in sorted(folder.iterdir()):
            name = path.name
            readable = path.is_dir() or path.suffix in (".yaml", ".yml", ".py", ".sh")
            if readable and name not in CONTENT and not name.startswith((".", "__")):
                hint = did_you_mean(name, CONTENT)
                raise overlay_mistake(path, f"an overlay has no {name}", hint)
        for check in sorted(folder.glob("tests/ami/test_*.py")):
            if (AMI_TESTS / check.name).exists():
                hint = "give it the name of your component: test_acme_baseline.py"
                raise overlay_mistake(check, f"tests/ami/{check.name} exists already", hint)
            try:  # pytest would complain only after the machine has booted
                compile(check.read_bytes(), str(check), "exec", dont_inherit=True)
            except SyntaxError as error:
                what = f"not valid Python: {error.msg}"
                raise overlay_mistake(check, what, line=error.lineno) from None
    return tuple(folders)


def own_files(pattern: str) -> list[Path]:
    """The files of all overlays that match a pattern: by overlay, then by name."""
    return [path for folder in overlays() for path in sorted(folder.glob(pattern))]


def provisioner_file(component: str) -> Path:
    """The script of a component: an overlay's, otherwise the checkout's. It may not exist; then it
    is where it should be, beside the component."""
    name = f"{component}.sh"
    own = [path for path in own_files(f"provisioners/{name}") if path.is_file()]
    if own:
        return own[-1]
    for stem in {component, component.replace("-", "_")}:
        for path in own_files(f"components/{stem}.*"):
            return path.parents[1] / "provisioners" / name
    return PROVISIONERS / name


def ami_check_folders() -> tuple[Path, ...]:
    """The folders with checks of booted AMIs: the checkout's, then the overlays'."""
    return (AMI_TESTS, *(path for path in own_files("tests/ami") if path.is_dir()))


def shown_path(path: Path) -> str:
    """A path for messages: relative to the checkout if it is in it."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def overlay_mistake(
    path: Path, message: str, hint: str = "", *, line: int | None = None
) -> KilnError:
    """The error for a mistake in a file of an overlay; without a line it is about the file as a
    whole."""
    place = Place(shown_path(path), line)
    return KilnError(f"{place}: {message}", hint=hint, place=place)
