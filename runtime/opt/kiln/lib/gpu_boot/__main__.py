"""kiln-gpu-boot: decide from PCI ids what this machine needs, at every boot.

  kiln-gpu-boot           decide, write /run/kiln/gpu-boot, load the kernel modules
  kiln-gpu-boot --select  if both kinds of the kernel module were baked: install the right one,
                          with its options
  kiln-gpu-boot --show    print the decision as JSON and change nothing

KILN_SYSFS names a sysfs tree to read instead of /sys.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from gpu_boot import act, decide
from gpu_common import pci


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--select"], ["--show"]):
        print((__doc__ or "").strip(), file=sys.stderr)
        return 0 if arguments in (["--help"], ["-h"]) else 2
    sysfs = os.environ.get("KILN_SYSFS", "/sys")
    decision = decide.decide(pci.devices(sysfs), decide.device_facts())
    if arguments == ["--show"]:
        print(json.dumps(decision, indent=1, sort_keys=True))
        return 0
    if arguments == ["--select"]:
        return select(decision)
    act.write_flags(decision)
    for reason in decision["why"]:
        print(reason)
    if os.path.exists("/run/systemd/container"):
        print("a container has no kernel of its own: no module is loaded")
        return 0
    return load(decision)


def select(decision: dict[str, Any]) -> int:
    try:
        for sentence in act.select(decision):
            print(sentence)
        act.write_options(decision, os.uname().release)
    except OSError as error:
        print(f"<3>the kernel module cannot be installed: {error}")
        return 1
    return 0


def load(decision: dict[str, Any]) -> int:
    try:
        loads, warning = act.commands(decision, os.uname().release)
    except OSError as error:
        print(f"<3>no module is loaded: {error}")
        return 1
    if warning:
        print(f"<{4 if loads else 3}>{warning}")
    if warning and not loads:
        return 1
    # Without the other modules some programs still compute.
    for command in loads:
        status = subprocess.call(command)
        if status == 0 or "--quiet" in command:  # those are not on every image, or not loaded
            continue
        driver = command[:2] == ["modprobe", "nvidia"]
        print("<{}>{} failed: see the kernel log".format(3 if driver else 4, " ".join(command)))
        if driver:
            return 1
    try:
        act.make_gdrdrv_node()
    except OSError as error:
        print(f"<4>there is no /dev/gdrdrv: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
