"""Tasks of the lab, the EC2 on this machine: lab.up, lab.down, lab.status, lab.shell, …"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke import Context

from kiln.base.errors import OPERATION_FAILED, KilnError, operation_failed
from kiln.cli.flags import JSON, NO_INSTALL
from kiln.cli.front import note, show, task, tell

if TYPE_CHECKING:
    from lab.settings import Lab

FORCE = {"force": "first end the builds that use the lab, and say which"}


@task(help={**NO_INSTALL, **JSON})
def up(c: Context, no_install: bool = False, json: bool = False) -> None:
    """Start the lab and print the endpoint that any AWS client can use."""
    from kiln.base import needs
    from lab import control, host, origin, settings, target

    host.can_run()
    needs.ensure("packer", "ssh", "lab", install=not no_install, say=note)
    differs = origin.difference(control.up())
    if differs:
        note(f"the lab runs and is in use; {differs} (./invoke lab.down ends it)")
    lab = settings.current()
    note(
        "a rendered folder by hand, in a shell with these variables: packer build "
        f"-var-file={target.by_hand(lab)} -var source_ami=ami-... FOLDER"
    )
    show(control.environment(lab), as_json=json, text=_exports)


@task(help={**FORCE, **JSON})
def down(c: Context, force: bool = False, json: bool = False) -> None:
    """Stop the lab: guests, mounts, bridge and NAT are removed, AMIs are kept."""
    from lab import control

    swept = control.down(force=force, say=note)
    text = "\n".join(f"took down {item}" for item in swept) or "the lab is down"
    tell({"took_down": swept}, as_json=json, text=text)


@task(help=JSON)
def status(c: Context, json: bool = False) -> int:
    """The lab's instances and AMIs; exit status 1 when the lab is down."""
    from lab import control, origin, settings

    state = control.status()
    if state is None:
        lab = settings.current()
        died_of = control.died_of(lab) or None
        show(
            {"running": False, "died_of": died_of},
            as_json=json,
            text=lambda _: _down(lab, died_of),
        )
        return OPERATION_FAILED
    state = {"running": True, **state, "differs": origin.difference(state)}
    show(state, as_json=json, text=_state)
    return 0


@task(help={"instance": "instance id (default: the only one that runs): --instance i-0123"})
def shell(c: Context, instance: str | None = None) -> int:
    """A root shell in a guest; its exit status is the shell's."""
    from lab import root_shell, settings

    return root_shell.shell(settings.current(), instance or _running_instance())


@task(help={"instance": "a guest's console instead of the lab's log: --instance i-0123", **JSON})
def logs(c: Context, instance: str | None = None, json: bool = False) -> None:
    """The lab's log, or a guest's console."""
    from lab import settings

    lab = settings.current()
    path = lab.instances / instance / "console.log" if instance else lab.log
    if not path.exists():
        raise KilnError(f"there is no log {path}", hint="./invoke lab.status lists the instances")
    text = path.read_text(errors="replace").removesuffix("\n")
    answer = {"instance": instance, "file": str(path), "lines": text.split("\n") if text else []}
    show(answer, as_json=json, text=lambda _: text)


@task(
    help={
        "action": "the EC2 action that fails, or boot: --action RunInstances",
        "code": "how: --code InsufficientInstanceCapacity",
        "times": "how many requests fail (default 1): --times 3",
        "match": "only requests with this parameter, can be repeated: "
        "--match InstanceType=p5.48xlarge",
        "message": "instead of EC2's text: --message 'no capacity'",
        "clear": "forget all failures that have not happened yet",
        **JSON,
    },
    iterable=["match"],
)
def fault(
    c: Context,
    match: list[str],
    action: str | None = None,
    code: str | None = None,
    times: int = 1,
    message: str | None = None,
    clear: bool = False,
    json: bool = False,
) -> None:
    """Make EC2 calls of the lab fail; prints the failures that have not happened yet."""
    from lab import control, settings

    if clear == bool(action or code or match or message):
        raise KilnError("name a failure, or --clear", hint="--action and --code: see docs/lab.md")
    wanted = {"action": action, "code": code, "times": times, "match": _pairs(match)}
    fault_fields = {name: value for name, value in wanted.items() if value is not None}
    if message:
        fault_fields["message"] = message
    path, body = ("faults/clear", {}) if clear else ("faults", fault_fields)
    try:
        left = control.call(settings.current(), path, body)
    except ValueError as error:
        raise KilnError(str(error)) from None
    except OSError as error:
        raise operation_failed(
            f"the lab does not answer: {error}", hint="start it: ./invoke lab.up"
        ) from None
    show(left, as_json=json, text=_faults)


