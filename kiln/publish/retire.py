"""`retire`: AMIs that no channel holds and nothing uses go in steps: deprecated, disabled,
deregistered with their snapshots. A step waits its days from the step before, a day at least, and
nothing happens without `apply`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from typing import Any, Literal

from kiln.base.errors import KilnError, operation_failed
from kiln.base.tags import KEEP, RECIPE, RETIRING
from kiln.base.vocabulary import as_time, read_time, utc_now
from kiln.cloud import aws
from kiln.cloud.images import Image, find_image, own_images
from kiln.cloud.target import Target
from kiln.matrix.model import Publish
from kiln.publish import channels
from kiln.publish.channels import Held, Release
from kiln.publish.copies import permissions, undeclared
from kiln.publish.regions import in_regions

RetireStep = Literal["deprecate", "disable", "deregister", "keep"]
_KEEP = 2
# A launch in the first hour is the verification; one in the last days is a use.
_VERIFYING = timedelta(hours=1)
_LATELY = timedelta(days=7)
# An older report of an AMI's users is of another day, and is asked for again.
_FRESH = timedelta(days=2)
# What a channel holds in a region, and the releases that it has held there, newest first.
_Moves = tuple[Held, Sequence[Release]]
# The keys of long answers.
_ENTRIES, _VERSIONS = "ImageUsageReportEntries", "LaunchTemplateVersions"


@dataclass(frozen=True)
class Going:
    """The next step of an AMI, or "keep", and why. `error` is why the step could not be done."""

    ami_id: str
    region: str
    step: RetireStep
    why: str
    error: str = ""


@dataclass(frozen=True)
class Retirement:
    """AMIs that would go or stay, and users that the matrix does not declare."""

    would: tuple[Going, ...]
    kept: tuple[Going, ...] = ()
    opened: tuple[str, ...] = ()


def plan_retirement(
    target: Target,
    regions: Sequence[str],
    settings: Mapping[str, Publish],
    *,
    only: bool = True,
    ask: bool = False,
) -> Retirement:
    """Return the next step of every AMI of AMI Kiln in these regions, the target's first; unless
    `only`, also in those of the releases that its channels hold.

    `settings` are those of each line and row of the matrix; what it no longer has gets those of
    "", the defaults. With `ask`, EC2 is asked to report who uses a shared AMI, if no report is
    fresh. A region that does not answer is an error: then nobody knows what is unused.
    """
    home = [] if only else [held.release for held in channels.all_held(target) if held.release]
    released = (region for release in home for region in release.images)
    everywhere = list(dict.fromkeys([target.region, *regions, *released]))

    # Each region's own: a line may be baked in another region than the target's.
    def moves_in(there: Target) -> list[_Moves]:
        return [
            (holding, list(channels.past(there, holding.line, holding.channel)))
            for holding in channels.all_held(there)
        ]

    moves = in_regions(target, everywhere, moves_in)
    held = _held([move for each in moves.values() for move in each], settings)
    plan = partial(_plan_region, held=held, settings=settings, ask=ask)
    plans = in_regions(target, everywhere, plan).values()
    fates = [fate for each, _ in plans for fate in each]
    return Retirement(
        tuple(fate for fate in fates if fate.step != "keep"),
        tuple(fate for fate in fates if fate.step == "keep"),
        tuple(what for _, opened in plans for what in opened),
    )


def _plan_region(
    target: Target, held: Mapping[tuple[str, str], str], settings: Mapping[str, Publish], ask: bool
) -> tuple[list[Going], list[str]]:
    region, images = target.region, sorted(own_images(target), key=lambda image: image.created)
    users = users_of(target, [image.ami_id for image in images])
    fates: list[Going] = []
    opened: list[str] = []
    for image in images:
        # Of its line; of its row, as long as it was not published; the defaults.
        names = [name for name in (image.line, image.tags.get(RECIPE), "") if name in settings]
        chosen = settings[str(names[0])] if names else Publish()
        has = permissions(target, image)
        opened += [f"{region}: {what}" for what in undeclared(has, chosen.share)]
        step, not_due = _next_step(image, chosen)
        stays = (
            held.get((region, image.ami_id))
            or _guarded(image, users.get(image.ami_id, []))
            or not_due
            # Whatever `share` says: the matrix may have dropped the line or stopped sharing it.
            or (used_elsewhere(target, image.ami_id, ask=ask) if any(has.values()) else "")
        )
        goes = f"{image.name}: no channel holds it, nothing uses it"
        fates.append(Going(image.ami_id, region, "keep" if stays else step, stays or goes))
    return fates, opened


def _guarded(image: Image, users: Sequence[str]) -> str:
    launched = image.launched
    if users:
        more = f" and {len(users) - 3} more" if len(users) > 3 else ""
        return f"used by {', '.join(users[:3])}{more}"
    if KEEP in image.tags:
        return f"tagged {KEEP}"
    if image.protected and image.retiring:
        return "protected from deregistration by somebody since it was deprecated"
    if image.protected and image.line is None:
        return "protected from deregistration"
    if launched and launched - image.created >= _VERIFYING and utc_now() - launched < _LATELY:
        return f"launched on {launched:%Y-%m-%d}"
    return ""


def _next_step(image: Image, settings: Publish) -> tuple[RetireStep, str]:
    """Return the next step, and why it is not due. `retire` takes an AMI from nobody without
    `deregister_after`: one that is only deprecated still launches."""
    step: RetireStep = "deregister" if image.state == "disabled" else "disable"
    setting, days = "deregister_after", settings.deregister_after
    if not image.retiring:
        step, setting, days = "deprecate", "deprecate_after", settings.deprecate_after
    elif step == "disable" and days:
        days = 1
    if days is None:
        return step, f"without {setting} nothing will {step} it"
    try:
        since = read_time(image.tags[RETIRING]) if image.retiring else image.created
    except ValueError:
        return step, f"its tag {RETIRING} is not the date of a step"
    due = since + timedelta(days=days)
    return step, f"next step: {step}, on {due:%Y-%m-%d} or later" if utc_now() < due else ""


def _held(moves: Sequence[_Moves], settings: Mapping[str, Publish]) -> dict[tuple[str, str], str]:
    """Return why an image stays that a channel holds or could be rolled back to, by region and
    id."""
    stays: dict[tuple[str, str], str] = {}
    for holding, past in moves:
        keep = settings.get(holding.line, Publish()).keep.get(holding.channel, _KEEP)
        # After a rollback the next one goes further back than the newest releases.
        came = channels.arrival(past, holding.image_id, holding.region)
        why = f"{holding.channel} of {holding.line} could be rolled back to it"
        for since in (past, past[came:]):
            names = list(dict.fromkeys(release.ami_name for release in since))[:keep]
            for release in since:
                if release.ami_name in names:
                    stays.update(dict.fromkeys(release.images.items(), why))
    for holding, _ in moves:
        why = f"{holding.channel} of {holding.line} holds it"
        stays[holding.region, holding.image_id] = why
    return stays


def retire(target: Target, plan: Retirement) -> Retirement:
    """Do the steps of a plan; return those that were due, each with its error if EC2 refused it,
    and what stays. One's failure stops no other.

    An image that a channel has come to hold since the plan was made stays.
    """
    done: list[Going] = []
    kept = list(plan.kept)
    for going in plan.would:
        there = target.in_region(going.region)
        try:
            image = find_image(there, going.ami_id)
            if image is None or not image.ours:  # somebody else was faster
                continue
            held = channels.all_held(there, image.line)
            holding = next((each for each in held if each.image_id == image.ami_id), None)
            if holding:
                why = f"{holding.channel} of {holding.line} has come to hold it"
                kept.append(replace(going, step="keep", why=why))
                continue
            _do(there, going.step, image)
            done.append(going)
        except KilnError as refused:
            done.append(replace(going, error=refused.message))
    return Retirement(tuple(done), tuple(kept), plan.opened)


def _do(target: Target, step: RetireStep, image: Image) -> None:
    ec2, ami_id, now = aws.ec2(target), image.ami_id, utc_now()
    dated: Any = {"Resources": [ami_id], "Tags": [{"Key": RETIRING, "Value": as_time(now)}]}
    with aws.explained(f"{ami_id} could not be retired in {target.region}"):
        if step == "deprecate":
            # EC2 refuses a time that is past when it arrives.
            ec2.enable_image_deprecation(ImageId=ami_id, DeprecateAt=now + timedelta(minutes=1))
            if image.protected:
                ec2.disable_image_deregistration_protection(ImageId=ami_id)
            ec2.create_tags(**dated)
        elif step == "disable":
            # The date first: after an interruption the AMI waits too long, and not too short.
            ec2.create_tags(**dated)
            ec2.disable_image(ImageId=ami_id)
        elif step == "deregister":
            answer = ec2.deregister_image(ImageId=ami_id, DeleteAssociatedSnapshots=True)
            aws.ssm(target).delete_parameters(Names=[channels.statement_parameter(ami_id)])
            # https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DeleteSnapshotReturnCode.html
            left = [
                f"{result.get('SnapshotId')} ({result.get('ReturnCode')})"
                for result in answer.get("DeleteSnapshotResults", [])
                if result.get("ReturnCode") not in ("success", "skipped")
            ]
            if left:
                raise operation_failed(
                    f"the AMI is deregistered, its snapshots are not deleted: {', '.join(left)}",
                    hint="./invoke sweep --apply deletes them",
                )


# Who uses an AMI

# In the place of an AMI's id, with a parameter's name, which may have a version or a label:
# https://docs.aws.amazon.com/autoscaling/ec2/userguide/using-systems-manager-parameters.html
_BY_PARAMETER = "resolve:ssm:"
# A fleet that is in none of these launches nothing more.
_AT_WORK = ("submitted", "active", "modifying")


def users_of(target: Target, image_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return what names each AMI in the target's region: instances that are not terminated,
    versions of launch templates, launch configurations, Auto Scaling groups, EC2 and Spot Fleets,
    all of them also by a parameter; parameters of AMIs other than those of channels."""
    users: dict[str, list[str]] = defaultdict(list)
    value = cache(partial(_value, target))
    with aws.explained(f"who uses the AMIs could not be asked in {target.region}"):
        for resource, user in _resources(target) if image_ids else ():
            for named in _image_ids(resource):
                parameter = named.removeprefix(_BY_PARAMETER) if _BY_PARAMETER in named else ""
                image_id = value(parameter) if parameter else named
                if image_id in image_ids:
                    users[image_id].append(f"{user} by {parameter}" if parameter else user)
    return users


