"""MIG's rules: the placement and ids of instances, and the remaining room.

The driver's choices are taken from public transcripts of A100, A30, H100 and H200:

- An instance is put at the free place that blocks the fewest other places (so the first 1g is put
  at slice 6, which no 2g can use, and the first 3g in the upper half, which 4g cannot use).
- Ids number a binary tree over the memory slices: 0 the whole, 1-2 the halves, 3-6 the quarters,
  7-14 the eighths. On half of the cards the two halves are numbered in the opposite order.
"""

from __future__ import annotations

from .gpus import Gpu, ident

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

# Suffix of a profile's name → its place in NVML's enumeration, the order of -lgi, -lci and -dgi.
ORDER = {"": 0, "+me": 7, "double": 9, "+gfx": 10, "+me.all": 12, "-me": 14}


# The facts and the driver's branch that `profiles` was last asked for, and its answer: all cards of
# a machine are of one model.
_last: list[Any] = [None, 0, []]


def profiles(gpu: Gpu, branch: int) -> list[dict[str, Any]]:
    """The card's GPU instance profiles in this driver, in the order of -lgip."""
    if _last[0] is not gpu.mig or _last[1] != branch:
        facts = gpu.mig or {}
        since = facts.get("since_driver", {})
        available = [
            p for p in facts.get("profiles", ()) if int(since.get(p["profile"], 0)) <= branch
        ]
        _last[:] = [gpu.mig, branch, [dict(p, attribute=attribute(p)) for p in available]]
    rows: list[dict[str, Any]] = _last[2]
    return rows


def attribute(profile: dict[str, Any]) -> str:
    """The kind of a profile beside its size: "", "+me", "double" (twice the memory), ..."""
    name = str(profile["profile"])
    for mark in ("+me.all", "+gfx", "+me", "-me"):
        if name.endswith(mark):
            return mark
    return "double" if profile["id"] == 15 else ""


def find_profile(gpu: Gpu, branch: int, wanted: str) -> dict[str, Any] | None:
    """The profile with this id, name ("3g.20gb") or full name ("MIG 3g.20gb")."""
    name = wanted[4:] if wanted.startswith("MIG ") else wanted
    for profile in profiles(gpu, branch):
        if name in (str(profile["id"]), profile["profile"]):
            return profile
    return None


def mib(profile: dict[str, Any]) -> int:
    """Memory of a MIG device in MiB, a multiple of 64; the facts have GiB with two digits."""
    return round(float(profile["gib"] or 1) * 16) * 64


def free_starts(gpu: Gpu, branch: int, profile: dict[str, Any]) -> list[int]:
    """The places for another instance of this profile; [] when there is none."""
    made = _made(gpu, branch)
    taken = {s for p, start in made for s in range(start, start + p["memory"])}
    if gpu.mig is None or sum(p["compute"] for p, _ in made) + profile["compute"] > int(
        gpu.mig["compute_slices"]
    ):
        return []
    if sum(p["id"] == profile["id"] for p, _ in made) >= profile["max"]:
        return []
    if "+me" in profile["profile"] and any("+me" in p["profile"] for p, _ in made):
        return []  # a card has a single set of media engines
    return [s for s in profile["starts"] if not taken & set(range(s, s + profile["memory"]))]


