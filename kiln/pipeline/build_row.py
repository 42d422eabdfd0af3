"""The whole way of one recipe: parent AMI → baked → AMI → booted → checked → record.

Everything a run makes carries its id; whatever ends it, what it made is removed, except a finished
AMI. (`kill -9` leaves things behind: the next run in this checkout removes them.)
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from kiln.base import stopping
from kiln.base.errors import KilnError, operation_failed
from kiln.base.findings import errors
from kiln.base.progress import Progress
from kiln.base.stopping import Stop, StoppedError
from kiln.cloud import aws, resources, runs
from kiln.cloud.machine import booted
from kiln.cloud.resources import Removal
from kiln.cloud.runs import Run
from kiln.cloud.target import Target
from kiln.packer import lock, policy, render
from kiln.packer.program import Packer
from kiln.pipeline import ami_checks, bake, record, report
from kiln.pipeline.plan import Plan

VERIFIED_TAG = "kiln:verified"


@dataclass(frozen=True)
class Built:
    """A finished run, by its record."""

    record: dict[str, Any]

    @property
    def good(self) -> bool:
        """The AMI passed its checks, and nothing else of the run is left."""
        return self.record["status"] == "verified" and not self.record.get("left")


def prepare(plan: Plan) -> None:
    """Write the recipe's HCL and hold it against the policy, before anything is launched.

    Raises KilnError (exit code 2) naming file, line and rule.
    """
    broken = errors(policy.check(render.write(plan.recipe)))
    if broken:
        raise KilnError("\n".join(map(str, broken)))


def build(plan: Plan, found: Packer, progress: Progress, stop: Stop | None = None) -> Built:
    """Build and verify one recipe whose HCL `prepare` has written.

    Raises KilnError (exit code 1) when the world failed or `stop` was set, after the clean-up.
    """
    stop = stop or Stop()
    recipe, target = plan.recipe, plan.target
    if stop.is_set():
        raise operation_failed(f"{recipe.name}: interrupted", hint="it had not begun")
    with runs.started(recipe.name, target) as run:
        data = _first_facts(plan, found, run)
        # An AMI that nobody checked is half-made; one whose checks failed is kept to be looked at.
        with _cleaned_up(run, target, data, progress, half_made=not plan.options.keep):
            with progress.stage("key pair, security group"):
                access = resources.make_access(run, target, plan.options.subnet_id)
            with progress.stage("packer build") as stage:
                ami_id = bake.bake(plan, found, run, access, stage, stop)
                stage.note = ami_id
            data["ami_id"] = ami_id
            data["amis"] = {target.region: ami_id}
            bake.finish_image(plan, ami_id)
            stop.check()
            _verify(
                run,
                data,
                access,
                _describe(target, ami_id),
                target=target,
                user=recipe.distro.ssh_user,
                progress=progress,
                stop=stop,
                subnet_id=plan.options.subnet_id,
                iam_instance_profile=plan.options.iam_instance_profile,
            )
        _write(run, data, progress)
    if target.kind == "aws" and data["versions"]:
        # Hashes that were not known before this bake are enforced from the next one on.
        lock.record(data["versions"]["downloads"], target="aws", when=run.id)
    return Built(data)


def verify_ami(
    ami_id: str,
    recipe: Any,
    target: Target,
    instance_type: str | None,
    progress: Progress,
    stop: Stop | None = None,
) -> Built:
    """Boot an existing AMI, run the checks of its recipe, and tag it with the verdict.

    Raises KilnError (exit code 1) when the world failed or `stop` was set, after the clean-up.
    """
    stop = stop or Stop()
    with runs.started(recipe.name, target) as run:
        image = _describe(target, ami_id)
        data: dict[str, Any] = {
            "run_id": run.id,
            "kind": "verify",
            "status": "unverified",
            "recipe": recipe.as_json(),
            "digest": image["tags"].get("kiln:recipe-digest"),
            "target": target.kind,
            "emulated": target.emulates(recipe.arch),
            "region": target.region,
            "ami_id": ami_id,
            "source_ami": {"ami_id": image["tags"].get("kiln:source-ami"), "name": ""},
            "verify_instance_type": instance_type or recipe.verify_instance_type,
            "git_commit": runs.git_commit(),
            "packer": None,
            "started": _now(),
        }
        with _cleaned_up(run, target, data, progress, half_made=False):
            with progress.stage("key pair, security group"):
                access = resources.make_access(run, target)
            _verify(
                run,
                data,
                access,
                image,
                target=target,
                user=recipe.distro.ssh_user,
                progress=progress,
                stop=stop,
            )
        _write(run, data, progress)
    return Built(data)


def _verify(
    run: Run,
    data: dict[str, Any],
    access: resources.Access,
    image: dict[str, Any],
    *,
    target: Target,
    user: str,
    progress: Progress,
    stop: Stop,
    **network: str | None,
) -> None:
    """Boot the AMI, run its checks, tag it: `checks`, `versions`, `status` of the record."""
    kind = data["verify_instance_type"]
    with ExitStack() as until_checked:
        with progress.stage("boot the AMI") as stage:
            machine = until_checked.enter_context(
                booted(
                    image["id"],
                    kind,
                    user=user,
                    run_id=run.id,
                    folder=run.folder,
                    access=access,
                    target=target,
                    stop=stop,
                    **network,
                )
            )
            stage.note = f"{machine.instance_id} ({kind})"
        with progress.stage("checks") as stage:
            expected = ami_checks.expectations(data["recipe"], kind, target, image)
            verdict = ami_checks.run_checks(
                machine, expected, run.folder, stop=stop, on_line=stage.line
            )
            stage.note = _counts(verdict)
        data["checks"] = verdict.as_json()
        data["versions"] = machine.read_json("/etc/kiln/version-info.json")
    stop.check()
    mark(target, image["id"], passed=verdict.passed, commit=data["git_commit"])
    # Not before the AMI itself says so.
    data["status"] = "verified" if verdict.passed else "failed"


def mark(target: Target, ami_id: str, *, passed: bool, commit: str) -> None:
    """Tag an AMI with the verdict of its checks: pass or fail, when, by which commit."""
    verdict = f"{'pass' if passed else 'fail'} {_now()} {commit}"
    with aws.explained(f"{ami_id} could not be tagged {VERIFIED_TAG}"):
        aws.ec2(target).create_tags(
            Resources=[ami_id], Tags=[{"Key": VERIFIED_TAG, "Value": verdict}]
        )


def clean_dead_runs(target: Target, progress: Progress) -> None:
    """Remove what crashed runs of this checkout left where `target` is, in any region.

    Of those elsewhere (another account, another lab) it is said that they wait.
    """
    for dead in runs.dead():
        if (dead.target, dead.place) != (target.kind, target.place):
            progress.say(
                f"run {dead.run_id} has not cleaned up in {dead.where}: a build there does"
            )
            continue
        stopping.end_processes(dead.run_id)
        done = resources.remove(dead.run_id, target.in_region(dead.region), amis=dead.amis)
        shutil.rmtree(dead.state.parent / "ssh", ignore_errors=True)
        if done.removed:
            progress.say(f"run {dead.run_id} had not cleaned up; removed {', '.join(done.removed)}")
        if done.failures:
            progress.say("\n".join(done.failures))
        else:
            dead.state.unlink(missing_ok=True)


def _first_facts(plan: Plan, found: Packer, run: Run) -> dict[str, Any]:
    return {
        "run_id": run.id,
        "kind": "build",
        "status": "failed",
        "recipe": plan.recipe.as_json(),
        "digest": plan.digest,
        "target": plan.target.kind,
        "emulated": plan.target.emulates(plan.recipe.arch),
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
def _cleaned_up(
    run: Run, target: Target, data: dict[str, Any], progress: Progress, *, half_made: bool
) -> Iterator[None]:
    """Whatever ends the block: remove what the run made, keep a record of a failure.

    `half_made`: when it does not get to its end, an AMI of its own is removed as well.
    """
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, StoppedError | KeyboardInterrupt)
        data["error"] = "interrupted" if interrupted else str(error)
        done = _remove(run, target, data, progress, amis=half_made)
        data["status"] = "failed"
        if half_made:
            data["ami_id"], data["amis"] = None, {}
        elif data["ami_id"]:
            data["status"] = "unverified"
            if data["kind"] == "build":
                progress.say(f"kept {data['ami_id']}, which is not verified (--keep)")
        try:
            _write(run, data, progress)
        except OSError as unwritten:
            progress.say(f"the record of run {run.id} could not be written: {unwritten}")
        if interrupted:
            said = [*error.args, *(one for one in done.removed if one not in error.args)]
            hint = f"cleaned up: {', '.join(said) or 'nothing had been made'}"
            raise operation_failed(
                f"{data['recipe']['name']}: interrupted",
                hint="not everything is removed: see above" if done.failures else hint,
            ) from None
        raise
    else:
        _remove(run, target, data, progress, amis=False)


def _remove(
    run: Run, target: Target, data: dict[str, Any], progress: Progress, *, amis: bool
) -> Removal:
    """Remove what a run made. What is left goes into `left` of its record."""
    if not amis:
        with contextlib.suppress(OSError):  # a full disk must not keep anything running
            run.keeps_its_ami()
    with progress.stage("clean-up") as stage:
        done = resources.remove(run.id, target, amis=amis)
        stage.note = ", ".join(done.removed)
    resources.forget_key(run)
    if done.failures:
        try:
            data["left"] = resources.left(run.id, target, amis=amis)
        except KilnError as error:
            data["left"] = [f"unknown: {error.message}"]
        progress.say("\n".join(done.failures))
        progress.say(f"left: {', '.join(data['left']) or 'nothing'}")
        progress.say("the next build in this checkout tries again to remove it")
    else:
        run.settled()
    return done


def _describe(target: Target, ami_id: str) -> dict[str, Any]:
    with aws.explained(f"{ami_id} could not be looked up"):
        image = aws.ec2(target).describe_images(ImageIds=[ami_id])["Images"][0]
    return {
        "id": ami_id,
        "name": image.get("Name"),
        "created": str(image["CreationDate"]),
        "tags": {tag["Key"]: tag["Value"] for tag in image.get("Tags", [])},
    }


def _write(run: Run, data: dict[str, Any], progress: Progress) -> None:
    data["finished"] = _now()
    data["seconds"] = progress.seconds
    data["folder"] = str(run.folder)
    record.write(run, data)
    report.write(run.folder / "report.html", data)


def _counts(verdict: ami_checks.Verdict) -> str:
    return ", ".join(
        f"{verdict.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped")
    )


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
