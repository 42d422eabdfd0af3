"""Flags that several tasks share: rows of the matrix, the target, AWS settings, own kernels."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from kiln.base.account import SETTINGS, Account, setting_help
from kiln.base.errors import KilnError
from kiln.cli.output import log
from kiln.cli.task import Flags

if TYPE_CHECKING:
    from kiln.base.recipe import Recipe
    from kiln.cloud.target import OwnKernel, Target
    from kiln.pipeline.records import RecordsBucket


@dataclass(frozen=True)
class Rows(Flags):
    """Select rows

    distro: distribution in the matrix: --distro al2
    driver: NVIDIA driver version, or its beginning: --driver 510.47.03, --driver 580
    flavor: base, eks, ecs or parallelcluster: --flavor eks
    arch: x86_64 or arm64: --arch arm64
    cuda: CUDA version, or its beginning: --cuda 11.6
    kernel_module: open, proprietary or both: --kernel-module both
    name: the AMI's name in the matrix: --name debian12-535.309.01-base-x86_64
    """

    distro: str | None = None
    driver: str | None = None
    flavor: str | None = None
    arch: str | None = None
    cuda: str | None = None
    kernel_module: str | None = None
    name: str | None = None

    def __bool__(self) -> bool:
        return any(asdict(self).values())

    def select(self, *, every: bool = True) -> list[Recipe]:
        """Return the recipes that the flags select; unless `every`, exactly one."""
        from kiln.matrix import flags, load

        return flags.select(load.load_recipes(), every=every, **asdict(self))


@dataclass(frozen=True)
class Place(Flags):
    """Target

    target: aws, lab, or auto (default: aws if credentials are found): --target lab
    region: AWS region: --region eu-central-1 (default: the profile's, otherwise us-east-1)
    """

    target: str = "auto"
    region: str | None = None

    def choose(self, vendors: str | None = None) -> Target:
        """Return AWS or the lab."""
        from kiln.cli import targets

        return targets.choose(self.target, self.region, vendors)

    def choose_running(self) -> Target:
        """Return AWS or the lab, which must answer: nothing of it is started."""
        from kiln.publish.regions import answering

        return answering(self.choose())

    def choose_aws(self, task: str) -> Target:
        """Return AWS, for a task that the lab cannot do."""
        from kiln.cli import targets

        return targets.choose_aws(self.target, self.region, task)


class ModelFlags(Flags, dict[str, str]):
    """Flags that are made of a model's fields: those that were typed, as text."""

    title: str
    model: type[BaseModel]

    def __init__(self, **typed: Any) -> None:
        super().__init__({name: str(value) for name, value in typed.items() if value})

    def __init_subclass__(cls, names: Sequence[str] = ()) -> None:
        """Make a flag of each of these fields."""
        fields = {name: cls.model.model_fields[name] for name in names}
        lines = [f"{name}: {setting_help(field, name)}" for name, field in fields.items()]
        cls.__doc__ = "\n".join([cls.title, *lines])
        off = {name: False for name in names if fields[name].default is False}
        kind = inspect.Parameter.KEYWORD_ONLY
        flags = [inspect.Parameter(name, kind, default=off.get(name)) for name in names]
        cls.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]


class Settings(ModelFlags):
    """Typed flags in the place of `aws` settings of amis.yaml, as `kiln.matrix.flags.overridden`
    takes them."""

    title, model = "AWS settings", Account

    def at(self, place: Place) -> dict[str, str]:
        """Return the settings with the region that was typed."""
        return {**self, **({"region": place.region} if place.region else {})}

    def open_bucket(
        self, target: Target | None = None, recipe: Recipe | None = None
    ) -> RecordsBucket | None:
        """Return the records' bucket that flags, environment, row or `defaults` name, if any.

        `target` is where it is reached from, without one what `--target auto` is.
        """
        from kiln.matrix import load
        from kiln.matrix.flags import setting
        from kiln.pipeline.records import bucket_at

        account = recipe.row.account if recipe else Account()
        if recipe is None:
            with contextlib.suppress(KilnError):  # of a matrix that only other tasks need
                account = load.default_account()
        bucket = setting("records_bucket", account, self)
        return bucket_at(bucket, target or Place().choose()) if bucket else None

    def fetch_builds(self, *names: str) -> None:
        """Fetch the records of these builds that are not here: `find_record` then finds them."""
        builds = [name for name in names if not name.endswith(".json") and not Path(name).is_file()]
        if builds and (bucket := self.open_bucket()):
            for name in builds:
                bucket.fetch_named(name, log)

    def fetch_newest(self, rows: Sequence[str]) -> None:
        """Fetch the newest record of each row, if AWS answers."""
        try:
            if bucket := self.open_bucket():
                bucket.fetch_newest(rows, log)
        except KilnError as error:
            if error.exit_status == 2:
                raise
            log(f"only what was built here is shown: {error}")


_NOT_OF_BUILDS = ("region", "permissions_boundary")


class BuildSettings(Settings, names=[name for name in SETTINGS if name not in _NOT_OF_BUILDS]):
    """All AWS settings of builds."""


class LaunchSettings(
    Settings,
    names=(
        *("tags", "subnet_id", "subnet_ids", "subnet_filter", "security_group_ids"),
        *("ssh_interface", "ssh_source_cidrs", "iam_instance_profile", "spot"),
        *("capacity_reservation_id", "records_bucket"),
    ),
):
    """AWS settings of a launch without a bake."""


class RecordSettings(Settings, names=("records_bucket",)):
    """AWS settings of tasks that read or write records."""


class RoleSettings(Settings, names=("permissions_boundary",)):
    """AWS settings of tasks that make roles."""


@dataclass(frozen=True)
class Kernel(Flags):
    """Lab only

    own_kernel: check the AMI on a machine of its own that boots the AMI's kernel
    disk: keep the disk that --own-kernel boots, as a raw image: --disk out.raw
    """

    own_kernel: bool = False
    disk: str | None = None

    def wanted(self) -> OwnKernel | None:
        """Return what the flags ask for."""
        from kiln.cloud.target import OwnKernel
        from kiln.matrix import flags

        keep = flags.disk(self.disk, own_kernel=self.own_kernel)
        return OwnKernel(keep) if self.own_kernel else None


def positive_number(text: str, flag: str) -> float:
    """Return the number that a flag gives, which is above 0."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", text) or not float(text):
        raise KilnError(f"{flag} {text} is not a number above 0, such as 2.5")
    return float(text)