def free_count(gpu: Gpu, branch: int, profile: dict[str, Any]) -> int:
    """Return the number of further instances of the profile that fit, as -lgip counts."""
    starts = free_starts(gpu, branch, profile)
    made = _made(gpu, branch)
    left = profile["max"] - sum(p["id"] == profile["id"] for p, _ in made)
    slices = int((gpu.mig or {})["compute_slices"]) - sum(p["compute"] for p, _ in made)
    return int(min(len(starts), left, slices // profile["compute"]))


def _made(gpu: Gpu, branch: int) -> list[tuple[dict[str, Any], int]]:
    by_id = {p["id"]: p for p in profiles(gpu, branch)}
    return [(by_id[i["profile_id"]], int(i["start"])) for i in gpu.state["instances"]]


def create(
    gpu: Gpu, branch: int, profile: dict[str, Any], at: int | None = None
) -> dict[str, Any] | None:
    """Add a GPU instance of the profile, at `at` or where the driver would put it.

    Returns None when there is no room.
    """
    starts = [s for s in free_starts(gpu, branch, profile) if at in (None, s)]
    if not starts:
        return None
    open_places = [
        (other, s) for other in profiles(gpu, branch) for s in free_starts(gpu, branch, other)
    ]

    def blocked(start: int) -> int:
        """Return the number of places that an instance at `start` would overlap."""
        end = start + profile["memory"]
        return sum(s < end and start < s + other["memory"] for other, s in open_places)

    start = min(starts, key=lambda s: (blocked(s), s))
    instance = {
        "id": _tree_id(gpu, profile, start), "profile_id": profile["id"],
        "profile": profile["profile"], "start": start, "cis": [],
    }  # fmt: skip
    gpu.state["instances"].append(instance)
    return instance


def _tree_id(gpu: Gpu, profile: dict[str, Any], start: int) -> int:
    slices = int((gpu.mig or {})["memory_slices"])
    level, width = 0, slices
    while width // 2 >= profile["memory"] and width > 1:
        level, width = level + 1, width // 2
    node: int = start // width
    if level and int(ident(gpu.uuid)[0], 16) % 2:
        half = 2 ** (level - 1)
        node = (node + half) % (2 * half)  # this card numbers its halves in the opposite order
    return int(2**level - 1 + node)


def instances(gpu: Gpu, branch: int) -> list[dict[str, Any]]:
    """The GPU instances in NVML's order: by profile, then by id."""
    by_id = {p["id"]: p for p in profiles(gpu, branch)}

    def place(instance: dict[str, Any]) -> tuple[int, int, int]:
        profile = by_id[instance["profile_id"]]
        return (ORDER[profile["attribute"]], profile["compute"], instance["id"])

    return sorted(gpu.state["instances"], key=place)


def compute_profiles(gpu: Gpu, branch: int, instance: dict[str, Any]) -> list[dict[str, Any]]:
    """Compute instance profiles of a GPU instance: id, slices, name, max, free, sm, default."""
    whole = next(p for p in profiles(gpu, branch) if p["id"] == instance["profile_id"])
    width = int(whole["compute"])
    single = next(p for p in profiles(gpu, branch) if p["compute"] == 1)
    used = sum(ci["slices"] for ci in instance["cis"])
    ids: dict[str, int] = (gpu.mig or {})["compute_instance_profiles"]
    out = []
    for slices in (gpu.mig or {})["compute_instance_sizes"][str(width)]:
        full = slices == width
        base = instance["profile"].split("+")[0].replace("-me", "")
        most = 1 if full else width // slices
        sm = whole["sm"] if full else (single["sm"] or 0) * slices
        out.append({
            "id": ids[str(slices)], "slices": slices, "default": full, "max": most,
            "name": base if full else f"{slices}c.{base}",
            "free": min(most, (width - used) // slices), "sm": sm or 0, "whole": whole,
        })  # fmt: skip
    return out


def create_compute(
    gpu: Gpu, branch: int, instance: dict[str, Any], wanted: str | None
) -> dict[str, Any] | str:
    """Add a compute instance, by default of the whole GPU instance; an error text on failure."""
    available = compute_profiles(gpu, branch, instance)
    name = wanted[4:] if wanted and wanted.startswith("MIG ") else wanted
    chosen = [
        p
        for p in available
        if (p["default"] if name is None else name in (str(p["id"]), p["name"]))
    ]
    if not chosen:
        return "Invalid Argument"
    profile = chosen[0]
    if profile["free"] < 1:
        return "Insufficient Resources"
    taken = {s for ci in instance["cis"] for s in range(ci["start"], ci["start"] + ci["slices"])}
    width = int(profile["whole"]["compute"])
    starts = [
        s for s in range(width - profile["slices"] + 1)
        if not taken & set(range(s, s + profile["slices"]))
    ]  # fmt: skip
    if not starts:
        return "Insufficient Resources"
    number = next(n for n in range(8) if n not in {ci["id"] for ci in instance["cis"]})
    made = {
        "id": number, "profile_id": profile["id"], "name": profile["name"],
        "slices": profile["slices"], "start": starts[0], "sm": profile["sm"],
    }  # fmt: skip
    instance["cis"].append(made)
    return made


def devices(gpu: Gpu, branch: int) -> list[dict[str, Any]]:
    """The MIG devices (compute instances) in -L's order, by GPU instance then compute instance."""
    by_id = {p["id"]: p for p in profiles(gpu, branch)}
    out: list[dict[str, Any]] = []
    for instance in sorted(gpu.state["instances"], key=lambda i: int(i["id"])):
        for ci in sorted(instance["cis"], key=lambda c: int(c["id"])):
            key = f"{gpu.uuid}/{instance['id']}/{ci['id']}"
            out.append({
                "index": len(out), "gi": instance["id"], "ci": ci["id"], "name": ci["name"],
                "uuid": f"MIG-{ident(key)}" if branch >= 470 else f"MIG-{key}",
                "sm": ci["sm"], "profile": by_id[instance["profile_id"]],
            })  # fmt: skip
    return out
