"""A build instance that is kept when its bake fails (`build --on-error keep`), and found again.

It ends itself at its deadline. Until then clean-ups leave the run's resources alone; after it, or
once the instance has ended, the next build in the checkout and `sweep` remove them.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import near
from kiln.base.tags import KEPT_UNTIL, RUN_ID
from kiln.base.times import as_time, utc_now
from kiln.cloud import aws, clean_up, runs
from kiln.cloud.access import forget_key
from kiln.cloud.runs import KeptRun
from kiln.cloud.target import Target
from kiln.components import cleanup
from kiln.pipeline.failure import ProvisionerError
from kiln.pipeline.plan import Plan
from kiln.pipeline.record import KeptInstance
from kiln.pipeline.record_draft import Draft
from kiln.pipeline.running_machine import Running, connected

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef

_FOR = timedelta(hours=4)
_TIMER = "kiln-kept"
# The host keys of what a run keeps, in its folder.
_KNOWN = "ssh/known_hosts"


def keep(plan: Plan, draft: Draft, error: ProvisionerError) -> bool:
    """Keep the run's build instance, say so in the error's hint, and note it in the record.

    Returns False if there is none that runs, if nobody can log in any more, or if EC2 or the disk
    refuses: then the run is cleaned up.
    """
    if not draft.launched:
        return False
    run, target = draft.run, draft.target
    until = _deadline()
    try:
        instance = _described(target, draft.launched[-1])
        if not instance or instance["State"]["Name"] != "running":
            return False
        kept = KeptRun(run.id, str(instance["InstanceId"]), until, run.state)
        running = machine(plan, kept, instance)
        if _is_locked(plan, kept, running, error):
            draft.progress.say(f"{kept.instance_id} is not kept: {_why_locked(plan)}")
            return False
        _tag(target, run.id, instance, until)
        run.keeps(kept.instance_id, until)
        ends = set_timer(running, run.id, kept.key_file)
    except (KilnError, OSError) as refused:  # a full disk, too
        draft.progress.say(f"the build instance cannot be kept: {refused}")
        return False
    note = KeptInstance(
        kept.instance_id, running.address, running.user, str(kept.key_file), until, ends
    )
    draft.record = replace(draft.record, kept=note)
    error.hint += "\n  " + "\n  ".join(how_to_go_on(plan, note, error.failure.component))
    return True


def renew(plan: Plan, kept: KeptRun) -> str:
    """A new deadline for all that is kept: a bake that goes on there must not lose it meanwhile.

    Raises KilnError (exit status 1) if EC2 refuses or the instance is gone, OSError if the disk
    refuses.
    """
    until = _deadline()
    instance = _described(plan.target, kept.instance_id)
    if not instance:
        raise operation_failed(f"the kept instance {kept.instance_id} is gone")
    _tag(plan.target, kept.run_id, instance, until)
    kept.run.keeps(kept.instance_id, until)
    return until


def _is_locked(plan: Plan, kept: KeptRun, running: Running, error: ProvisionerError) -> bool:
    """Whether nobody can log in to the machine, because its bake failed when `cleanup` had removed
    the keys."""
    order = plan.recipe.components
    late = error.failure.component in order[order.index(cleanup.COMPONENT.name) :]
    return late and not _ssh(running, kept.run_id, kept.key_file, "true")


def _why_locked(plan: Plan) -> str:
    why = f"{cleanup.COMPONENT.name} has removed the keys, so nobody can log in"
    if plan.target.bills:
        return why
    again = f"./invoke build --name {plan.recipe.name} --from {cleanup.COMPONENT.name}"
    return f"{why}; {again} begins with what the components before it made"


def keep_on(
    plan: Plan, draft: Draft, kept: KeptRun, running: Running, error: ProvisionerError
) -> None:
    """After one more failure there: a new deadline, noted in the record, and how to go on in the
    error's hint. What refuses it is only said, because the failure matters more. An instance to
    which nobody can log in any more is removed."""
    try:
        if _is_locked(plan, kept, running, error):
            draft.progress.say(f"{kept.instance_id} is kept no more: {_why_locked(plan)}")
            end_or_say(plan, kept, draft)
            return
        until = renew(plan, kept)
        ends = set_timer(running, kept.run_id, kept.key_file)
    except (KilnError, OSError) as refused:
        draft.progress.say(f"{kept.instance_id} has no new deadline: {refused}")
        return
    note = KeptInstance(
        kept.instance_id, running.address, running.user, str(kept.key_file), until, ends
    )
    draft.record = replace(draft.record, kept=note)
    error.hint += "\n  " + "\n  ".join(how_to_go_on(plan, note, error.failure.component))


def how_to_go_on(plan: Plan, kept: KeptInstance, component: str) -> list[str]:
    """The lines that say what is kept, until when, and what can be done with it."""
    key_file = near(Path(kept.key_file))
    key, known_hosts = (
        shlex.quote(str(path)) for path in (key_file, key_file.with_name("known_hosts"))
    )
    ends = "then it ends itself" if kept.ends_itself else "its own end could not be scheduled"
    return [
        f"kept: {kept.instance_id} until {kept.until}, {ends}",
        f"  ssh -i {key} -o IdentitiesOnly=yes -o UserKnownHostsFile={known_hosts} "
        f"{kept.user}@{kept.address}",
        f"  go on there: ./invoke build --name {plan.recipe.name} --from {component}",
        "  end it now: sudo poweroff on it; what is left then, the next build here removes",
    ]


def kept_of(plan: Plan) -> KeptRun | None:
    """The newest kept instance of the plan's row here that has not ended."""
    place = plan.target.kind, plan.target.place, plan.target.region
    for kept in runs.kept(plan.recipe.name, place):
        instance = _described(plan.target, kept.instance_id)
        if instance and instance["State"]["Name"] not in ("terminated", "shutting-down"):
            return kept
    return None


