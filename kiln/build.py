"""The whole way of one recipe: parent AMI → baked → AMI → booted → checked → record.

Everything a run makes carries its id; whatever ends it, what it made is removed, except a finished
AMI. (`kill -9` leaves things behind: the next run in this checkout removes them.)
"""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from kiln import aws, lock, packer, policy, record, render, report, resources, runs, verify
from kiln.errors import WORLD_FAILED, KilnError, world_failed
from kiln.findings import errors
from kiln.packer import Event, Packer
from kiln.paths import packer_dir
from kiln.plan import Plan
from kiln.progress import Progress, Stage
from kiln.runs import Run
from kiln.target import Target

VERIFIED_TAG = "kiln:verified"
# How provisioners/lib/kiln.sh ends a bake; Packer itself only says that a script failed.
_PROVISIONER_ERROR = re.compile(r"kiln: [\w-]+: ERROR: ")


@dataclass(frozen=True)
class Built:
    """A finished run: its record, and whether the AMI passed its checks."""

    record: dict[str, Any]
    verified: bool


class StoppedError(Exception):
    """SIGINT or SIGTERM came; what had been made is removed on the way out.

    Its arguments say what Packer itself has removed already.
    """


def prepare(plan: Plan) -> None:
    """Write the recipe's HCL and hold it against the policy, before anything is launched.

    Raises KilnError (exit code 2) naming file, line and rule.
    """
    broken = errors(policy.check(render.write(plan.recipe)))
    if broken:
        raise KilnError("\n".join(map(str, broken)))


def build(
    plan: Plan, found: Packer, progress: Progress, stop: threading.Event | None = None
) -> Built:
    """Build and verify one recipe whose HCL `prepare` has written.

    Raises KilnError (exit code 1) when the world failed, after the clean-up.
    """
    stop = stop or threading.Event()
    recipe, target = plan.recipe, plan.target
    with runs.started(recipe.name, target=target.kind, region=target.region) as run:
        data = _first_facts(plan, found, run)
        with _cleaned_up(plan, run, data, progress):
            with progress.stage("key pair, security group"):
                access = resources.make_access(run, target, plan.options.subnet_id)
            with progress.stage("packer build") as stage:
                ami_id = _bake(plan, found, run, access, stage, stop)
                stage.note = ami_id
            data["ami_id"] = ami_id
            data["amis"] = {target.region: ami_id}
            _finish_image(plan, ami_id)
            _check_stop(stop)
            machine = _boot(plan, run, access, ami_id, progress)
            with progress.stage("checks") as stage:
                image = _describe(target, ami_id)
                expected = verify.expectations(
                    recipe.as_json(), plan.verify_instance_type, target, image
                )
                verdict = verify.run_checks(machine, expected, run.folder, on_line=stage.line)
                stage.note = _counts(verdict)
            _check_stop(stop)
            data["checks"] = verdict.as_json()
            data["versions"] = _version_info(machine)
            data["status"] = "verified" if verdict.passed else "failed"
            mark(target, ami_id, passed=verdict.passed, commit=data["git_commit"])
        _write(run, data, progress)
    if target.kind == "aws" and data["versions"]:
        # Hashes that were not known before this bake are enforced from the next one on.
        lock.record(data["versions"]["downloads"], target="aws", when=run.id)
    return Built(data, verdict.passed)


def verify_ami(
    ami_id: str, recipe: Any, target: Target, instance_type: str | None, progress: Progress
) -> Built:
    """Boot an existing AMI, run the checks of its recipe, and tag it with the verdict."""
    kind = instance_type or recipe.verify_instance_type
    with runs.started(recipe.name, target=target.kind, region=target.region) as run:
        try:
            image = _describe(target, ami_id)
            data: dict[str, Any] = {
                "run_id": run.id,
                "kind": "verify",
                "status": "unverified",
                "recipe": recipe.as_json(),
                "digest": image["tags"].get("kiln:recipe-digest"),
                "target": target.kind,
                "region": target.region,
                "ami_id": ami_id,
                "source_ami": {"ami_id": image["tags"].get("kiln:source-ami"), "name": ""},
                "verify_instance_type": kind,
                "git_commit": runs.git_commit(),
                "packer": None,
                "started": _now(),
            }
            with progress.stage("key pair, security group"):
                access = resources.make_access(run, target)
            with progress.stage("boot the AMI") as stage:
                machine = verify.boot(
                    ami_id,
                    kind,
                    user=recipe.distro.ssh_user,
                    run_id=run.id,
                    folder=run.folder,
                    access=access,
                    target=target,
                )
                stage.note = f"{machine.instance_id} ({kind})"
            with progress.stage("checks") as stage:
                expected = verify.expectations(recipe.as_json(), kind, target, image)
                verdict = verify.run_checks(machine, expected, run.folder, on_line=stage.line)
                stage.note = _counts(verdict)
            data["checks"] = verdict.as_json()
            data["versions"] = _version_info(machine)
            data["status"] = "verified" if verdict.passed else "failed"
            mark(target, ami_id, passed=verdict.passed, commit=data["git_commit"])
        finally:
            _remove(run, target, progress, amis=False)
        _write(run, data, progress)
    return Built(data, verdict.passed)


