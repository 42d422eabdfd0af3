"""The steps of an acceptance: a table of what each does, costs and calls.

All that a walk makes carries the id of one of its runs, or a name of its own: channels, AMIs and
settings that were there before stay as they are.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

from kiln import consume, facts
from kiln.base import tags
from kiln.base.account import Account
from kiln.base.errors import KilnError, operation_failed
from kiln.base.recipe import Recipe
from kiln.base.vocabulary import as_time, utc_now
from kiln.cli import build, matrix, release, telemetry
from kiln.cli.options import BuildSettings, Kernel, LaunchSettings, Place, Rows
from kiln.cli.output import FORMAT, log
from kiln.cloud import aws, cleanup, images, network, runs, session, stacks
from kiln.cloud.target import Target
from kiln.compat.which import rows_for
from kiln.fleet import machines, status
from kiln.fleet.document import DOCUMENT, fleet_bucket
from kiln.fleet.install import HowToInstall, wait_for_reports
from kiln.matrix import flags, load
from kiln.matrix.model import Publish
from kiln.pipeline.evidence import Evidence, Outcome, StepResult
from kiln.pipeline.records import all_of
from kiln.publish import channels, copies, lines, promote, publish, retire
from kiln.publish.regions import in_regions
from kiln.telemetry.settings import Telemetry

UNKNOWN = float("inf")
# What EC2 answers where an account may not launch a type, or there is none left.
_NO_QUOTA = ("VcpuLimitExceeded", "InsufficientInstanceCapacity", "Unsupported")
# Seconds that CloudWatch and Systems Manager have.
_PATIENCE = 900
_MIG = "p4d.24xlarge"
_NO_PROFILE = "no instance profile: neither the stack's nor iam_instance_profile"
# https://docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id.html
_PLAIN = (
    "/aws/service/deeplearning/ami/{arch}/"
    "base-oss-nvidia-driver-gpu-amazon-linux-2023/latest/ami-id"
)
# The log groups of telemetry, unless settings name others.
_GROUPS = "/ec2/accelerated/"


class SkippedError(Exception):
    """A step is not possible here; the message says why."""


@dataclass
class Acceptance:
    """A walk: its request, and the resources it has made.

    `rows` are built, and the first is released: or, instead, copies of `ami`. `runs` are the ids
    that its resources carry, `amis` its verified AMIs of that row, `profile` is for instances that
    report, of which `launched` is one; `logs`: there were no log groups before its stack.
    """

    target: Target
    place: Place
    rows: list[Recipe]
    second_region: str
    run: runs.Run
    ami: str | None = None
    mig: bool = False
    runs: list[str] = field(default_factory=list)
    amis: list[str] = field(default_factory=list)
    profile: str = ""
    launched: str = ""
    network: dict[str, Any] = field(default_factory=dict)
    logs: bool = False

    @cached_property
    def name(self) -> str:
        """The name of its channel and of its stack, which nobody else has."""
        return f"acceptance-{self.run.id[-4:]}"

    @cached_property
    def line(self) -> lines.Line:
        """The line of the row, with channels of its own; nothing is shared."""
        theirs, names = load.load_publishing()[self.rows[0].name], (f"{self.name}-new", self.name)
        own: dict[str, Any] = {"channels": names, "regions": (self.second_region,)}
        return lines.Line(self.rows[0], Publish(**own, kms_keys=theirs.kms_keys, sign=theirs.sign))

    @cached_property
    def account(self) -> Account:
        """The `aws` settings of its launches."""
        return flags.overridden(self.rows[0].row.account, flags.NOTHING, self.rows[0].arch)

    @cached_property
    def types(self) -> dict[str, list[str]]:
        """The instance types that steps run at once. Of a build it is the dearer one; `other` is
        the cheapest of another family that the row serves."""
        row, own = self.rows[0], self.rows[0].verify_instance_type
        others = [each for each in facts.instances() if each.split(".")[0] != own.split(".")[0]]
        served = (t for t in sorted(others, key=_price) if rows_for(t, [row])["serves"])
        built = [max(r.instance_type, r.verify_instance_type, key=_price) for r in self.rows]
        kinds = {"own": [own], "other": [next(served, own)], "first": built[:1]}
        return {"": [], "build": [own] if self.ami else built, "mig": [_MIG] * self.mig, **kinds}


@dataclass(frozen=True)
class Step:
    """A step. It runs instances of `types` for so many minutes, and makes copies to another region.
    One that `cleans` is done whatever has failed."""

    id: str
    what: str
    do: Callable[[Acceptance], str]
    types: str = ""
    minutes: float = 0
    copies: int = 0
    cleans: bool = False

    def usd(self, made: Acceptance, seconds: float | None = None) -> float:
        """Return what it costs by list prices, and if all blocks of a disk are in use: as it is
        expected, or when it takes so long."""
        hours = (self.minutes * 60 if seconds is None else seconds) / 3600
        moved = float(facts.table("ec2-prices")["transfer"]["usd_per_gb"]) * self.copies
        moved *= made.rows[0].volume.size
        return round(sum(map(_price, made.types[self.types])) * hours + moved, 4)


def _price(instance_type: str) -> float:
    return float(facts.table("ec2-prices")["instances"]["hourly"].get(instance_type, UNKNOWN))


def shown_usd(usd: float) -> str:
    """Return a price as a step announces it; snapshots and CloudWatch cost cents in an hour."""
    return "unknown price" if usd == UNKNOWN else f"about ${usd:.2f}" if usd else "cents"


def usual_row() -> Recipe:
    """Return the cheapest row: x86_64, base, one kernel module, and of the cheapest type."""

    def rank(row: Recipe) -> tuple[Any, ...]:
        plain = (row.arch, row.flavor, row.kernel_module) == ("x86_64", "base", "open")
        return not plain, _price(row.verify_instance_type)

    return min(load.load_recipes(), key=rank)


def walk(made: Acceptance, steps: Sequence[Step], budget: float) -> Iterator[StepResult]:
    """Do the steps. After one that fails or would pass the budget only the clean-up follows."""
    ended, spent = "", 0.0
    for number, step in enumerate(steps, 1):
        estimate, about = step.usd(made), f"{number}/{len(steps)} {step.id}: "
        if not (ended or step.cleans) and spent + estimate > budget:
            ended = f"{step.id} ({shown_usd(estimate)}) would pass the budget of ${budget:.2f}"
        if ended and not step.cleans:
            yield StepResult(id=step.id, outcome="skipped", detail=f"not run: {ended}")
            continue
        log(f"{about}{step.what.format(made=made)} ({shown_usd(estimate)})")
        began = time.monotonic()
        outcome, detail = _do(made, step)
        log(f"{about}{outcome}: {detail}")
        seconds = round(time.monotonic() - began, 1)
        usd = 0 if outcome == "skipped" else step.usd(made, seconds)
        took = {"seconds": seconds, "estimated_usd": estimate, "usd": usd}
        yield StepResult(id=step.id, outcome=outcome, detail=detail, **took)
        spent += usd
        ended = ended or (f"{step.id} failed" if outcome == "failed" else "")


def _do(made: Acceptance, step: Step) -> tuple[Outcome, str]:
    try:
        return "passed", step.do(made)
    except SkippedError as why:
        return "skipped", str(why)
    except KilnError as error:
        return "failed", error.message
    except (Exception, KeyboardInterrupt) as error:  # nothing may leave an instance running
        log(traceback.format_exc())
        return "failed", repr(error)


def accept(asked: Acceptance, budget: float) -> Evidence:
    """Walk through an account; return the evidence. The next build in this checkout removes what a
    killed walk left in its first region, except AMIs of its builds, channels and the stack."""
    with runs.started("acceptance", asked.target) as run:
        made = replace(asked, run=run, runs=[run.id])
        results = tuple(walk(made, STEPS, budget))
        if results[-1].outcome == "passed":
            run.mark_clean()
    about = {"region": made.target.region, "second_region": made.second_region}
    about |= {"date": as_time(utc_now())[:10], "git_commit": runs.git_commit()}
    return Evidence(**about, rows=tuple(row.name for row in made.rows), steps=results)


# The steps


def _task(task: Any, *arguments: Any, line: str = "", **flags: Any) -> str:
    """Do what a task does; return the line that it prints with this word, or the last one."""
    printed, FORMAT.json = io.StringIO(), False
    with contextlib.redirect_stdout(printed):
        failed = task.body.__wrapped__(*arguments, **flags)
    log(printed.getvalue().rstrip())
    said = [each.strip() for each in printed.getvalue().rstrip().split("\n")]
    found = next((each for each in said if line and line in each), said[-1])
    if failed:
        raise operation_failed(found)
    return found


@contextlib.contextmanager
def _possible(*codes: str) -> Iterator[None]:
    """While inside, errors with one of these codes say that a step is not possible here."""
    try:
        yield
    except KilnError as error:
        if any(code in error.message for code in codes):
            raise SkippedError(error.message) from None
        raise


def _preflight(made: Acceptance) -> str:
    if made.ami:
        raise SkippedError("nothing is baked: --ami")
    rows = [Rows(name=row.name) for row in made.rows]
    return "; ".join(_task(matrix.preflight, row, region=made.target.region) for row in rows)


def _build(made: Acceptance) -> str:
    if made.ami:
        return _verified_copy(made, made.ami, made.rows[0].verify_instance_type)
    return "; ".join(_built(made, row) for row in made.rows)


def _built(made: Acceptance, row: Recipe, **settings: Any) -> str:
    before = {record.run_id for record in all_of(row.name)}
    how = {"place": made.place, "baking": build.Baking(), "kernel": Kernel()}
    try:
        how["settings"] = BuildSettings(**settings)
        said = _task(build.build, Rows(name=row.name), **how, line="checks")
    finally:
        new = [record for record in all_of(row.name) if record.run_id not in before]
        made.runs += [record.run_id for record in new]
    made.amis += [str(r.ami_id) for r in new if r.status == "verified" and row == made.rows[0]]
    return f"{new[0].ami_id}: {said}"


def _verified_copy(made: Acceptance, ami_id: str, instance_type: str) -> str:
    """Make an AMI like this one, which carries the walk's id, and verify it on a type."""
    source = images.require_image(made.target, ami_id)
    if (row := source.tags.get(tags.RECIPE)) != made.rows[0].name:
        raise operation_failed(f"{ami_id} is not of {made.rows[0].name}: --name {row}")
    # `publish` gives copies a tag of their origin.
    not_ours = ("aws:", tags.RUN_ID, tags.SOURCE_IMAGE)
    others = {key: text for key, text in source.tags.items() if not key.startswith(not_ours)}
    listed = cleanup.tags(made.run.id, **others)
    tagged = [{"ResourceType": kind, "Tags": listed} for kind in ("image", "snapshot")]
    with aws.explained(f"{ami_id} could not be copied"):
        wanted = {"SourceImageId": ami_id, "SourceRegion": made.target.region}
        wanted["Name"] = f"{row}-{len(made.amis)}-{made.run.id}"
        ec2 = aws.client("ec2", made.target)
        copy = ec2.copy_image(**wanted, TagSpecifications=tagged)["ImageId"]
    copies.wait_for_copy(made.target, copy)
    said = _verified(made, copy, instance_type)
    made.amis.append(copy)
    return said


