"""Overlays: folders with a company's own components, facts, rows and checks, beside the checkout's.

`KILN_OVERLAY` names them, separated by `:`; where two say the same, the last one counts. Without it
the overlay is `overlay/` in the checkout, if that exists. Whatever reads a kind of file that an
overlay may have asks here for the folders.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from kiln.base.errors import KilnError, did_you_mean
from kiln.base.findings import Place
from kiln.base.paths import AMI_TESTS, PROVISIONERS, ROOT

# What an overlay may have; anything else with one of the endings is a mistake in its name. So it is
# in the folders of which only some content is read.
_INSIDE = {"lab": ("packages.yaml",), "tests": ("ami",)}
CONTENT = ("amis.yaml", "components", "facts", "lab", "provisioners", "runtime", "tests")
_ENDINGS = (".yaml", ".yml", ".py", ".sh")


def overlays() -> tuple[Path, ...]:
    """The overlays in their order. Raises KilnError (exit status 2) for one that cannot be."""
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
            if path.name in CONTENT:
                _check_files(path)
            _check_entry(path)
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


def component_files(component: str) -> list[Path]:
    """The files that say what a component gives its script: the checkout's, then the overlays'."""
    module = ROOT / "kiln" / "components" / f"{component.replace('-', '_')}.py"
    own = [path for path in own_files("components/*") if path.stem.replace("_", "-") == component]
    return [path for path in (module, *own) if path.is_file()]


def ami_check_folders() -> tuple[Path, ...]:
    """The folders with checks of booted AMIs: the checkout's, then the overlays'."""
    return (AMI_TESTS, *(path for path in own_files("tests/ami") if path.is_dir()))


def shown_path(path: Path) -> str:
    """A path for messages: relative to the checkout if it is in it."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def shown_script(path: Path) -> str:
    """A provisioner, or a file of their library, for messages."""
    if path.is_relative_to(PROVISIONERS):
        return f"provisioners/{path.relative_to(PROVISIONERS).as_posix()}"
    return shown_path(path)


def overlay_mistake(
    path: Path, message: str, hint: str = "", line: int | None = None, column: int | None = None
) -> KilnError:
    """The error (exit status 2) for a mistake in a file of an overlay; without a line it is about
    the file as a whole."""
    place = Place(shown_path(path), line, column)
    return KilnError(f"{place}: {message}", hint=hint, place=place)


def _looks_like_content(path: Path) -> bool:
    """Is it what people mean something to be read of? Notes, hidden files and caches are not."""
    if path.name.startswith((".", "__")):
        return False
    return path.is_dir() or path.name.endswith(_ENDINGS)


def _check_entry(path: Path) -> None:
    """Refuse what nothing would read, and a check that would hide one of the checkout's."""
    name = path.name
    if name not in CONTENT and _looks_like_content(path):
        raise overlay_mistake(path, f"an overlay has no {name}", did_you_mean(name, CONTENT))
    if name in CONTENT and path.is_dir() != (not name.endswith(".yaml")):
        kind = "a file" if name.endswith(".yaml") else "a folder"
        raise overlay_mistake(path, f"{name} must be {kind}", "docs/overlay.md lists what it has")
    inside = _INSIDE.get(name)
    for entry in sorted(path.iterdir()) if inside else ():
        if entry.name not in (inside or ()) and _looks_like_content(entry):
            what = f"nothing reads {name}/{entry.name} of an overlay"
            raise overlay_mistake(entry, what, did_you_mean(entry.name, inside or ()))
    for entry in sorted(path.glob("ami/*.y*ml")) if name == "tests" else ():
        if entry.name != "mutations.yaml":
            what = f"nothing reads tests/ami/{entry.name} of an overlay"
            raise overlay_mistake(entry, what, did_you_mean(entry.name, ["mutations.yaml"]))
    for check in sorted(path.glob("ami/*.py")) if name == "tests" else ():
        if check.name.startswith("test_") and (AMI_TESTS / check.name).exists():
            hint = "give it the name of your component: test_acme_baseline.py for acme-baseline"
            raise overlay_mistake(check, f"tests/ami/{check.name} exists already", hint)
        _compile(check)


def _check_files(top: Path) -> None:
    """Refuse what would be skipped without a word, or could not be read: a link that leads nowhere,
    a folder or a device where a file is expected."""
    on_the_image = top.name == "runtime"
    for path in [top, *sorted(top.rglob("*"))]:
        # Editors leave such links beside a file that is open.
        if path.name.startswith(".") and not on_the_image:
            continue
        if path.is_symlink() and not path.exists():
            what = f"this link leads nowhere: {path.readlink()}"
            raise overlay_mistake(path, what, "correct the link, or remove it")
        if on_the_image and path != top and path.is_symlink() and path.is_dir():
            what = f"this is a link to a folder, of which nothing is installed: {path.readlink()}"
            raise overlay_mistake(path, what, "make it a folder with the files")
        if not on_the_image and path != top and path.is_dir() and path.name.endswith(_ENDINGS):
            what = f"this is a folder, where a file is expected: {path.name}"
            raise overlay_mistake(path, what, "docs/overlay.md lists what an overlay has")
        if not (path.is_file() or path.is_dir()):
            raise overlay_mistake(path, "this is neither a file nor a folder", "remove it")


def _compile(check: Path) -> None:
    """Refuse a check that is not valid Python: pytest would say so after the machine has booted."""
    try:
        compile(check.read_bytes(), str(check), "exec", dont_inherit=True)
    except SyntaxError as error:
        what = f"not valid Python: {error.msg}"
        raise overlay_mistake(check, what, line=error.lineno or 1) from None
    except (OSError, ValueError) as error:
        raise overlay_mistake(check, f"Python cannot read it: {error}") from None