def mark(target: Target, ami_id: str, *, passed: bool, commit: str) -> None:
    """Tag an AMI with the verdict of its checks: pass or fail, when, by which commit."""
    verdict = f"{'pass' if passed else 'fail'} {_now()} {commit}"
    with aws.explained(f"{ami_id} could not be tagged {VERIFIED_TAG}"):
        aws.ec2(target).create_tags(
            Resources=[ami_id], Tags=[{"Key": VERIFIED_TAG, "Value": verdict}]
        )


def clean_dead_runs(targets: Callable[[str, str], Target | None], progress: Progress) -> None:
    """Remove what crashed runs of this checkout left. `targets` gives a target to reach it by."""
    for dead in runs.dead():
        target = targets(dead.target, dead.region)
        if target is None:
            continue
        packer.end(dead.run_id)
        removed = resources.remove(dead.run_id, target, amis=dead.amis)
        shutil.rmtree(dead.state.parent / "ssh", ignore_errors=True)
        dead.state.unlink(missing_ok=True)
        if removed:
            progress.say(f"run {dead.run_id} had crashed; removed {', '.join(removed)}")


def _first_facts(plan: Plan, found: Packer, run: Run) -> dict[str, Any]:
    return {
        "run_id": run.id,
        "kind": "build",
        "status": "failed",
        "recipe": plan.recipe.as_json(),
        "digest": plan.digest,
        "target": plan.target.kind,
        "region": plan.target.region,
        "source_ami": asdict(plan.source),
        "ami_id": None,
        "amis": {},
        "instance_type": plan.instance_type,
        "verify_instance_type": plan.verify_instance_type,
        "packer": str(found),
        "git_commit": runs.git_commit(),
        "started": _now(),
    }


@contextlib.contextmanager
def _cleaned_up(plan: Plan, run: Run, data: dict[str, Any], progress: Progress) -> Iterator[None]:
    """Whatever ends the block: remove what the run made, keep a record of a failure."""
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, StoppedError | KeyboardInterrupt)
        data["error"] = "interrupted" if interrupted else str(error)
        # An AMI that nobody checked is half-made; one whose checks failed is kept to be looked at.
        kept = plan.options.keep and data["ami_id"]
        done = _remove(run, plan.target, progress, amis=not kept)
        if kept:
            data["status"] = "unverified"
            progress.say(f"kept {data['ami_id']}, which is not verified (--keep)")
        else:
            data["ami_id"], data["amis"] = None, {}
        _write(run, data, progress)
        if interrupted:
            if done is None:
                hint = "not everything is removed: see above"
            else:
                done = [*error.args, *(one for one in done if one not in error.args)]
                hint = f"cleaned up: {', '.join(done) or 'nothing had been made'}"
            raise KilnError(
                f"{plan.recipe.name}: interrupted",
                hint=hint,
                exit_code=WORLD_FAILED,
            ) from None
        raise
    else:
        _remove(run, plan.target, progress, amis=False)


def _remove(run: Run, target: Target, progress: Progress, *, amis: bool) -> list[str] | None:
    """Remove what a run made; what that was, or None where it did not get to its end."""
    try:
        if not amis:
            with contextlib.suppress(OSError):  # a full disk must not keep anything running
                run.keeps_its_ami()
        with progress.stage("clean-up") as stage:
            removed = resources.remove(run.id, target, amis=amis)
            stage.note = ", ".join(removed)
        run.settled()
    except KilnError as error:
        progress.say(str(error))
        with contextlib.suppress(KilnError):
            progress.say(f"left: {', '.join(resources.left(run.id, target)) or 'nothing'}")
        progress.say("the next build in this checkout tries again to remove it")
        return None
    finally:
        resources.forget_key(run)
    return removed