def _verified(made: Acceptance, ami_id: str, instance_type: str) -> str:
    how = {"place": made.place, "settings": LaunchSettings(), "kernel": Kernel()}
    said = _task(build.verify, ami_id, instance_type=instance_type, **how, line="checks")
    return f"{ami_id} on {instance_type}: {said}"


def _verify(made: Acceptance) -> str:
    with _possible(*_NO_QUOTA):
        return _verified_copy(made, made.amis[0], made.types["other"][0])


def _publish(made: Acceptance) -> str:
    done = publish.publish_row(made.line, made.target, ami_id=made.amis[0], say=log)
    return f"{', '.join(done.release.images)} hold {done.release.ami_name}"


def _promote(made: Acceptance, line: lines.Line | None = None) -> str:
    done = promote.promote_line(line or made.line, made.name, made.target, accept=True, say=log)
    gates = "; ".join(f"{gate.name}: {gate.evidence}" for gate in done.gates)
    if not done.allowed:
        raise operation_failed(f"a gate is closed: {gates}")
    return gates


def _roll_back(made: Acceptance) -> str:
    if len(made.amis) < 2:
        raise SkippedError("there is one release only: no second AMI is verified")
    line = replace(made.line, settings=made.line.settings.model_copy(update={"regions": ()}))
    publish.publish_row(line, made.target, ami_id=made.amis[1], say=log)
    _promote(made, line)
    back = promote.roll_back(made.line, made.name, made.target, say=log)
    if (held := back.release.images[made.target.region]) != made.amis[0]:
        raise operation_failed(f"the channel holds {held}, not {made.amis[0]}")
    return f"from {made.amis[1]} to {made.amis[0]}"


