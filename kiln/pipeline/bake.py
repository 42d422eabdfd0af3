"""Runs Packer on one recipe's HCL: its variables, its events, the AMI, why it failed."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from kiln.base import processes
from kiln.base.account import Account
from kiln.base.errors import KilnError, operation_failed
from kiln.base.overlay import provisioner_file, shown_path
from kiln.base.paths import near, short_path
from kiln.base.processes import Stop
from kiln.base.progress import Stage
from kiln.cloud import aws, cleanup
from kiln.cloud.instance import ssh_address, ssh_timeout
from kiln.cloud.network import Access, Launch, launches, launches_left, no_capacity
from kiln.cloud.runs import Run
from kiln.facts.tables import message
from kiln.packer.process import BuildResult, Event, run_build, waits_for
from kiln.packer.program import Packer
from kiln.packer.render import account_variables, time_limit, write_inputs
from kiln.pipeline.draft import Draft, ProvisionerError
from kiln.pipeline.plan import Plan
from kiln.pipeline.record import Failure

_LAST_LINES = 6
# A script ends with `kiln: COMPONENT: ERROR: …` and indented lines about it, one of which is
# `at: COMPONENT.sh line N` (provisioners/lib/kiln.sh). Packer only says that a script failed.
_ERROR = re.compile(r"kiln: [\w-]+: ERROR: (.*)")
_DETAIL = re.compile(r"kiln: [\w-]+:   (.*)")
_PLACE = re.compile(r"at: [\w-]+\.sh line (\d+)")


def bake(plan: Plan, packer: Packer, draft: Draft, access: Access, stage: Stage, stop: Stop) -> str:
    """Run Packer on a plan's HCL, on the first of its instance types that EC2 has; the AMI's id,
    which the draft notes with the type and each component's seconds."""
    target, run, network = plan.target, draft.run, access.network
    variables: dict[str, Any] = {
        **run_variables(plan, run, draft.record.git_commit),
        "source_ami": plan.source.ami_id,
        "ami_name": f"{plan.recipe.name}-{run.id}",
        "ssh_source_cidrs": list(network.source_cidrs),
        "security_group_ids": list(access.security_groups),
        "ssh_keypair_name": access.key_name,
        "ssh_interface": _interface(plan.account, access),
    }
    # In the run's own folder, so that a concurrent edit in the checkout has no effect.
    folder = write_inputs(plan.rendered, run.folder)
    left = launches(plan.account, target, plan.instance_types, network.subnets)
    again = not plan.options.keep_instance
    while True:
        launch = left[0]
        output = PackerOutput(plan, packer, stage, draft)
        before = len(draft.launched)
        given = {**variables, **_launch_variables(launch, packer)}
        result = _run_packer(output, folder, given, access.key_file, stop)
        answer = next(filter(no_capacity, result.errors), "").strip()
        if answer or len(draft.launched) > before:
            draft.tried(launch.tried("bake", plan.account, answer))
        if again and any(map(message("packer", "unknown_ami").search, result.errors)):
            again = False
            stage.say("Packer gave up on its AMI, which EC2 did not know yet: baking once more")
            cleanup.remove_images(run.id, target)
            continue
        left = launches_left(left, answer)
        if not (result.exit_status and answer and left) or result.interrupted:
            break
        stage.say(f"{launch} cannot be had ({answer}): next {left[0]}")
    draft.cut_short = result.cut_short
    if result.interrupted:
        stop.check()
    if result.exit_status or target.region not in result.amis:
        error = error_of(output, result, network.hint)
        if plan.options.keep_instance:
            error.hint += f"\n  {keep_instance(plan, draft, access)}"
        raise error
    ami_id = result.amis[target.region]
    draft.note(
        ami_id=ami_id,
        amis={target.region: ami_id},
        instance_type=launch.instance_type,
        component_seconds=output.reader.seconds(),
    )
    return ami_id


def run_variables(plan: Plan, run: Run, git_commit: str) -> dict[str, Any]:
    """The HCL variables that say which run this is, of which commit, where, by which settings, and
    how long SSH may take."""
    return {
        "run_id": run.id,
        "git_commit": git_commit,
        "target": plan.target.kind,
        "recipe_digest": plan.recipe_digest,
        "input_digest": plan.input_digest,
        "region": plan.target.region,
        "ssh_timeout": f"{ssh_timeout()}s",
        **account_variables(plan.account),
    }