def _image_ids(resource: Any) -> Iterator[str]:
    """Yield the AMIs that a resource names, wherever its description does."""
    if isinstance(resource, list):
        for each in resource:
            yield from _image_ids(each)
    elif isinstance(resource, dict):
        for key, value in resource.items():
            yield from [value] if key == "ImageId" else _image_ids(value)


def _value(target: Target, name: str) -> str:
    """Return the value of a parameter; "" if it is gone, or AWS's own, which names no AMI of
    ours."""
    ssm = aws.ssm(target)
    try:
        return (
            "" if name.startswith("/aws/") else ssm.get_parameter(Name=name)["Parameter"]["Value"]
        )
    except (ssm.exceptions.ParameterNotFound, ssm.exceptions.ParameterVersionNotFound):
        return ""


def _resources(target: Target) -> Iterator[tuple[Any, str]]:
    """Yield what can name an AMI in the target's region, and what it is called."""
    ec2, scaling = aws.ec2(target), aws.client("autoscaling", target)
    for instance in aws.paginated(ec2, "describe_instances", "Reservations[].Instances"):
        if instance["State"]["Name"] != "terminated":
            yield instance, f"instance {instance['InstanceId']}"
    versions = partial(aws.paginated, ec2, "describe_launch_template_versions", _VERSIONS)
    for template in aws.paginated(ec2, "describe_launch_templates", "LaunchTemplates"):
        name = template["LaunchTemplateName"]
        for version in versions(LaunchTemplateName=name):
            yield version, f"launch template {name} version {version['VersionNumber']}"
    # An EC2 Fleet of the type `instant` has launched what it ever will, and is not listed:
    # https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeFleets.html
    for fleet in aws.paginated(ec2, "describe_fleets", "Fleets"):
        if fleet["FleetState"] in _AT_WORK:
            yield fleet, f"EC2 Fleet {fleet['FleetId']}"
    for fleet in aws.paginated(ec2, "describe_spot_fleet_requests", "SpotFleetRequestConfigs"):
        if fleet["SpotFleetRequestState"] in _AT_WORK:
            yield fleet, f"Spot Fleet {fleet['SpotFleetRequestId']}"
    for each in aws.paginated(scaling, "describe_launch_configurations", "LaunchConfigurations"):
        yield each, f"launch configuration {each['LaunchConfigurationName']}"
    for group in aws.paginated(scaling, "describe_auto_scaling_groups", "AutoScalingGroups"):
        yield group, f"Auto Scaling group {group['AutoScalingGroupName']}"
    yield from _parameters(target)


