"""`profiles.json`, the facts that gpu-mig uses on the AMI, from `knowledge/`.

`./invoke generate` writes it.
"""

from __future__ import annotations

import json
from typing import Any

from kiln import facts
from kiln.base.paths import RUNTIME

PROFILES_JSON = RUNTIME / "opt" / "kiln" / "lib" / "gpu_mig" / "profiles.json"


def image_profiles() -> dict[str, Any]:
    """The content of profiles.json: the GPUs of mig.yaml, and the PCI ids that cannot do MIG."""
    mig = facts.table("mig")
    gpus = facts.table("instances")["gpus"].values()
    return {
        "schema": "kiln/mig-profiles v1",
        "made_from": "kiln/facts/knowledge/mig.yaml, instances.yaml",
        "as_of": mig["as_of"],
        "mode_change": mig["mode_change"],
        "compute_instance_profiles": mig["compute_instance_profiles"],
        "compute_instance_sizes": mig["compute_instance_sizes"],
        "without_mig_pci": sorted({i for g in gpus if not g["mig"] for i in g["pci_device_ids"]}),
        "gpus": [
            {**gpu, "profiles": [_numbers(p) for p in gpu["profiles"]]} for gpu in mig["gpus"]
        ],
    }


def _numbers(profile: dict[str, Any]) -> dict[str, Any]:
    """`gib` as a number: the loader keeps decimals as text, because versions look like them."""
    gib = profile["gib"]
    return {**profile, "gib": None if gib is None else float(gib)}


def image_profiles_text() -> str:
    """The content of profiles.json: one profile per line, so that a change gives a short diff."""
    data = image_profiles()
    gpus = data.pop("gpus")
    lines = [f" {json.dumps(k)}: {json.dumps(v)}," for k, v in data.items()]
    lines.append(' "gpus": [')
    for i, gpu in enumerate(gpus):
        rows = gpu.pop("profiles")
        head = json.dumps(gpu)[1:-1]
        lines.append(f'  {{{head}, "profiles": [')
        lines += [f"   {json.dumps(p)}{',' if p is not rows[-1] else ''}" for p in rows]
        lines.append("  ]}" + ("," if i < len(gpus) - 1 else ""))
    return "{\n" + "\n".join(lines) + "\n ]\n}\n"
