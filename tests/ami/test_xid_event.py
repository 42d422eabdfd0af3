"""A test Xid written to the kernel log arrives in the event log."""

import json
import uuid

import pytest
from applies import only_if
from harness import run_python

pytestmark = [
    pytest.mark.boot,
    pytest.mark.exercise,
    only_if(lambda expect: "aws-hw-monitor" in expect["recipe"]["components"]),
]

# The kernel log may be shared (containers): the event carries a name and a PCI address that no
# other run has. One address for all would be folded as a storm of one event.
# With its newline: the kernel shows nobody a record without one until somebody writes the next.
# It is written again only when the kernel itself has no record of it any more: other guests' storms
# overwrite the ring, and no monitor can read what is gone.
PROGRAM = """
import json, os, time
marker = ARGUMENTS["marker"]
line = "<4>NVRM: Xid (PCI:0000:%s): %s, pid=4242, name=%s, Ch 00000008\\n"
def write():
    with open("/dev/kmsg", "w") as kernel_log:
        kernel_log.write(line % (ARGUMENTS["pci"], ARGUMENTS["code"], marker))
def overwritten():
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    while True:
        try:
            if marker.encode() in os.read(log, 8192):
                return False
        except BrokenPipeError:
            continue
        except BlockingIOError:
            return True
def read():
    try:
        with open("/var/log/gpuevent.log", errors="replace") as log:
            return [line for line in log if marker in line and line.endswith("\\n")]
    except OSError:
        return []
started, found = time.time(), []
for attempt in range(3):
    write()
    deadline = time.time() + (5 if attempt == 2 else 2)
    while not found and time.time() < deadline:
        time.sleep(0.02)
        found = read()
    if found or not overwritten():
        break
while not found and time.time() < started + 5:
    time.sleep(0.02)
    found = read()
print(json.dumps({"found": found, "seconds": time.time() - started}))
"""


@pytest.fixture(scope="module")
def arrived(host):
    number = uuid.uuid4()
    pci = f"{number.int % 256:02x}:{number.int // 256 % 32:02x}"
    return run_python(host, PROGRAM, marker=f"kiln-{number.hex[:12]}", pci=pci, code="43")


def test_a_test_xid_arrives_in_the_event_log_once(arrived):
    assert len(arrived["found"]) == 1, (
        f"{len(arrived['found'])} lines after {arrived['seconds']:.1f} s"
    )


def test_the_event_says_what_happened(arrived):
    assert arrived["found"], "the event did not arrive"
    event = json.loads(arrived["found"][0])
    assert (event["event"], event["xid"], event["pid"]) == ("xid", 43, 4242)


def test_the_event_is_marked_as_not_the_kernels_own(arrived):
    assert arrived["found"], "the event did not arrive"
    assert json.loads(arrived["found"][0])["injected"] is True