def _deploy(made: Acceptance) -> str:
    made.profile = made.account.iam_instance_profile or ""
    inputs = telemetry.Inputs(made.types["own"], [], made.rows[0].name)
    with aws.explained("the log groups could not be listed"):
        groups = aws.client("logs", made.target).describe_log_groups(logGroupNamePrefix=_GROUPS)
    made.logs = not groups["logGroups"]
    with _possible("InvalidAction"):  # an endpoint without CloudFormation
        _task(telemetry.deploy, made.name, [], inputs=inputs, place=made.place)
    outputs = stacks.stack_outputs(stacks.find_stack(made.target, made.name))
    made.profile = outputs["InstanceProfile"]
    with aws.explained("the dashboard could not be read"):
        name = outputs["DashboardName"]
        answer = aws.client("cloudwatch", made.target).get_dashboard(DashboardName=name)
    return f"its dashboard has {len(json.loads(answer['DashboardBody'])['widgets'])} widgets"


def _launch(made: Acceptance) -> str:
    """Launch the document as a person does, who replaces the group, and adds a subnet and tags."""
    where, profile = (made.line.name, made.name, made.target.region), made.profile or None
    request = consume.launch_request(*where, row=made.line, instance_profile=profile)
    access = network.make_access(made.run, made.target, made.account, efa=bool(request.cards))
    document = json.loads(consume.KINDS["launch-template-json"].document(request))
    data, own = document["LaunchTemplateData"], cleanup.tags(made.run.id, **made.account.tags)
    subnet = {"SubnetId": access.network.subnets[0]} if access.network.subnets[0] else {}
    for each in data.get("NetworkInterfaces", [data]):
        key = "Groups" if request.cards else "SecurityGroupIds"
        each |= {key: list(access.security_groups), **(subnet if request.cards else {})}
    for each in data["TagSpecifications"]:
        each["Tags"] += own
    document["TagSpecifications"] = [{"ResourceType": "launch-template", "Tags": own}]
    made.network = {"SecurityGroupIds": list(access.security_groups), **subnet}
    template = {"LaunchTemplateName": document["LaunchTemplateName"]}
    with aws.explained("the launch template could not be made"):
        aws.client("ec2", made.target).create_launch_template(**document)
    own_network = {} if request.cards else subnet
    made.launched, image_id = _started(made, LaunchTemplate=template, **own_network)
    if image_id != made.amis[0]:
        raise operation_failed(f"{made.launched} runs {image_id}, not {made.amis[0]}")
    return f"{made.launched} runs {image_id}, and passes EC2's status checks"


