"""A machine that has booted again is as it was."""

import pytest
from applies import only_if
from harness import collector, reboot, run_python, stop_and_start

pytestmark = [pytest.mark.boot, pytest.mark.exercise]


@only_if(lambda expect: expect.get("reboot"))
def test_every_check_of_the_boot_holds_after_a_reboot(request, host):
    reboot(host)
    check_boot(request, host)


@only_if(lambda expect: expect.get("restart"))
def test_every_check_of_the_boot_holds_after_stop_and_start(request, host, expect):
    check_boot(request, stop_and_start(host, request.config, expect))


def check_boot(request, host):
    """Run the checks of the boot, but for those that act and those with fixtures of their own."""
    machine = run_python(host, collector())
    anew = {"machine": machine, "version_info": machine["baked"], "host": host}
    ran, failed = 0, []
    for item in request.session.items:
        names = set(item.function.__code__.co_varnames[: item.function.__code__.co_argcount])
        known = names <= {*anew, "expect", "recipe", "gpu"}
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
