"""A machine that has rebooted is as it was."""

import pytest
from applies import only_if
from harness import collector, reboot, run_python

pytestmark = [
    pytest.mark.boot,
    pytest.mark.exercise,
    only_if(lambda expect: expect.get("reboot")),
]


def test_every_check_of_the_boot_holds_after_a_reboot(request, host):
    """But for those that act, and those with fixtures of their own."""
    reboot(host)
    machine = run_python(host, collector())
    anew = {"machine": machine, "version_info": machine["baked"]}
    ran, failed = 0, []
    for item in request.session.items:
        names = set(item.function.__code__.co_varnames[: item.function.__code__.co_argcount])
        known = names <= {"machine", "version_info", "expect", "recipe", "gpu", "host"}
        if not known or not item.get_closest_marker("boot") or item.get_closest_marker("exercise"):
            continue
        try:
            item.function(**{n: anew.get(n) or request.getfixturevalue(n) for n in names})
            ran += 1
        except pytest.skip.Exception:
            continue
        except AssertionError as error:
            failed.append(f"{item.path.stem}::{item.name}: {error}")
    assert failed == []
    assert ran, "no check looks at the boot"
