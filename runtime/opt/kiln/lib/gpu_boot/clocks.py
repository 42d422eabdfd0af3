"""kiln-gpu-clocks: set each GPU's highest application clocks, as devices.json has them.

  kiln-gpu-clocks          set them; exit status 1 when nvidia-smi does not answer
  kiln-gpu-clocks --show   print what would be set and change nothing

A GPU that devices.json does not know, and a driver that does not set application clocks, are left
as they are: the driver then chooses the clocks, which costs at most some performance.
"""

import subprocess
import sys

from gpu_boot import decide

QUERY = "index,name,pci.device_id,clocks.applications.memory,clocks.applications.graphics"


def main(arguments, run=None):
    run = run or nvidia_smi
    if arguments not in ([], ["--show"]):
        print(__doc__.strip(), file=sys.stderr)
        return 0 if arguments in (["--help"], ["-h"]) else 2
    code, text = run("--query-gpu=" + QUERY, "--format=csv,noheader,nounits")
    if code != 0:
        print("<3>nvidia-smi failed with %d: %s" % (code, text.strip()))
        return 1
    known = decide.known()["gpus"]
    for line in text.strip().splitlines():
        index, name, device, memory, graphics = [word.strip() for word in line.split(",")]
        facts = known.get(device_id(device), {})
        who = "GPU %s (%s): " % (index, name)
        if not facts.get("clocks"):
            print(who + "nobody documents its application clocks, left as they are")
        elif not memory.isdigit() or not graphics.isdigit():
            print(who + "this driver shows no application clocks (%s), left as they are" % memory)
        elif arguments:
            print(who + "%s,%s MHz now, %s to be set" % (memory, graphics, facts["clocks"]))
        else:
            refused = set_clocks(index, facts, run)
            how = "set" if refused is None else "refused, left as they are: " + refused
            print("%s%s%s MHz %s" % ("<4>" if refused else "", who, facts["clocks"], how))
    return 0


def set_clocks(index, facts, run):
    """Set one GPU's; None, or what nvidia-smi said instead of setting them."""
    if facts["auto_boost"]:
        run("-i", index, "--auto-boost-default=0")
    code, text = run("-i", index, "-ac", facts["clocks"])
    if code == 0 and "clocks set to" in text.lower():
        return None
    return " ".join(text.split()) or "exit status %d" % code


def device_id(text):
    """nvidia-smi writes device and vendor in one number: 0x1EB810DE → 1eb8."""
    digits = text.lower().replace("0x", "", 1)
    return digits[:-4].rjust(4, "0")


def nvidia_smi(*arguments):
    """Exit status and output; 127 when it is not there."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
        )
    except OSError as error:
        return 127, str(error)
    except subprocess.TimeoutExpired:
        return 124, "no answer within 5 minutes"
    return done.returncode, done.stdout.decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
