"""The effective limits of locked memory and open files, and kernel settings."""

import pytest
from expectations import recorded

KINDS = ("-", "soft")


def pairs(words):
    """["memlock=unlimited"] → {"memlock": "unlimited"}."""
    return dict(word.split("=", 1) for word in words)


@pytest.mark.bake
def test_the_files_say_what_was_recorded(machine, version_info):
    record = recorded(version_info, "tuning")
    for path, words in (
        ("/etc/sysctl.d/60-kiln.conf", record["sysctls"]),
        ("/etc/security/limits.d/60-kiln.conf", record["limits"]),
    ):
        assert words, f"the provisioner recorded nothing of {path}"
        lines = [" ".join(line.split()) for line in (machine["text"][path] or "").splitlines()]
        for name, value in pairs(words).items():
            wanted = (f"{name} = {value}", *(f"root {kind} {name} {value}" for kind in KINDS))
            assert set(wanted) & set(lines), f"{path} does not set {name} to {value}"


@pytest.mark.boot
def test_the_kernel_has_the_settings(machine, version_info):
    wanted = pairs(recorded(version_info, "tuning")["sysctls"])
    if machine["boot"]["container"]:
        # The rest of /proc/sys is the host's, and a guest may not write it.
        wanted = {name: value for name, value in wanted.items() if name.startswith("net.")}
    assert wanted, "nothing to look at"
    assert {name: machine["sysctls"][name] for name in wanted} == wanted


@pytest.mark.boot
def test_a_login_has_the_limits(machine, recipe, version_info):
    wanted = pairs(recorded(version_info, "tuning")["limits"])
    assert wanted, "the provisioner recorded no limit"
    if machine["boot"]["container"] and not machine["boot"]["may_raise_limits"]:
        pytest.skip("this container has no CAP_SYS_RESOURCE: no login can raise its limits")
    for name, value in wanted.items():
        number = -1 if value == "unlimited" else int(value)
        soft, hard = machine["limits"][name]
        assert soft == number, name
        # The image must not lower what a program may ask for; -1 is unlimited.
        assert hard == -1 or hard > number or recipe["distro"]["id"] == "al2", name


@pytest.mark.boot
def test_services_may_lock_memory(machine):
    answer = machine["commands"]["service-limits"]["out"].strip()
    # systemd 219 writes infinity as the largest number.
    assert answer in ("DefaultLimitMEMLOCK=infinity", f"DefaultLimitMEMLOCK={2**64 - 1}")


@pytest.mark.bake
def test_ptrace_is_open_exactly_where_efa_needs_it(machine, recipe):
    needed = bool(recipe["efa"]) and recipe["distro"]["family"] == "debian"
    text = machine["text"]["/etc/sysctl.d/60-kiln.conf"]
    assert text, "/etc/sysctl.d/60-kiln.conf is missing"
    assert ("kernel.yama.ptrace_scope = 0" in text) == needed