def _run_packer(
    output: PackerOutput, folder: Path, variables: dict[str, Any], key_file: Path, stop: Stop
) -> BuildResult:
    """One run of Packer on a folder of HCL. Its log is the run's packer.log."""
    plan, packer, run = output.plan, output.packer, output.draft.run
    var_files, environment = plan.target.hooks.packer_inputs(run.folder, plan.recipe)
    with short_path(run.id, run.folder) as short:
        # Packer reads {{ in a path as a template, and leaves its log behind when it is killed.
        (short / "key").symlink_to(key_file.absolute())
        return run_build(
            packer,
            folder,
            log=run.folder / "packer.log",
            manifest=run.folder / "manifest.json",
            variables={**variables, "ssh_private_key_file": str(short / "key")},
            var_files=var_files,
            on_event=output.read,
            stop=stop,
            environment={
                **environment,
                **processes.run_environment(run.id),
                "TMPDIR": str(short),
            },
            on_error="abort" if plan.options.keep_instance else "cleanup",
        )


def keep_instance(plan: Plan, draft: Draft, access: Access) -> str:
    """Keep the build instance from the clean-up; the lines that say how to reach and remove it."""
    live = []
    with contextlib.suppress(KilnError), aws.explained("the build instance was not found"):
        live = cleanup.live_instances(aws.ec2(plan.target), draft.run.id)
    instance = next((each for each in live if each["State"]["Name"] == "running"), None)
    if instance is None:
        return "no build instance is running, so none is kept"
    groups = (group["GroupId"] for group in instance["SecurityGroups"])
    draft.kept = (instance["InstanceId"], *groups)
    address = ssh_address(instance, access.network.ssh_interface)
    known = near(access.key_file).with_name("known_hosts")
    options = [*("-i", str(near(access.key_file))), *("-o", "IdentitiesOnly=yes")]
    options += ["-o", f"UserKnownHostsFile={known}"]
    login = shlex.join(["ssh", *options, f"{plan.recipe.distro.ssh_user}@{address}"])
    if access.network.by_session:
        login = f"aws ssm start-session --region {plan.target.region} --target {address}"
    return (
        f"kept: {draft.kept[0]}, which runs until you remove it\n    {login}\n"
        f"    remove it: ./invoke sweep --run {draft.run.id} --target {plan.target.kind} "
        f"--regions {plan.target.region} --apply"
    )


def _interface(account: Account, access: Access) -> str:
    """Return how Packer reaches the instance; empty: by its public address, if it has one."""
    inside = access.network.ssh_interface == "private_ip"
    return account.ssh_interface or ("private_ip" if inside else "")


def _launch_variables(launch: Launch, packer: Packer) -> dict[str, str]:
    """The variables of one try."""
    if launch.reservation and not packer.has_plugins:
        raise KilnError(
            f"{packer} cannot launch in the capacity reservation {launch.reservation}",
            hint="use a newer Packer, or bake on another type: --instance-type c7i.4xlarge",
        )
    return {
        "instance_type": launch.instance_type,
        "subnet_id": launch.subnet_id or "",
        "capacity_reservation_id": launch.reservation or "",
    }


class PackerOutput:
    """Reads Packer's events: notes launches and what is waited for, finds out how a provisioner
    failed, and how long each took."""

    def __init__(self, plan: Plan, packer: Packer, stage: Stage, draft: Draft) -> None:
        self.plan, self.packer, self.draft = plan, packer, draft
        self.reader = FailureReader()
        self._stage = stage
        self._instance = "the build instance"

    def read(self, event: Event) -> None:
        """Take a line of Packer's."""
        if event.kind in ("say", "message", "error") and not event.says("limit"):
            self._stage.line(event.text)
        if what := waits_for(event, self._instance):
            limit = ssh_timeout() if event.says("waits_for_ssh") else None
            if event.component:
                limit = time_limit(self.plan.account, event.component)
            self._stage.waits_for(what, limit=limit)
        self.reader.read(event)
        if event.instance_id:
            self._instance = f"instance {event.instance_id}"
            if event.instance_id not in self.draft.launched:
                self.draft.launched.append(event.instance_id)


