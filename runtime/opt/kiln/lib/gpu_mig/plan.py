"""The fewest changes from the present state of each GPU to the wanted one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from .facts import GpuType, compute_profile_ids
from .placement import Placed, fit
from .profile import parse
from .smi import Gpu, Instance
from .target import Shape, Wanted, shape_order

Work = TypeVar("Work")


class Create(NamedTuple):
    """An instance to create. `start` None lets the driver choose the position."""

    profile: str
    compute: tuple[int, ...]
    start: int | None

    @property
    def spec(self) -> str:
        """As an argument of `nvidia-smi mig -cgi`: `3g.20gb:4`."""
        return self.profile if self.start is None else f"{self.profile}:{self.start}"


class GpuPlan(NamedTuple):
    """The changes of a GPU. `mode`: the mode to set, None when it need not change."""

    gpu: int
    mode: bool | None
    reset: bool | None
    keep: tuple[Instance, ...]
    destroy: tuple[Instance, ...]
    create: tuple[Create, ...]

    @property
    def nothing(self) -> bool:
        return self.mode is None and not self.destroy and not self.create


def plan(
    gpus: Sequence[Gpu],
    wanted: dict[int, Wanted],
    types: dict[int, GpuType | None],
    anew: bool = False,
    placed: bool = False,
) -> list[GpuPlan]:
    """A GpuPlan for every addressed GPU, in index order. `types`: by GPU index.

    The driver chooses the positions of new instances (created largest first) unless these must fit
    around instances that stay, or `placed` asks for the positions of `placement.fit`. `anew`: a GPU
    on which anything must be created keeps none of its instances.
    """
    plans = []
    for gpu in gpus:
        if gpu.index in wanted:
            aim, kind = wanted[gpu.index], types.get(gpu.index)
            changes = _plan_gpu(gpu, aim, kind, placed)
            if anew and changes.create:
                changes = _plan_gpu(gpu._replace(instances=()), aim, kind, placed)
                changes = changes._replace(destroy=gpu.instances)
            plans.append(changes)
    return plans


def _plan_gpu(gpu: Gpu, wanted: Wanted, kind: GpuType | None, placed: bool) -> GpuPlan:
    settled = gpu.current == wanted.mode and gpu.pending == wanted.mode
    mode = None if settled else wanted.mode
    reset = (kind.reset if kind else None) if gpu.current != wanted.mode else False
    if not wanted.mode or gpu.current != wanted.mode:
        keep: tuple[Instance, ...] = ()
        missing = list(wanted.shapes)
    else:
        keep, missing = _keep(gpu, wanted, kind)
    destroy = tuple(i for i in gpu.instances if i not in keep)
    create = tuple(_place(missing, keep, kind, placed))
    return GpuPlan(gpu.index, mode, reset, keep, destroy, create)


def _keep(
    gpu: Gpu, wanted: Wanted, kind: GpuType | None
) -> tuple[tuple[Instance, ...], list[Shape]]:
    """The largest set of instances that can stay, and the shapes then missing."""
    aim = Counter(wanted.shapes)
    useful = [i for i in gpu.instances if i.shape in aim]
    # Of a shape no more can stay than are wanted.
    most = sum((Counter(i.shape for i in useful) & aim).values())
    for size in range(most, 0, -1):
        for keep in itertools.combinations(useful, size):
            kept = Counter(i.shape for i in keep)
            if kept - aim:
                continue
            missing = list((aim - kept).elements())
            if not missing or (kind and kind.starts_known and _fits(kind, missing, keep)):
                return keep, missing
    return (), list(wanted.shapes)


def _fits(kind: GpuType, missing: Sequence[Shape], keep: Sequence[Instance]) -> bool:
    return fit(kind, [profile for profile, _ in missing], _fixed(keep)) is not None


def _fixed(keep: Sequence[Instance]) -> list[Placed]:
    return [Placed(i.profile, i.start) for i in keep if i.start is not None]


def _place(
    missing: Sequence[Shape], keep: Sequence[Instance], kind: GpuType | None, placed: bool
) -> list[Create]:
    shapes = sorted(missing, key=shape_order)
    if not kind or not kind.starts_known or not (keep or placed):
        return [Create(profile, compute, None) for profile, compute in shapes]
    positions = fit(kind, [profile for profile, _ in shapes], _fixed(keep)) or []
    return [Create(p, c, at.start) for (p, c), at in zip(shapes, positions)]


def commands(plans: list[GpuPlan]) -> list[list[str]]:
    """The nvidia-smi commands of a plan, in order; `?` stands for an id that is not known yet.

    A GPU reset, and stopping the services that use the GPU, are not included (`modes`).
    """
    argvs = destroy_commands(plans)
    for mode, gpus in same_work(plans, lambda p: p.mode):
        argvs.append(["-i", gpus, "-mig", "1" if mode else "0"])
    for gpus, create in creations(plans):
        if create.one_step:
            argvs.append(["mig", "-i", gpus, "-cgi", create.specs, "-C"])
        else:
            argvs.append(["mig", "-i", gpus, "-cgi", create.specs])
            argvs.append(["mig", "-i", gpus, "-gi", "?", "-cci", create.compute])
    return argvs


def destroy_commands(plans: list[GpuPlan]) -> list[list[str]]:
    """Compute instances first, then their GPU instances; one command for several whole GPUs."""
    argvs: list[list[str]] = []

    def emptied(p: GpuPlan) -> bool | None:
        return any(i.compute for i in p.destroy) if p.destroy and not p.keep else None

    for compute, gpus in same_work(plans, emptied):
        argvs += [["mig", "-i", gpus, "-dci"]] if compute else []
        argvs += [["mig", "-i", gpus, "-dgi"]]

    def thinned(p: GpuPlan) -> tuple[str, str] | None:
        used = ",".join(str(i.id) for i in p.destroy if i.compute)
        every = ",".join(str(i.id) for i in p.destroy)
        return (used, every) if p.destroy and p.keep else None

    for (used, every), gpus in same_work(plans, thinned):
        argvs += [["mig", "-i", gpus, "-gi", used, "-dci"]] if used else []
        argvs += [["mig", "-i", gpus, "-gi", every, "-dgi"]]
    return argvs


class Creation(NamedTuple):
    """A `-cgi` command. `one_step`: `-C` creates its compute instances, of default size."""

    specs: str
    compute: str
    one_step: bool


def creations(plans: list[GpuPlan]) -> list[tuple[str, Creation]]:
    """(GPU indices, Creation) in the order in which to run them: largest instances first."""
    steps: list[tuple[str, Creation]] = []
    for creates, gpus in same_work(plans, lambda p: p.create):
        run: list[str] = []
        for c in creates:
            if c.compute == (parse(c.profile).g,):
                run.append(c.spec)
                continue
            steps += [(gpus, Creation(",".join(run), "", True))] if run else []
            run = []
            sizes = ",".join(str(compute_profile_ids()[size]) for size in c.compute)
            steps += [(gpu, Creation(c.spec, sizes, False)) for gpu in gpus.split(",")]
        steps += [(gpus, Creation(",".join(run), "", True))] if run else []
    return steps


def same_work(
    plans: list[GpuPlan], work: Callable[[GpuPlan], Work | None]
) -> list[tuple[Work, str]]:
    """GPUs with equal `work(plan)`, as (work, "0,1,2"), so that one command serves several GPUs.

    GPUs whose work is None or empty are left out.
    """
    groups: dict[Work, list[str]] = {}
    for p in plans:
        what = work(p)
        if what is not None and what != ():
            groups.setdefault(what, []).append(str(p.gpu))
    return [(what, ",".join(gpus)) for what, gpus in groups.items()]