def _started(made: Acceptance, **request: Any) -> tuple[str, str]:
    """Launch an instance, and wait until it passes EC2's status checks; its id and its AMI's."""
    ec2, every = aws.client("ec2", made.target), made.target.wait_seconds
    with aws.explained("an instance could not be launched"):
        instance = ec2.run_instances(MinCount=1, MaxCount=1, **request)["Instances"][0]
        ids = [instance["InstanceId"]]
        aws.wait(ec2, "instance_status_ok", limit=_PATIENCE, every=every, InstanceIds=ids)
    return instance["InstanceId"], instance["ImageId"]


def _reachable(made: Acceptance, instance_id: str) -> machines.FleetMachine:
    """Wait until Systems Manager reaches an instance; before, a command to it is for nobody."""
    (found,) = machines.find_machines(made.target, {"instance-id": [instance_id]})
    deadline = time.monotonic() + _PATIENCE
    while not status.online([found], machines.managed_machines(made.target, [instance_id])):
        if time.monotonic() > deadline:
            raise operation_failed(f"Systems Manager does not reach {instance_id}")
        time.sleep(made.target.wait_seconds)
    return found


def _report(made: Acceptance) -> str:
    """Write a test event as the driver does, and read it and a GPU metric back."""
    if not made.profile or "cloudwatch-agent" not in made.rows[0].components:
        raise SkippedError(f"{_NO_PROFILE}, or no CloudWatch agent on the row")
    due = {made.launched: status.FleetStatus(_reachable(made, made.launched))}
    said, began = f"14, pid=1, name={made.name}-{made.launched}, test", utc_now()
    # The agent keeps a file's last line for a while.
    commands = [f"echo 'NVRM: Xid (PCI:0000:00:0{n}): {said}' >/dev/kmsg" for n in range(2)]
    shell, batch = {"DocumentName": "AWS-RunShellScript"}, ([made.launched], {"commands": commands})
    answers = machines.run_command(made.target, shell, [batch], patience=_PATIENCE, say=log)
    why = {key: answer.why for key, answer in answers.items() if not answer.ok}
    how = HowToInstall(Telemetry(**made.rows[0].telemetry), patience=_PATIENCE)
    if why := why or wait_for_reports(made.target, how, due, made.name, began, log):
        raise operation_failed(f"{made.launched}: {why[made.launched]}")
    return f"a test event in {how.settings.log_group}, a GPU metric in {how.settings.namespace}"


