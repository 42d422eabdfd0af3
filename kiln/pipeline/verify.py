"""Decides whether an AMI is verified: boots a fresh instance, runs the checks, tags the AMI.

`judge` does it for a build as for `verify --ami`, which first finds the recipe that the AMI was
baked from. `verify --instance` and `--host` run the checks on a machine that runs already, as it
says it is: nothing is launched, changed or tagged.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from kiln import components, facts
from kiln.base import needs, vocabulary
from kiln.base.account import Account
from kiln.base.errors import KilnError, first_mistake, operation_failed
from kiln.base.paths import build_dir
from kiln.base.processes import Stop, StoppedError, on_signals
from kiln.base.progress import Progress
from kiln.base.recipe import Recipe
from kiln.base.tags import (
    ARCH,
    DISTRO,
    INPUT_DIGEST,
    OWN_KERNEL,
    RECIPE,
    RECIPE_DIGEST,
    SOURCE_AMI,
    VERIFIED,
    TaggedVerdict,
)
from kiln.base.vocabulary import now
from kiln.cloud import aws, runs
from kiln.cloud.images import Image, require_image
from kiln.cloud.instance import Boot, Machine, booted, connected, require_types, ssh_timeout
from kiln.cloud.network import Access, make_access
from kiln.cloud.runs import Run
from kiln.cloud.session import reason_in
from kiln.cloud.target import OwnKernel, ParentAmi, Target
from kiln.matrix import load
from kiln.matrix.flags import NOTHING, overridden, setting
from kiln.packer.render import recipe_digest
from kiln.pipeline import checks, records, report
from kiln.pipeline.draft import Draft, recorded
from kiln.pipeline.record import Record, Status, write_record
from kiln.pipeline.records import RUNNING_MACHINES, bucket_at

_HOST = re.compile(r"(?P<user>[a-z_][a-z0-9_-]*)@(?P<address>[A-Za-z0-9][A-Za-z0-9.:-]*)")
_ASK_TYPE = (
    "t=$(curl -sf -m 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "
    'http://169.254.169.254/latest/api/token) && curl -sf -m 5 -H "X-aws-ec2-metadata-token: $t" '
    "http://169.254.169.254/latest/meta-data/instance-type"
)
_UNKNOWN = "unknown"
ON_THE_IMAGE = "/etc/kiln/recipe.json on the image"


def judge(
    draft: Draft,
    access: Access,
    account: Account,
    *,
    own_kernel: OwnKernel | None = None,
    keyword: str | None = None,
) -> None:
    """Boot the draft's AMI, run its checks, tag it; notes `checks`, `versions`, `status`.

    With `keyword`, pytest's -k, only a part is checked; that is not a verdict, and the AMI's tag
    stays as it is. With `own_kernel` the instance boots the AMI's own kernel, whatever the target's
    other instances do.
    """
    progress, target, stop = draft.progress, draft.target, draft.stop
    ami_id = str(draft.record.ami_id)
    boot = Boot(
        ami_id,
        str(draft.record.verify_instance_type),
        draft.record.recipe.distro.ssh_user,
        draft.run.id,
        draft.run.folder,
        access,
        account,
        efa=attaches_efa(draft.record),
        launched=draft.launched.append,
        tried=draft.tried,
    )
    with ExitStack() as until_checked:
        if own_kernel:
            with progress.stage("disk of the AMI") as stage:
                disk = target.hooks.own_kernel(ami_id, draft.record.recipe, own_kernel)
                own_tags, stage.note = until_checked.enter_context(disk)
            boot = replace(boot, tags=own_tags)
            draft.note(own_kernel=stage.note)
        with progress.stage("boot the AMI") as stage:
            machine = until_checked.enter_context(booted(boot, target, stage, progress.say, stop))
            stage.note = f"{machine.instance_id} ({boot.instance_type})"
        if draft.recipe_unread:
            draft.note(recipe=recipe_on(machine, ami_id))
            draft.recipe_unread = False
        # The checks may give it another address.
        draft.note(versions=machine.read_json("/etc/kiln/version-info.json"))
        restart = None
        # A Spot instance of a single request cannot be stopped, nor does a part of the checks.
        if not (account.spot or own_kernel or keyword):
            restart = {
                "instance_id": machine.instance_id,
                "region": target.region,
                "ssh_interface": access.network.ssh_interface,
            }
        with progress.stage("checks") as stage:
            stage.waits_for(f"the checks of {machine.instance_id}")
            expected = checks.expectations(
                draft.record.recipe,
                boot.instance_type,
                target.kind,
                own_kernel=own_kernel is not None,
                reboot=keyword is None,
                efa_attached=boot.efa,
                restart=restart,
            )
            done = checks.run_checks(
                machine,
                expected,
                draft.run.folder,
                stop=stop,
                on_line=stage.line,
                keyword=keyword,
            )
            stage.note = str(done)
        draft.note(checks=done)
    stop.check()
    if keyword:
        draft.note(status="unverified" if done.succeeded else "failed")
        return
    # The record gets the verdict only after the AMI itself.
    draft.note(status="unverified")
    draft.write()
    tag_verdict(
        target,
        ami_id,
        TaggedVerdict(done.succeeded, str(draft.record.finished), draft.record.git_commit),
        keys=(VERIFIED, OWN_KERNEL) if own_kernel else (VERIFIED,),
    )
    draft.note(status="verified" if done.succeeded else "failed")
    with contextlib.suppress(OSError):  # it is written again at the end
        draft.write()


def attaches_efa(record: Record) -> bool:
    """Return True if the checked instance gets an EFA interface: one of an image with EFA, on a
    type whose first network card has it."""
    kind = facts.instances().get(str(record.verify_instance_type))
    return bool(record.recipe.efa and kind and kind.efa_published and 0 in kind.efa_cards)


def tag_verdict(
    target: Target, ami_id: str, verdict: TaggedVerdict, keys: Sequence[str] = (VERIFIED,)
) -> None:
    """Tag an AMI with the verdict of its checks: pass or fail, when, by which commit."""
    with aws.explained(f"{ami_id} could not be tagged {VERIFIED}"):
        aws.ec2(target).create_tags(
            Resources=[ami_id], Tags=[{"Key": key, "Value": str(verdict)} for key in keys]
        )


def recipe_on(machine: Machine, name: str) -> Recipe:
    """The recipe in a machine's /etc/kiln/recipe.json; `name` is the machine's, for messages."""
    data = machine.read_json("/etc/kiln/recipe.json")
    if not isinstance(data, dict):
        raise operation_failed(
            f"{name} has no readable /etc/kiln/recipe.json: only images that AMI Kiln baked have it"
        )
    file = f"/etc/kiln/recipe.json on {name}"
    try:
        recipe = Recipe.model_validate({**data, "row": {"file": file, "line": 1, "index": 0}})
    except ValidationError as error:
        hint = "verify it in the checkout that built it"
        raise operation_failed(f"{file}: {first_mistake(error)}", hint=hint) from None
    require_components(recipe, name)
    return recipe


def require_components(recipe: Recipe, image: str) -> None:
    """Refuse an image with components that this checkout does not have: what checks them is not
    here either, and the rest would pass without it."""
    own = {component.name for component in components.everything()}
    unknown = [name for name in recipe.components if name not in own]
    if unknown:
        raise KilnError(
            f"{image} has {', '.join(map(vocabulary.shown, unknown))}: nothing here checks that",
            hint="KILN_OVERLAY=DIR names the overlay with it; else verify it in the checkout that "
            "built it",
        )


def known_recipe(
    ami_id: str, tags: Mapping[str, str], recipes: Sequence[Recipe]
) -> tuple[Recipe, str]:
    """The recipe that an AMI is checked against, and where it was found.

    A row of the same name counts only if it still has the digest of the AMI's tag: a row that has
    changed since describes another AMI. Where the recipe is to be read from the image
    (`ON_THE_IMAGE`), it is that of a row whose arch, user and instance type boot the AMI.
    """
    if built := records.newest_of_ami(ami_id):
        return built.recipe, f"the record of run {built.run_id}"
    row = next((recipe for recipe in recipes if recipe.name == tags[RECIPE]), None)
    if row and recipe_digest(row) == tags.get(RECIPE_DIGEST):
        return row, f"{row.row.file}, by the tagged digest"
    return row or _same_kind(ami_id, tags, recipes), ON_THE_IMAGE


def _require_name(image: Image) -> str:
    """The name of the recipe that an AMI was built from, by its tag."""
    name = image.tags.get(RECIPE)
    if not name:
        raise KilnError(
            f"{image.ami_id} has no tag {RECIPE}",
            hint="only AMIs that AMI Kiln built can be verified; see ./invoke list",
        )
    return str(vocabulary.RECIPE_NAME.required(name, f"{image.ami_id}: its tag {RECIPE}"))


def _same_kind(ami_id: str, tags: Mapping[str, str], recipes: Sequence[Recipe]) -> Recipe:
    """A row of the AMI's distribution and arch, for its user name and instance type."""
    distro, arch = tags.get(DISTRO), tags.get(ARCH)
    for recipe in recipes:
        if (recipe.distro.id, recipe.arch) == (distro, arch):
            return recipe
    raise KilnError(
        f"{ami_id} is tagged {DISTRO}={distro}, {ARCH}={arch}: the matrix has no row of that "
        "distribution and arch, so how to boot it is unknown",
        hint="add a row, or verify it in the checkout that built it",
    )