@task(
    help={
        "bases": "also delete the root filesystems and packages that labs share",
        "all": "all labs and all that they changed here; names what AMI Kiln installed: --all",
        **FORCE,
        **JSON,
    }
)
def clean(
    c: Context,
    bases: bool = False,
    all: bool = False,  # noqa: A002 - the flag's name
    force: bool = False,
    json: bool = False,
) -> None:
    """`lab.down`, and delete the lab's AMIs, disks and logs."""
    from lab import control, uninstall

    if all:
        done = uninstall.remove_all_labs(force=force, say=note)
        show(done.as_json(), as_json=json, text=lambda _: uninstall.text(done))
        return
    removed = control.clean(bases=bases, force=force, say=note)
    text = "\n".join(f"removed {item}" for item in removed) or "there was nothing to remove"
    tell({"removed": removed}, as_json=json, text=text)


@task(
    name="import",
    help={
        "distro": "the distribution in the archive: --distro al2023",
        "rootfs": "tar archive or folder: --rootfs al2023.tar.xz",
        "mirror": "package mirror to install from: --mirror https://mirror.example/al2023",
        **NO_INSTALL,
        **JSON,
    },
)
def import_(
    c: Context,
    distro: str,
    rootfs: str | None = None,
    mirror: str | None = None,
    no_install: bool = False,
    json: bool = False,
) -> None:
    """Replace a stand-in root filesystem by a real one."""
    from kiln.base import needs
    from lab import host
    from lab.rootfs import importer

    host.can_run()
    if mirror:
        needs.ensure("lab_import", install=not no_install, say=note)
    base = importer.import_rootfs(distro, Path(rootfs) if rootfs else None, mirror)
    show(
        {"distro": distro, "rootfs": str(base)},
        as_json=json,
        text=lambda _: f"{distro} guests now boot from {base}",
    )


def _exports(variables: dict[str, str]) -> str:
    """What an AWS client needs, ready for `eval` or a copy."""
    return "\n".join(f"export {name}={shlex.quote(text)}" for name, text in variables.items())


def _pairs(words: list[str]) -> dict[str, str]:
    """["InstanceType=p5.48xlarge"] → {"InstanceType": "p5.48xlarge"}. Raises KilnError."""
    for word in words:
        if not word.partition("=")[0] or "=" not in word:
            raise KilnError(
                f"--match {word} is not a parameter and its value",
                hint="for example --match InstanceType=p5.48xlarge",
            )
    return dict(word.split("=", 1) for word in words)


def _faults(left: list[dict[str, Any]]) -> str:
    """The injected failures for a person."""
    lines = [
        f"{item['action']} fails {item['times']} times with {item['code']}"
        + "".join(f", {name}={value}" for name, value in item["match"].items())
        for item in left
    ]
    return "\n".join(lines) or "no failure is left"


def _down(lab: Lab, died_of: str | None) -> str:
    """`lab.status` for a person when the lab does not run."""
    if died_of:
        return f"the lab has died: {died_of} ({lab.log}); ./invoke lab.up starts it again"
    return "the lab is down; start it with ./invoke lab.up"


def _state(state: dict[str, Any]) -> str:
    """`lab.status` for a person."""
    instances = [
        f"  {item['id']}  {item['state']:<13} {item['instance_type']:<14} {item['address']:<12} "
        f"{item['distro']}  from {item['ami']}"
        for item in state["instances"]
    ]
    images = [f"  {item['id']}  {item['name']} ({item['region']})" for item in state["amis"]]
    title = f"lab {state['lab']} at {state['endpoint']}, up {state['seconds_up']:.0f} s"
    origin = state["differs"] or f"it runs the code of {state['checkout']}"
    return "\n".join([title, f"  {origin}", *instances, *images])


def _running_instance() -> str:
    """The id of the only instance that runs; raises KilnError when there is not exactly one."""
    from lab import control

    state = control.status() or {"instances": []}
    running = [item["id"] for item in state["instances"] if item["state"] == "running"]
    if not running:
        raise KilnError("0 guests are running", hint="start one with any AWS client: docs/lab.md")
    if len(running) > 1:
        raise KilnError(
            f"{len(running)} guests are running: {', '.join(running)}",
            hint=f"name one: ./invoke lab.shell --instance {running[0]}",
        )
    return str(running[0])
