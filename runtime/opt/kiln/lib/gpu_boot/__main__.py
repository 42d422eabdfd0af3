"""kiln-gpu-boot: decide by PCI ids what this machine needs, at every boot.

  kiln-gpu-boot           decide, write /run/kiln/gpu-boot, load the kernel module
  kiln-gpu-boot --select  where both flavours of the module were baked: put the right one in place
  kiln-gpu-boot --show    print the decision as JSON and change nothing

KILN_SYSFS names another sysfs tree than /sys.
"""

import json
import os
import subprocess
import sys

from gpu_boot import act, decide, pci


def main(arguments):
    if arguments not in ([], ["--select"], ["--show"]):
        print(__doc__.strip(), file=sys.stderr)
        return 0 if arguments in (["--help"], ["-h"]) else 2
    sysfs = os.environ.get("KILN_SYSFS", "/sys")
    decision = decide.decide(pci.devices(sysfs), decide.known())
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


def select(decision):
    try:
        for sentence in act.select(decision):
            print(sentence)
    except OSError as error:
        print("<3>the kernel module cannot be put in place: %s" % error)
        return 1
    return 0


def load(decision):
    loads, warning = act.commands(decision, os.uname().release)
    if warning:
        print("<4>" + warning)
    # Without what comes beside the driver the GPU still computes.
    for command in loads:
        if subprocess.call(command) != 0 and command[:2] == ["modprobe", "nvidia"]:
            print("<3>%s failed: see the kernel log" % " ".join(command))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