def verify_by_id(
    ami_id: str,
    instance_type: str | None,
    *,
    target: Target,
    progress: Progress,
    install: bool,
    own_kernel: OwnKernel | None = None,
    aws_flags: Mapping[str, str] = NOTHING,
    keyword: str | None = None,
) -> Record:
    """Boot the AMI, with its own kernel if asked to, run its checks, tag it; with `keyword` only
    those of that name, without a verdict."""
    vocabulary.AMI_ID.required(ami_id, "--ami")
    if instance_type:
        require_types([instance_type], target, progress.say)
    ssh_timeout()
    checks.require_match(keyword)
    progress.say(str(target))
    needs.ensure("ssh", install=install, say=progress.say)
    with target.hooks.prepared(ami_id, [], progress, own_kernel=own_kernel, ami_id=ami_id):
        image = require_image(target, ami_id)
        name = _require_name(image)
        account = load.load_account(name)
        bucket = bucket_at(setting("records_bucket", account, aws_flags), target)
        if bucket:
            bucket.fetch_row(name, progress.say)
        recipe, source = known_recipe(ami_id, image.tags, load.load_recipes())
        progress.say(f"checked against: {source}")
        if source != ON_THE_IMAGE:
            require_components(recipe, ami_id)
        elif own_kernel:
            raise KilnError(
                f"{ami_id} cannot boot its own kernel: neither a record of its build nor a row of "
                "the matrix says what is on it"
            )
        account = overridden(account, aws_flags, recipe.arch)
        for line in account.shown():
            progress.say(f"aws: {line}")
        kind = instance_type or recipe.verify_instance_type
        if target.bills:
            progress.say(f"will launch: {kind} in {target.region} for {ami_id}")
            target = target.identified()
        runs.clean_dead_runs(target, progress)
        stop, parent = Stop(), image.tags.get(SOURCE_AMI)
        with on_signals(stop):
            with recorded(
                name,
                recipe,
                target,
                progress,
                stop.for_run(),
                bucket,
                delete_ami_on_failure=False,
                kind="verify",
                status="unverified",
                vendors=None,
                recipe_from=source,
                recipe_digest=image.tags.get(RECIPE_DIGEST),
                input_digest=image.tags.get(INPUT_DIGEST),
                ami_id=ami_id,
                source_ami=ParentAmi(parent, "", "", f"tag {SOURCE_AMI}") if parent else None,
                verify_instance_type=kind,
            ) as draft:
                draft.recipe_unread = source == ON_THE_IMAGE
                with progress.stage("key pair, security group"):
                    access = make_access(draft.run, target, account, efa=attaches_efa(draft.record))
                judge(draft, access, account, own_kernel=own_kernel, keyword=keyword)
            return draft.record