def _bake(
    plan: Plan,
    found: Packer,
    run: Run,
    access: resources.Access,
    stage: Stage,
    stop: threading.Event,
) -> str:
    target = plan.target
    variables: dict[str, Any] = {
        **render.variables(
            plan.recipe, run_id=run.id, git_commit=runs.git_commit(), target=target.kind
        ),
        "region": target.region,
        "source_ami": plan.source.ami_id,
        "instance_type": plan.instance_type,
        "ami_name": f"{plan.recipe.name}-{run.id}",
        "ssh_source_cidrs": [access.source_cidr],
        "security_group_ids": [access.security_group],
        "ssh_keypair_name": access.key_name,
        "ssh_private_key_file": str(access.key_file.resolve()),
    }
    for name in ("subnet_id", "kms_key_id", "iam_instance_profile"):
        if getattr(plan.options, name):
            variables[name] = getattr(plan.options, name)
    var_files, environment = [], None
    if target.kind == "lab":
        from lab import bridge

        var_files = [bridge.write_variables(run.folder, plan.recipe)]
        environment = bridge.packer_environment()
    folder = packer_dir() / plan.recipe.name
    packer.install_plugins(found, folder)
    log = run.folder / "packer.log"

    blame = []
    launched: dict[str, None] = {}

    def on_event(event: Event) -> None:
        if event.kind in ("say", "message", "error"):
            stage.line(event.text)
        if _PROVISIONER_ERROR.match(event.text):
            blame.append(event.text)
        if event.instance_id:
            launched[f"instance {event.instance_id}"] = None
        if event.instance_id and not found.has_plugins:
            _require_imdsv2(target, event.instance_id)

    result = packer.run_build(
        found,
        folder,
        log=log,
        manifest=run.folder / "manifest.json",
        variables=variables,
        var_files=var_files,
        on_event=on_event,
        stop=stop,
        environment=environment,
    )
    if result.interrupted:
        raise StoppedError(*launched)
    if result.exit_code or target.region not in result.amis:
        said = blame or [line for line in result.errors if line.strip()]
        raise world_failed(
            f"{plan.recipe.name}: packer build failed: {said[-1] if said else 'see its log'}",
            hint=f"the whole log: {log}",
        )
    return result.amis[target.region]


def _require_imdsv2(target: Target, instance_id: str) -> None:
    """Packer 1.6 has no `metadata_options`: its build instance is told as soon as it is known."""
    with aws.explained(f"{instance_id} could not be made to require IMDSv2"):
        aws.ec2(target).modify_instance_metadata_options(
            InstanceId=instance_id, HttpTokens="required", HttpEndpoint="enabled"
        )


def _finish_image(plan: Plan, ami_id: str) -> None:
    """What Packer 1.6 cannot set, so that the AMI is the same whichever Packer made it."""
    with aws.explained(f"{ami_id} could not be set to IMDSv2 by default"):
        # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-IMDS-new-instances.html
        aws.ec2(plan.target).modify_image_attribute(ImageId=ami_id, ImdsSupport={"Value": "v2.0"})


def _boot(
    plan: Plan, run: Run, access: resources.Access, ami_id: str, progress: Progress
) -> verify.Machine:
    with progress.stage("boot the AMI") as stage:
        machine = verify.boot(
            ami_id,
            plan.verify_instance_type,
            user=plan.recipe.distro.ssh_user,
            run_id=run.id,
            folder=run.folder,
            access=access,
            target=plan.target,
            subnet_id=plan.options.subnet_id,
            iam_instance_profile=plan.options.iam_instance_profile,
        )
        stage.note = f"{machine.instance_id} ({plan.verify_instance_type})"
    return machine


def _describe(target: Target, ami_id: str) -> dict[str, Any]:
    with aws.explained(f"{ami_id} could not be looked up"):
        image = aws.ec2(target).describe_images(ImageIds=[ami_id])["Images"][0]
    return {
        "id": ami_id,
        "name": image.get("Name"),
        "created": str(image["CreationDate"]),
        "tags": {tag["Key"]: tag["Value"] for tag in image.get("Tags", [])},
    }


def _version_info(machine: verify.Machine) -> Any:
    return verify.read_json(machine, "/etc/kiln/version-info.json")


def _write(run: Run, data: dict[str, Any], progress: Progress) -> None:
    data["finished"] = _now()
    data["seconds"] = progress.seconds
    data["folder"] = str(run.folder)
    record.write(run, data)
    report.write(run.folder / "report.html", data)


def _check_stop(stop: threading.Event) -> None:
    if stop.is_set():
        raise StoppedError


def _counts(verdict: verify.Verdict) -> str:
    return ", ".join(
        f"{verdict.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped")
    )


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