def has_ended(kept: KeptRun, target: Target) -> bool:
    """Whether the instance is gone. Raises KilnError (exit status 1) if EC2 does not answer."""
    instance = _described(target, kept.instance_id)
    return not instance or instance["State"]["Name"] in ("terminated", "shutting-down")


def running_machine(plan: Plan, kept: KeptRun) -> Running:
    """The kept machine. Raises KilnError (exit status 1) unless it runs and is the run's."""
    instance = _described(plan.target, kept.instance_id) or {}
    state = instance.get("State", {}).get("Name", "gone")
    mine = {"Key": RUN_ID, "Value": kept.run_id} in instance.get("Tags", [])
    if state != "running" or not mine:
        raise operation_failed(
            f"the kept instance {kept.instance_id} is {state if mine else 'not of that run'}",
            hint="start it again, or end it: the next build without it begins from the parent AMI",
        )
    return machine(plan, kept, instance)


def machine(plan: Plan, kept: KeptRun, instance: dict[str, Any]) -> Running:
    """The instance as ssh finds it."""
    inside = plan.account.ssh_interface == "private_ip"
    public = None if inside else instance.get("PublicIpAddress")
    address = str(public or instance["PrivateIpAddress"])
    return Running(kept.instance_id, plan.recipe.distro.ssh_user, address)


def set_timer(running: Running, run_id: str, key: Path) -> bool:
    """Make the machine end itself at a deadline from now; whether it will."""
    seconds = int(_FOR.total_seconds())
    return _ssh(
        running,
        run_id,
        key,
        f"sudo -n systemd-run --unit={_TIMER} --on-active={seconds} systemctl poweroff",
    )


def stop_timer(running: Running, run_id: str, key: Path) -> bool:
    """Take the deadline off the machine while it is used; whether it answers."""
    return _ssh(running, run_id, key, f"sudo -n systemctl stop {_TIMER}.timer; true")


def _ssh(running: Running, run_id: str, key: Path, command: str) -> bool:
    with connected(running, run_id, key.parent.parent, str(key), known_hosts=_KNOWN) as there:
        return there.ssh(command, timeout=60)[0] == 0


def _deadline() -> str:
    return as_time(utc_now() + _FOR)


def _described(target: Target, instance_id: str) -> dict[str, Any] | None:
    from botocore.exceptions import ClientError

    with aws.explained(f"{instance_id} could not be looked up in {target.region}"):
        try:
            answer = aws.ec2(target).describe_instances(InstanceIds=[instance_id])
        except ClientError as error:
            if "InvalidInstanceID" in error.response["Error"].get("Code", ""):
                return None
            raise
    instances: list[Any] = [i for r in answer["Reservations"] for i in r["Instances"]]
    return dict(instances[0]) if instances else None


def _tag(target: Target, run_id: str, instance: dict[str, Any], until: str) -> None:
    """The deadline, on all that the run keeps."""
    with aws.explained("the deadline of what is kept could not be set"):
        client = aws.ec2(target)
        devices = instance.get("BlockDeviceMappings", [])
        ids = [instance["InstanceId"], *(device["Ebs"]["VolumeId"] for device in devices)]
        mine: list[FilterTypeDef] = [{"Name": f"tag:{RUN_ID}", "Values": [run_id]}]
        groups = client.describe_security_groups(Filters=mine)["SecurityGroups"]
        ids += [group["GroupId"] for group in groups]
        ids += [key["KeyPairId"] for key in client.describe_key_pairs(Filters=mine)["KeyPairs"]]
        client.create_tags(Resources=ids, Tags=[{"Key": KEPT_UNTIL, "Value": until}])


def end_or_say(plan: Plan, kept: KeptRun, draft: Draft) -> None:
    """Remove the kept instance and all else of its run; what stays is said and tried again."""
    try:
        removal = _end(plan.target, kept)
    except KilnError as error:
        draft.progress.say(f"{kept.instance_id} was not removed: {error}")
        return
    if removal.failures:
        draft.progress.say("\n".join(removal.failures))


def _end(target: Target, kept: KeptRun) -> clean_up.Removal:
    removal = clean_up.remove(kept.run_id, target, amis=False, launched=[kept.instance_id])
    if not removal.failures:
        forget_key(kept.run)
        kept.run.settled()
    return removal