def smoke_test(*, install: bool) -> Callable[[Target, str], None]:
    """A function that boots an AMI of a target and checks it as `verify_by_id` does, and fails
    unless it is verified."""

    def boot(target: Target, ami_id: str) -> None:
        judged = verify_by_id(ami_id, None, target=target, progress=Progress(), install=install)
        if not judged.succeeded:
            raise operation_failed(
                f"{ami_id} in {target.region} failed its checks, so no channel moved",
                hint=f"see {judged.folder}/report.html",
            )

    return boot


# A machine that runs already


@dataclass(frozen=True)
class Running:
    """A machine that runs: where ssh finds it, and what EC2 says of it."""

    name: str
    user: str
    address: str
    instance_type: str = ""
    ami_id: str | None = None


def at_host(host: str) -> Running:
    """The machine of `user@address`."""
    match = _HOST.fullmatch(host)
    if match is None:
        raise KilnError(f"--host {vocabulary.shown(host)} is not user@address")
    return Running(host, match["user"], match["address"])


def at_instance(instance_id: str, target: Target) -> Running:
    """The machine of an instance id, as EC2 describes it."""
    vocabulary.INSTANCE_ID.required(instance_id, "--instance")
    with aws.explained(f"{instance_id} could not be looked up in {target.region}"):
        answer = aws.ec2(target).describe_instances(InstanceIds=[instance_id])
    instance = answer["Reservations"][0]["Instances"][0]
    state = instance["State"]["Name"]
    if state != "running":
        raise operation_failed(f"{instance_id} is {state}: only a running instance can be checked")
    ami_id = str(instance["ImageId"])
    distro = require_image(target, ami_id).tags.get(DISTRO)
    if not distro:
        raise KilnError(
            f"{instance_id} runs {ami_id}, which has no tag {DISTRO}: its user name is not known",
            hint="name it: --host user@address",
        )
    return Running(
        instance_id,
        str(facts.distro(distro)["ssh_user"]),
        str(instance.get("PublicIpAddress") or instance["PrivateIpAddress"]),
        str(instance["InstanceType"]),
        ami_id,
    )


