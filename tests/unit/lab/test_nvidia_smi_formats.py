"""The stand-in prints what the real nvidia-smi of that driver prints (shapes in tests/data)."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import pytest

from tests.unit.lab.standin_guest import DATA, Guest

pytestmark = pytest.mark.slow
Make = Callable[..., Guest]


def shape(name: str) -> list[str]:
    """The element paths of an xml/ shape file: "a b(c d(e))" -> a, b, b/c, b/d, b/d/e."""
    paths, stack, last = [], [], ""
    for token in re.findall(r"[^\s()]+|[()]", (DATA / "xml" / name).read_text()):
        if token == "(":
            stack.append(last)
        elif token == ")":
            stack.pop()
        else:
            last = token
            paths.append("/".join([*stack, token]))
    return paths


def paths(element: ElementTree.Element, under: str = "") -> list[str]:
    out = []
    for child in element:
        path = f"{under}{child.tag}"
        out.append(path)
        if path != "supported_clocks":
            out += paths(child, path + "/")
    return out


TAIL = ["supported_clocks", "processes", "accounted_processes"]


@pytest.mark.parametrize(
    ("name", "instance_type", "driver", "tail"),
    [
        ("515-a10g", "g5.xlarge", "515.105.01", TAIL),
        ("570-a100", "p4d.24xlarge", "570.148.08", [*TAIL, "capabilities", "capabilities/egm"]),
        ("580-h100", "p5.48xlarge", "580.105.08", []),
        ("595-t4", "g4dn.xlarge", "595.91.07", [*TAIL, "capabilities", "capabilities/egm"]),
    ],
)
def test_xml_has_the_elements_of_the_real_driver_in_its_order(
    make: Make, name: str, instance_type: str, driver: str, tail: list[str]
) -> None:
    document = ElementTree.fromstring(make(instance_type, driver).ok("-q", "-x", "-i", "0"))
    gpu = document.find("gpu")
    assert gpu is not None
    assert paths(gpu) == shape(name) + tail


def test_xml_of_a_card_in_mig_mode_lists_its_devices(make: Make) -> None:
    guest = make("p4de.24xlarge", "535.247.01")
    guest.ok("-i", "0", "-mig", "1")
    guest.ok("mig", "-i", "0", "-cgi", "15", "-C")
    gpu = ElementTree.fromstring(guest.ok("-q", "-x", "-i", "0")).find("gpu")
    assert gpu is not None
    # The capture is of 535.54; the BBX flush came within the branch (535.129 has it).
    result = [path for path in paths(gpu) if not path.startswith("inforom_bbx_flush")]
    assert result == shape("535-a100-mig") + TAIL
    assert [e.text for e in gpu.iter("multiprocessor_count")] == ["14"]
    assert gpu.findtext("utilization/gpu_util") == "N/A"


def cut_like_the_capture(guest: Guest) -> None:
    """GPU 0 as the public capture has it: 1g, 1g+me, and one slice of a 3g."""
    guest.ok("-i", "0", "-pm", "1")
    guest.ok("-i", "0", "-mig", "1")
    guest.ok("mig", "-i", "0", "-cgi", "19,20", "-C")
    guest.ok("mig", "-i", "0", "-cgi", "9")
    row = next(x for x in guest.ok("mig", "-i", "0", "-lgi").splitlines() if "3g.40gb" in x)
    guest.ok("mig", "-i", "0", "-gi", row.split()[5], "-cci", "1c.3g.40gb")


def test_listings_of_a_cut_card_match_the_capture_line_for_line(make: Make) -> None:
    guest = make("p5.48xlarge", "580.173.02", instance_id="i-3")
    cut_like_the_capture(guest)
    listings = DATA / "listings"
    assert guest.ok("mig", "-i", "0", "-lgip") == (listings / "580-h100-lgip").read_text()
    assert guest.ok("mig", "-i", "0", "-lgi") == (listings / "580-h100-lgi").read_text()
    names = re.findall(r"  MIG (\S+) +Device +(\d): \(UUID: MIG-", guest.ok("-L").split("GPU 1")[0])
    assert names == [("1c.3g.40gb", "0"), ("1g.10gb", "1"), ("1g.10gb", "2")]