def _parameters(target: Target) -> Iterator[tuple[Any, str]]:
    """Yield the parameters of the data type aws:ec2:image, by which others may launch; without
    those of channels, which are read anyway.

    https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_ParameterStringFilter.html
    """
    ssm = aws.ssm(target)
    # As many as SSM takes: 50 in a page, ten names at once.
    query: Any = {
        "ParameterFilters": [{"Key": "DataType", "Values": ["aws:ec2:image"]}],
        "PaginationConfig": {"PageSize": 50},
    }
    found = aws.paginated(ssm, "describe_parameters", "Parameters[].Name", **query)
    names = [name for name in found if not channels.is_image_parameter(name)]
    for first in range(0, len(names), 10):
        for parameter in ssm.get_parameters(Names=names[first : first + 10])["Parameters"]:
            yield {"ImageId": parameter["Value"]}, f"parameter {parameter['Name']}"


def used_elsewhere(target: Target, image_id: str, *, ask: bool) -> str:
    """Return why a shared AMI must stay: who uses it in other accounts by a fresh usage report, or
    that there is none yet; "" if the report names nobody. With `ask` a missing report is asked for.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/your-ec2-ami-usage.html
    """
    ec2, kinds = aws.ec2(target), ("ec2:Instance", "ec2:LaunchTemplate")
    with aws.explained(f"who uses {image_id} could not be asked in {target.region}"):
        reports = ec2.describe_image_usage_reports(ImageIds=[image_id])["ImageUsageReports"]
        fresh = [each for each in reports if each["CreationTime"] > utc_now() - _FRESH]
        ready = [each for each in fresh if each["State"] == "available"]
        if not fresh and not ask:
            return "shared: who uses it is not known; --apply asks EC2 for a report"
        if not ready:
            if not fresh:
                types: Any = [{"ResourceType": kind} for kind in kinds]
                ec2.create_image_usage_report(ImageId=image_id, ResourceTypes=types)
            return "shared: EC2 makes a report of its users; run retire again later"
        newest = max(ready, key=lambda report: report["CreationTime"])["ReportId"]
        entries = aws.paginated(
            ec2, "describe_image_usage_report_entries", _ENTRIES, ReportIds=[newest]
        )
        users = [
            f"account {entry['AccountId']} ({entry['UsageCount']} {entry['ResourceType']})"
            for entry in entries
            if entry["UsageCount"]
        ]
    return f"used by {', '.join(users[:3])}" if users else ""