def verify_running(
    running: Running,
    target: Target,
    progress: Progress,
    *,
    kind_of_machine: Callable[[Machine], str],
    key: str | None,
    keyword: str | None,
    exercise: bool,
    install: bool,
) -> Record:
    """Run the checks on a machine; its record and report are kept as those of `verify --ami`.

    `kind_of_machine` says in what kind of target a machine runs: `target` is only where EC2 was
    asked. `key` is the file of a private key; without it ssh uses what it is configured to use.
    `keyword` is pytest's -k: such a run has looked at a part only, and verifies nothing.
    """
    if key and not Path(key).is_file():
        raise KilnError(f"--key {key}: no such file")
    checks.require_match(keyword)
    needs.ensure("ssh", install=install, say=progress.say)
    run_id = runs.new_id()
    started, stop = now(), Stop()
    folder = build_dir() / RUNNING_MACHINES / run_id
    with (
        _interruptible(stop, running, exercise=exercise),
        reached(running, run_id, folder, key) as machine,
    ):
        _require_ssh(machine, running)
        recipe = recipe_on(machine, running.name)
        # Not among the row's runs: what became of one machine says nothing about the row.
        run = Run(run_id, recipe.name, folder)
        run.folder.mkdir(parents=True)
        kind = running.instance_type or _instance_type(machine)
        progress.say(f"{running.name} says it is {recipe.name}, on {kind}")
        if kind == _UNKNOWN:
            progress.say("its instance type is not known: checks of its GPUs are skipped")
        if not exercise:
            progress.say("checks that act on it (a test Xid, NCCL) run only with --exercise")
        where = kind_of_machine(machine)
        with progress.stage("checks") as stage:
            expected = checks.expectations(recipe, kind, where, exercise=exercise)
            done = checks.run_checks(
                machine, expected, run.folder, stop=stop, on_line=stage.line, keyword=keyword
            )
            stage.note = str(done)
        versions = machine.read_json("/etc/kiln/version-info.json")
    whole: Status = "verified" if keyword is None else "unverified"
    record = Record(
        run_id=run_id,
        kind="verify",
        status=whole if done.succeeded else "failed",
        recipe=recipe,
        recipe_from=f"/etc/kiln/recipe.json on {running.name}",
        target=where,
        image_note=f"the running machine {running.name}",
        region=target.region,
        ami_id=running.ami_id,
        verify_instance_type=None if kind == _UNKNOWN else kind,
        git_commit=runs.git_commit(),
        started=started,
        finished=now(),
        folder=str(run.folder),
        seconds=dict(progress.seconds),
        checks=done,
        versions=versions,
    )
    write_record(run, record)
    report.write_report(run.folder / "report.html", record)
    return record


@contextmanager
def reached(running: Running, run_id: str, folder: Path, key: str | None) -> Iterator[Machine]:
    """A machine that runs, with the user's own settings of ssh below ours."""
    file = Path(key) if key else None
    where = (running.name, running.address, running.user)
    with connected(*where, run_id, folder, file) as machine:
        known = machine.ssh_config.with_name("known_hosts")
        with machine.ssh_config.open("a") as config:
            config.write(
                f"  UserKnownHostsFile {known} ~/.ssh/known_hosts\n"
                "Include ~/.ssh/config\n"
                # Unless the user's settings say otherwise (the first value counts), a key that is
                # new is kept for this run; one that differs from the known one is refused.
                "Host *\n  StrictHostKeyChecking accept-new\n"
            )
        yield machine


@contextmanager
def _interruptible(stop: Stop, running: Running, *, exercise: bool) -> Iterator[None]:
    """Ctrl-C ends the checks, and is a message: there is nothing to remove."""
    words = "stopping the checks"
    with on_signals(stop, words, words):
        try:
            yield
        except StoppedError:
            hint = "it runs on"
            if exercise:
                hint += "; a check that had begun may have left a test Xid in its log"
            raise operation_failed(f"{running.name}: interrupted", hint=hint) from None


def _require_ssh(machine: Machine, running: Running) -> None:
    code, _, error = machine.ssh("true")
    if code != 0:
        raise operation_failed(
            f"{running.user}@{running.address} cannot be reached over SSH: {reason_in(error)}",
            hint="try it by hand; --key FILE names a private key",
        )


def _instance_type(machine: Machine) -> str:
    """Return the type in the machine's instance metadata; `unknown` without an answer."""
    _, text, _ = machine.ssh(_ASK_TYPE)
    return text.strip() if vocabulary.INSTANCE_TYPE.fits(text.strip()) else _UNKNOWN