def _install(made: Acceptance) -> str:
    """Install telemetry on an instance of AWS's own image with a driver, and remove it."""
    if not made.profile:
        raise SkippedError(_NO_PROFILE)
    own, kinds = cleanup.tags(made.run.id, **made.account.tags), ("instance", "volume")
    plain = _PLAIN.format(arch=made.rows[0].arch)
    with _possible("ParameterNotFound"), aws.explained(f"no AMI: {plain}"):
        ami_id = aws.ssm(made.target).get_parameter(Name=plain)["Parameter"]["Value"]
    request = {"ImageId": ami_id, **made.network}
    request |= {"InstanceType": made.types["own"][0], "IamInstanceProfile": {"Name": made.profile}}
    request["TagSpecifications"] = [{"ResourceType": kind, "Tags": own} for kind in kinds]
    instances = telemetry.Instances(_started(made, **request)[0])
    stored, s3 = fleet_bucket(made.target), aws.client("s3", made.target)
    with aws.explained("the documents and buckets could not be listed"):
        ours = [{"Key": "Name", "Values": [DOCUMENT]}]
        before = aws.client("ssm", made.target).list_documents(Filters=ours)["DocumentIdentifiers"]
        buckets = [each["Name"] for each in s3.list_buckets()["Buckets"]]
    settings = Telemetry(**made.rows[0].telemetry)
    sinks = telemetry.Agent(namespace=settings.namespace, log_group=settings.log_group)
    try:
        _reachable(made, instances.targets)
        return _task(telemetry.install, instances, settings=sinks, place=made.place)
    finally:
        _task(telemetry.uninstall, instances, clean=not before, place=made.place)
        if not before and stored not in buckets:
            gone = contextlib.suppress(s3.exceptions.NoSuchBucket)
            with aws.explained(f"the bucket {stored} could not be deleted"), gone:
                s3.delete_bucket(Bucket=stored)


def _by_session(made: Acceptance) -> str:
    if made.ami or not made.profile or not shutil.which(session.PLUGIN):
        raise SkippedError(f"needs a row to build, an instance profile, and {session.PLUGIN}")
    how = {"ssh_interface": network.SESSION_MANAGER, "iam_instance_profile": made.profile}
    return _built(made, made.rows[0], **how)


def _slices(made: Acceptance) -> str:
    if not (made.mig and rows_for(_MIG, made.rows[:1])["serves"]):
        raise SkippedError(f"not asked for (--mig), or {_MIG} is not for the row")
    with _possible(*_NO_QUOTA):
        return _verified(made, made.amis[0], _MIG)


