"""kiln-gpu-clocks: set the highest application clocks of each GPU, from devices.json.

  kiln-gpu-clocks          set the clocks; exit status 1 when nvidia-smi fails
  kiln-gpu-clocks --show   print the clocks that would be set and change nothing

GPUs that are not in devices.json keep their clocks, as do all GPUs if the driver cannot set them:
the driver then chooses the clocks, which costs at most some performance.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from gpu_boot import decide
from gpu_common.nvidia_smi import NvidiaSmiError
from gpu_common.nvidia_smi import run as nvidia_smi_run

_TIMEOUT_S = 120
QUERY = "index,name,pci.device_id,clocks.applications.memory,clocks.applications.graphics"


def main(arguments: list[str], run: Callable[..., tuple[int, str]] | None = None) -> int:
    run = run or nvidia_smi
    if arguments not in ([], ["--show"]):
        print((__doc__ or "").strip(), file=sys.stderr)
        return 0 if arguments in (["--help"], ["-h"]) else 2
    code, text = run("--query-gpu=" + QUERY, "--format=csv,noheader,nounits")
    if code != 0:
        print(f"<3>nvidia-smi failed with {code}: {text.strip()}")
        return 1
    known = decide.device_facts()["gpus"]
    status = 0
    for line in text.strip().splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(QUERY.split(",")):
            print(f"<3>nvidia-smi did not list a GPU but: {line[:80]!r}")
            status = 1
            continue
        index, name, device, memory, graphics = words
        facts = known.get(device_id(device), {})
        who = f"GPU {index} ({name}): "
        if not facts.get("clocks"):
            print(who + "no application clocks are documented; not changed")
        elif not memory.isdigit() or not graphics.isdigit():
            print(who + f"this driver reports no application clocks ({memory}); not changed")
        elif arguments:
            print(who + "{},{} MHz now, {} to be set".format(memory, graphics, facts["clocks"]))
        else:
            refused = set_clocks(index, facts, run)
            how = "set" if refused is None else "refused, not changed: " + refused
            print("{}{}{} MHz {}".format("<4>" if refused else "", who, facts["clocks"], how))
    return status


def set_clocks(
    index: str, facts: dict[str, Any], run: Callable[..., tuple[int, str]]
) -> str | None:
    """Set the clocks of a GPU; returns None, or the message of nvidia-smi if it refuses."""
    if facts["auto_boost"]:
        code, text = run("-i", index, "--auto-boost-default=0")
        if code != 0:
            why = " ".join(text.split())
            print(f"<4>GPU {index}: nvidia-smi cannot turn auto boost off ({code}): {why}")
    code, text = run("-i", index, "-ac", facts["clocks"])
    if code == 0 and "clocks set to" in text.lower():
        return None
    return " ".join(text.split()) or f"exit status {code}"


def device_id(text: str) -> str:
    """The device id in a number of nvidia-smi, which ends in the vendor: 0x1EB810DE → 1eb8."""
    digits = text.lower().replace("0x", "", 1)
    return digits[:-4].rjust(4, "0")


def nvidia_smi(*arguments: str) -> tuple[int, str]:
    """Exit status and output of nvidia-smi, 1 when it is missing or does not answer."""
    try:
        return 0, nvidia_smi_run([*arguments], _TIMEOUT_S)
    except NvidiaSmiError as error:
        return error.status or 1, str(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
