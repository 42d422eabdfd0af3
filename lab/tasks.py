"""Tasks of the lab, the EC2 on this machine: lab.up, lab.down, lab.status, lab.shell, …"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from kiln.base.errors import OPERATION_FAILED, KilnError, operation_failed
from kiln.cli.output import log, output, table
from kiln.cli.task import task


@task("Lab", "lab.up")
def up(no_install: bool = False) -> None:
    """Start the lab and print variables for AWS clients.

    eval "$(./invoke lab.up)"
    """
    from lab import target
    from lab.base import origin, settings
    from lab.daemon import cell, control

    cell.enter(start=True)
    differs = origin.difference(control.up())
    if differs:
        log(f"the lab runs and is in use; {differs} (./invoke lab.down ends it)")
    lab = settings.current()
    log(
        "a rendered folder by hand, in a shell with these variables: nsenter --user --net "
        f"--preserve-credentials --target=$(cat {lab.root / cell.PROCESS}) packer build "
        f"-var-file={target.by_hand(lab)} -var source_ami=ami-... FOLDER"
    )
    variables = control.environment(lab)
    exports = [f"export {name}={shlex.quote(text)}" for name, text in variables.items()]
    output(variables, "\n".join(exports))


@task("Lab", "lab.down")
def down(force: bool = False) -> None:
    """Stop the lab; its AMIs stay.

    force: end the builds that use the lab first
    """
    from lab.daemon import cell, control

    cell.enter(used=True)
    swept = control.down(force=force, say=log)
    output({"took_down": swept}, *(f"took down {item}" for item in swept), "the lab is down")


@task("Lab", "lab.status")
def status() -> int:
    """Show the lab's instances and AMIs; exit 1 if it is down."""
    from lab.base import origin, settings
    from lab.daemon import cell, control

    cell.enter()
    state = control.status()
    if state is None:
        lab = settings.current()
        died_of = control.died_of(lab) or None
        text = "the lab is down; start it with ./invoke lab.up"
        if died_of:
            text = f"the lab has died: {died_of} ({lab.log}); ./invoke lab.up starts it again"
        output({"running": False, "died_of": died_of}, text)
        return OPERATION_FAILED
    differs = origin.difference(state)
    title = f"lab {state['lab']} at {state['endpoint']}, up {state['seconds_up']:.0f} s"
    code = f"  {differs or 'started from ' + state['checkout']}"
    keys = ("id", "state", "instance_type", "address", "distro", "ami")
    guests = [[f"  {item['id']}", *(item[key] for key in keys[1:])] for item in state["instances"]]
    amis = [[f"  {item['id']}", item["name"], item["region"]] for item in state["amis"]]
    answer = {"running": True, **state, "differs": differs}
    output(answer, title, code, table((), guests), table((), amis))
    return 0


@task("Lab", "lab.shell")
def shell(instance: str | None = None) -> int:
    """Open a root shell in a guest.

    instance: instance id (default: the only one that runs): --instance i-0123
    """
    from lab.base import settings
    from lab.daemon import cell, control, root_shell

    cell.enter()
    if instance is None:
        state = control.status() or {"instances": []}
        running = [item["id"] for item in state["instances"] if item["state"] == "running"]
        if len(running) != 1:
            if not running:
                raise KilnError("no guest is running", hint="start an instance: docs/lab.md")
            raise KilnError(
                f"{len(running)} guests are running", hint=f"--instance {' or '.join(running)}"
            )
        instance = str(running[0])
    return root_shell.shell(settings.current(), instance)


@task("Lab", "lab.logs")
def logs(instance: str | None = None) -> None:
    """Print the lab's log, or a guest's console.

    instance: a guest's console instead of the lab's log: --instance i-0123
    """
    from lab.base import settings

    lab = settings.current()
    path = lab.instances / instance / "console.log" if instance else lab.log
    if not path.exists():
        raise KilnError(f"there is no log {path}", hint="./invoke lab.status lists the instances")
    text = path.read_text(errors="replace").removesuffix("\n")
    lines = text.split("\n") if text else []
    output({"instance": instance, "file": str(path), "lines": lines}, text)


@task("Lab", "lab.fault")
def fault(
    match: list[str],
    action: str = "",
    code: str = "",
    times: int = 1,
    message: str = "",
    clear: bool = False,
) -> None:
    """Make EC2 calls of the lab fail; --clear ends it.

    ./invoke lab.fault --action RunInstances --code InsufficientInstanceCapacity --times 3

    action: the EC2 action that fails, or boot: --action RunInstances
    code: error code: --code InsufficientInstanceCapacity
    times: how many requests fail (default 1): --times 3
    match: only requests with this parameter, can be repeated: --match InstanceType=p5.48xlarge
    message: instead of EC2's text: --message 'no capacity'
    clear: drop all injected failures
    """
    from lab.base import settings
    from lab.daemon import cell, control

    cell.enter()
    if clear == bool(action or code or match or message):
        raise KilnError("specify --action and --code, or --clear", hint="see docs/lab.md")
    if wrong := [word for word in match if not re.match("[^=]+=", word)]:
        raise KilnError(f"--match {wrong[0]} is not PARAMETER=VALUE")
    wanted = {
        "action": action,
        "code": code,
        "times": times,
        "match": dict(word.split("=", 1) for word in match),
        "message": message,
    }
    path, body = ("faults/clear", {}) if clear else ("faults", wanted)
    try:
        left = control.call(settings.current(), path, body)
    except ValueError as error:
        raise KilnError(str(error)) from None
    except OSError as error:
        raise operation_failed(
            f"the lab does not answer: {error}", hint="start it: ./invoke lab.up"
        ) from None
    lines = [
        f"{item['action']} fails {item['times']} times with {item['code']}"
        + "".join(f", {name}={value}" for name, value in item["match"].items())
        for item in left
    ]
    output(left, "\n".join(lines) or "no failure is left")


@task("Lab", "lab.clean")
def clean(bases: bool = False, all: bool = False, force: bool = False) -> None:  # noqa: A002
    """Stop the lab and delete its AMIs, disks and logs.

    bases: also delete the root filesystems and packages that labs share
    all: all labs and all that they changed here; names what AMI Kiln installed: --all
    force: end the builds that use the lab first
    """
    from lab.daemon import cell, control, uninstall

    cell.enter(used=True)
    if all:
        done = uninstall.remove_all_labs(force=force, say=log)
        output(done, uninstall.text(done))
        return
    removed = control.clean(bases=bases, force=force, say=log)
    output({"removed": removed}, *(f"removed {item}" for item in removed or ["nothing"]))


@task("Lab", "lab.import")
def import_(
    distro: str, rootfs: str | None = None, mirror: str | None = None, no_install: bool = False
) -> None:
    """Replace a stand-in root filesystem with a real one.

    ./invoke lab.import al2023 --rootfs al2023.tar.xz

    distro: the distribution in the archive: --distro al2023
    rootfs: tar archive or folder: --rootfs al2023.tar.xz
    mirror: package mirror to install from: --mirror https://mirror.example/al2023
    """
    from lab.daemon import cell
    from lab.rootfs import importer

    cell.enter(start=True)
    base = importer.import_rootfs(distro, Path(rootfs) if rootfs else None, mirror)
    output({"distro": distro, "rootfs": str(base)}, f"{distro} guests now boot from {base}")