# The clean-up


def _terminate(made: Acceptance) -> str:
    network.forget_key(made.run)
    return _removed([cleanup.remove(made.run.id, made.target, amis=False)])


def _removed(removals: Sequence[cleanup.Removal]) -> str:
    if left := [each for removal in removals for each in removal.left]:
        failures = dict.fromkeys(why for removal in removals for why in removal.failures)
        raise operation_failed(f"left: {', '.join(left)}: {'; '.join(failures)}")
    return ", ".join(each for removal in removals for each in removal.removed) or "nothing is left"


def _delete_stack(made: Acceptance) -> str:
    with _possible("InvalidAction"):
        return _task(telemetry.delete, made.name, with_logs=made.logs, place=made.place)


def _own(made: Acceptance, place: Target) -> list[images.Image]:
    return [image for image in images.own_images(place) if image.tags[tags.RUN_ID] in made.runs]


def _retire(made: Acceptance) -> str:
    """Delete the channels, and take every step of a retirement at once for the walk's own AMIs."""
    kinds = (channels.image_parameter, channels.release_parameter)
    names = [kind(made.line.name, name) for name in made.line.settings.channels for kind in kinds]

    def retire_there(there: Target) -> str:
        done = list[retire.Going]()
        with aws.explained(f"the channels could not be deleted in {there.region}"):
            aws.ssm(there).delete_parameters(Names=names)
        for step in get_args(retire.RetireStep)[:3]:
            own = [retire.Going(each.ami_id, there.region, step, "") for each in _own(made, there)]
            done += retire.retire(there, retire.Retirement(tuple(own))).would
        if errors := dict.fromkeys(each.error for each in done if each.error):
            raise operation_failed("; ".join(errors))
        return ", ".join(each.ami_id for each in done if each.step == "deregister")

    regions = (made.target.region, made.second_region)
    gone = in_regions(made.target, regions, retire_there)
    return ", ".join(filter(None, gone.values())) or "no AMI was made"


def _sweep(made: Acceptance) -> str:
    places = [made.target, made.target.in_region(made.second_region)]
    done = [cleanup.remove(run_id, place, amis=True) for run_id in made.runs for place in places]
    # `remove` does not see what is disabled.
    left = [f"AMI {image.ami_id}" for place in places for image in _own(made, place)]
    said = _removed([*done, cleanup.Removal(left=left)])
    regions = ",".join(place.region for place in places)
    for run_id in made.runs:
        _task(release.sweep, apply=True, run=run_id, regions=regions, place=made.place)
    return said


_CHECK = facts.table("ec2-prices")["expected_seconds"]["verify"] / 60
_BUILD = facts.table("ec2-prices")["expected_seconds"]["bake"] / 60 + _CHECK
STEPS = (
    Step("preflight", "ask the vendors' hosts for what is baked", _preflight),
    Step("build", "build and verify {made.rows[0].name}", _build, "build", _BUILD),
    Step("verify", "copy it, and verify that on {made.types[other][0]}", _verify, "other", _CHECK),
    Step("publish", "copy to {made.second_region}, into channels of its own", _publish, copies=1),
    Step("promote", "promote to the next channel", _promote),
    Step("stack", "deploy the telemetry stack {made.name}", _deploy),
    Step("launch", "launch the channel by `consume`'s launch template", _launch, "own", _CHECK),
    Step("report", "read an Xid test event and a GPU metric back", _report, "own", _CHECK),
    Step("fleet", "install telemetry on AWS's own image", _install, "own", _CHECK),
    Step("session", "build over Session Manager", _by_session, "first", _BUILD),
    Step("mig", "verify a MIG layout on " + _MIG, _slices, "mig", _CHECK),
    Step("rollback", "release the copy, and roll back", _roll_back),
    Step("terminate", "end its instances", _terminate, cleans=True),
    Step("delete-stack", "delete the telemetry stack", _delete_stack, cleans=True),
    Step("retire", "delete its channels, retire its AMIs", _retire, cleans=True),
    Step("sweep", "delete what else carries its run ids", _sweep, cleans=True),
)