class FailureReader:
    """Reads how a provisioner failed, if one did, from Packer's events."""

    def __init__(self) -> None:
        self._starts: list[tuple[str, int]] = []
        self._last = 0
        self._start("")

    def _start(self, component: str) -> None:
        self._component = component
        self._line: int | None = None
        self._messages: list[str] = []
        self._details: list[str] = []
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        # Whether Packer has begun to clean up.
        self._over = False
        # Packer's first error of this component; what follows may be of its clean-up.
        self.first_error = ""

    def read(self, event: Event) -> None:
        """Take one line of Packer's output."""
        self._last = max(self._last, event.seconds)
        if event.component or event.says("stops_instance"):
            self._starts.append((event.component or "", event.seconds))
            self._start(event.component or "")
        elif event.kind == "say":
            self._over = not event.says("runs_script")
        elif event.says("exit_status", "error") or event.says("aborts", "error"):
            self._over = True
        elif event.kind in ("message", "error"):
            if event.kind == "error":
                self.first_error = self.first_error or event.text
            for line in () if self._over else event.text.splitlines():
                self._take(line.rstrip())

    def _take(self, line: str) -> None:
        error, detail = _ERROR.match(line), _DETAIL.match(line)
        if error:
            self._messages.append(error[1])
        elif detail and self._messages:
            place = _PLACE.fullmatch(detail[1])
            self._line = int(place[1]) if place else self._line
            self._details += [] if place else [detail[1]]
        elif line and not self._messages and line not in self._said:
            self._said.append(line)

    def seconds(self) -> dict[str, float]:
        """Component → the seconds from its start to the next one's, or to the end of the bake.

        A reboot counts for the component that asked for it.
        """
        ends = [*self._starts[1:], ("", self._last)]
        return {
            name: float(max(0, end - start))
            for (name, start), (_, end) in zip(self._starts, ends, strict=False)
            if name
        }

    def failure(self, packers_words: str) -> Failure | None:
        """The failure of the provisioner that ran last, None if none did; `packers_words` is
        Packer's own last error."""
        if not self._component:
            return None
        return Failure(
            self._component,
            shown_path(provisioner_file(self._component)),
            "; ".join(dict.fromkeys(self._messages)) or packers_words,
            self._line,
            tuple(self._details),
            tuple(self._said),
        )


def error_of(output: PackerOutput, result: BuildResult, unreached: str) -> KilnError:
    """Return why a bake failed; `unreached` is the hint for an instance that Packer does not
    reach."""
    plan, run, log = output.plan, output.draft.run, output.draft.run.folder / "packer.log"
    messages = [line for line in result.errors if line.strip()]
    last = messages[-1] if messages else "see its log"
    failure = output.reader.failure(last)
    if failure:
        hints = plan.target.hooks.about_failure(failure.missing, plan.recipe)
        failure = replace(failure, details=(*failure.details, *hints))
        return ProvisionerError(plan.recipe.name, failure, log=str(log))
    if output.reader.first_error not in last:
        last = f"{output.reader.first_error}; {last}"
    with contextlib.suppress(KilnError):
        last = "; ".join([last, *cleanup.ended_by_ec2(plan.target, run.id)])
    unreached = unreached if message("packer", "no_ssh").search(last) else ""
    hints = (aws.hint_in(last), unreached, f"the whole log: {log}")
    return operation_failed(
        f"{plan.recipe.name}: packer build failed: {aws.without_encoded(last)}",
        hint="\n  ".join(filter(None, hints)),
    )


def finish_image(plan: Plan, ami_id: str) -> None:
    """Set what Packer 1.6 cannot, so that the AMI is the same with every version of Packer."""
    with aws.explained(f"{ami_id} could not be set to IMDSv2 by default"):
        # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-IMDS-new-instances.html
        aws.ec2(plan.target).modify_image_attribute(ImageId=ami_id, ImdsSupport={"Value": "v2.0"})
