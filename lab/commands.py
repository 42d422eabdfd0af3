"""The lab's tasks: what each prints and returns."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kiln.base import needs
from kiln.base.errors import KilnError
from lab import control, host, settings


def up(*, install: bool, as_json: bool) -> int:
    """Start the lab; print what an AWS client needs, ready for `eval` or a copy."""
    host.can_run()
    needs.ensure("packer", "ssh", "lab", install=install, say=_note)
    control.up()
    variables = control.environment(settings.current())
    if as_json:
        print(json.dumps(variables, indent=2))
    else:
        print("\n".join(f"export {name}={value}" for name, value in variables.items()))
    return 0


def down() -> int:
    """Stop the lab; say what was taken down."""
    swept = control.down()
    _note("\n".join(f"took down {item}" for item in swept) or "the lab is down")
    return 0


def status(*, as_json: bool) -> int:
    """Print the lab's instances and AMIs; 1 when it is down."""
    found = control.status()
    if as_json:
        print(json.dumps(found, indent=2))
    elif found is None:
        print("the lab is down; start it with ./invoke lab.up")
    else:
        print(f"lab {found['lab']} at {found['endpoint']}, up {found['seconds_up']:.0f} s")
        for one in found["instances"]:
            print(
                f"  {one['id']}  {one['state']:<13} {one['instance_type']:<14} {one['address']:<12}"
                f" {one['distro']}  from {one['ami']}"
            )
        for image in found["amis"]:
            print(f"  {image['id']}  {image['name']} ({image['region']})")
    return 0 if found else 1


def shell(instance: str) -> int:
    """A root shell in a guest; its exit status."""
    return control.shell(settings.current(), instance or _only_one())


def logs(instance: str) -> int:
    """Print the lab's log, or a guest's console."""
    lab = settings.current()
    path = lab.instances / instance / "console.log" if instance else lab.log
    if not path.exists():
        raise KilnError(f"there is no log {path}", hint="see ./invoke lab.status for ids")
    sys.stdout.write(path.read_text(errors="replace"))
    return 0


def clean(*, bases: bool) -> int:
    """Delete what the lab keeps."""
    swept = control.clean(bases=bases)
    _note("\n".join(f"removed {item}" for item in swept) or "there was nothing to remove")
    return 0


def import_(distro: str, rootfs: str | None, mirror: str | None) -> int:
    """Put a real root filesystem in place of a stand-in."""
    from lab import importer

    host.can_run()
    found = importer.import_rootfs(distro, Path(rootfs) if rootfs else None, mirror)
    print(f"{distro} guests now boot from {found}")
    return 0


def _only_one() -> str:
    found = control.status()
    on = [
        one["id"] for one in (found or {"instances": []})["instances"] if one["state"] == "running"
    ]
    if len(on) != 1:
        raise KilnError(
            f"{len(on)} guests are running" + (f": {', '.join(on)}" if on else ""),
            hint="name one: ./invoke lab.shell i-…" if on else "start one first",
        )
    return str(on[0])


def _note(text: str) -> None:
    print(text, file=sys.stderr)
