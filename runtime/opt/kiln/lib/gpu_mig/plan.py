"""The difference between what is there and what is wanted, per GPU, as the fewest changes."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Dict, List, NamedTuple, Optional, Tuple

from .facts import GpuType, compute_profile_ids
from .placement import fit
from .profile import parse
from .smi import Gpu, Instance
from .target import Wanted, shape_order


class Create(NamedTuple):
    """An instance to make. `start` None lets the driver choose the place."""

    profile: str
    compute: Tuple[int, ...]
    start: Optional[int]

    @property
    def spec(self):
        """As `nvidia-smi mig -cgi` takes it: `3g.20gb:4`."""
        return self.profile if self.start is None else "{}:{}".format(self.profile, self.start)


class GpuPlan(NamedTuple):
    """What has to change on one GPU. `mode`: the mode to set, None when it is right already."""

    gpu: int
    mode: Optional[bool]
    reset: Optional[bool]
    keep: Tuple[Instance, ...]
    destroy: Tuple[Instance, ...]
    create: Tuple[Create, ...]

    @property
    def nothing(self):
        return self.mode is None and not self.destroy and not self.create


def plan(
    gpus: List[Gpu],
    wanted: Dict[int, Wanted],
    types: Dict[int, Optional[GpuType]],
    anew: bool = False,
    placed: bool = False,
) -> List[GpuPlan]:
    """A GpuPlan for every GPU that is addressed, in index order. `types`: by GPU index.

    New instances go where the driver puts them (largest first that works) unless they have to fit
    around instances that stay, or `placed` asks for the places `placement.fit` found. `anew`: a GPU
    that needs a change at all keeps none of its instances.
    """
    todo = []
    for gpu in gpus:
        if gpu.index in wanted:
            aim, kind = wanted[gpu.index], types.get(gpu.index)
            one = _plan_gpu(gpu, aim, kind, placed)
            if anew and one.create:
                one = _plan_gpu(gpu._replace(instances=()), aim, kind, placed)
                one = one._replace(destroy=gpu.instances)
            todo.append(one)
    return todo


def _plan_gpu(gpu: Gpu, wanted: Wanted, kind: Optional[GpuType], placed: bool) -> GpuPlan:
    settled = gpu.current == wanted.mode and gpu.pending == wanted.mode
    mode = None if settled else wanted.mode
    reset = (kind.reset if kind else None) if gpu.current != wanted.mode else False
    if not wanted.mode or gpu.current != wanted.mode:
        keep: Tuple[Instance, ...] = ()
        missing = list(wanted.shapes)
    else:
        keep, missing = _keep(gpu, wanted, kind)
    destroy = tuple(i for i in gpu.instances if i not in keep)
    create = tuple(_place(missing, keep, kind, placed))
    return GpuPlan(gpu.index, mode, reset, keep, destroy, create)


def _keep(gpu, wanted, kind):
    """The most instances that can stay, and the shapes then missing."""
    aim = Counter(wanted.shapes)
    useful = [i for i in gpu.instances if i.shape in aim]
    for size in range(len(useful), 0, -1):
        for keep in itertools.combinations(useful, size):
            if Counter(i.shape for i in keep) - aim:
                continue
            missing = list((aim - Counter(i.shape for i in keep)).elements())
            if not missing or (kind and kind.starts_known and _fits(kind, missing, keep)):
                return keep, missing
    return (), list(wanted.shapes)


def _fits(kind, missing, keep):
    return fit(kind, [profile for profile, _ in missing], keep) is not None


def _place(missing, keep, kind, placed) -> List[Create]:
    shapes = sorted(missing, key=shape_order)
    if not kind or not kind.starts_known or not (keep or placed):
        return [Create(profile, compute, None) for profile, compute in shapes]
    placed = fit(kind, [profile for profile, _ in shapes], keep) or []
    return [Create(p, c, at.start) for (p, c), at in zip(shapes, placed)]  # noqa: B905


def commands(plans: List[GpuPlan]) -> List[List[str]]:
    """The nvidia-smi commands a plan comes to, in order; an id not known yet shows as `?`.

    A GPU reset and what it takes to free the GPU come on top (`modes`).
    """
    found = destroy_commands(plans)
    for mode, gpus in same_work(plans, lambda p: p.mode):
        found.append(["-i", gpus, "-mig", "1" if mode else "0"])
    for gpus, create in creations(plans):
        if create.one_step:
            found.append(["mig", "-i", gpus, "-cgi", create.specs, "-C"])
        else:
            found.append(["mig", "-i", gpus, "-cgi", create.specs])
            found.append(["mig", "-i", gpus, "-gi", "?", "-cci", create.compute])
    return found


def destroy_commands(plans: List[GpuPlan]) -> List[List[str]]:
    """Compute instances first, then their GPU instances; whole GPUs together."""
    found = []

    def emptied(p):
        return any(i.compute for i in p.destroy) if p.destroy and not p.keep else None

    for compute, gpus in same_work(plans, emptied):
        found += [["mig", "-i", gpus, "-dci"]] if compute else []
        found += [["mig", "-i", gpus, "-dgi"]]

    def thinned(p):
        used = ",".join(str(i.id) for i in p.destroy if i.compute)
        every = ",".join(str(i.id) for i in p.destroy)
        return (used, every) if p.destroy and p.keep else None

    for (used, every), gpus in same_work(plans, thinned):
        found += [["mig", "-i", gpus, "-gi", used, "-dci"]] if used else []
        found += [["mig", "-i", gpus, "-gi", every, "-dgi"]]
    return found


class Creation(NamedTuple):
    """One `-cgi`. `one_step`: its compute instances are the default ones (`-C` makes them)."""

    specs: str
    compute: str
    one_step: bool


def creations(plans: List[GpuPlan]) -> List[Tuple[str, Creation]]:
    """(GPU indices, Creation) in the order to run: largest slices first on every GPU."""
    found = []
    for creates, gpus in same_work(plans, lambda p: p.create):
        run: List[str] = []
        for c in creates:
            if c.compute == (parse(c.profile).g,):
                run.append(c.spec)
                continue
            found += [(gpus, Creation(",".join(run), "", True))] if run else []
            run = []
            sizes = ",".join(str(compute_profile_ids()[size]) for size in c.compute)
            found += [(gpu, Creation(c.spec, sizes, False)) for gpu in gpus.split(",")]
        found += [(gpus, Creation(",".join(run), "", True))] if run else []
    return found


def same_work(plans: List[GpuPlan], work) -> List[Tuple[object, str]]:
    """GPUs with equal `work(plan)`, as (work, "0,1,2"): one command serves several."""
    groups: Dict[object, List[str]] = {}
    for p in plans:
        what = work(p)
        if what is not None and what != ():
            groups.setdefault(what, []).append(str(p.gpu))
    return [(what, ",".join(gpus)) for what, gpus in groups.items()]
