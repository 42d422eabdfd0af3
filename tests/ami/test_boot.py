"""The machine has booted completely, for the first time from this image."""

import json

import pytest
from applies import only_if
from expectations import assert_active, assert_enabled, assert_seen, driver_errors, skip_in_lab

pytestmark = pytest.mark.boot


def test_no_unit_failed_but_those_that_need_a_cluster(machine, expect):
    assert_seen(machine, "units")
    excused = [*expect.get("needs_cluster", []), *machine["too_slow_for"]]
    failed = [
        f"{unit}: {words}" for unit, words in machine["failed"].items() if unit not in excused
    ]
    assert not failed, "\n".join(failed)


@only_if(lambda expect: expect.get("needs_cluster"))
def test_the_parents_way_into_its_cluster_starts_at_boot(machine):
    assert_enabled(machine, "nodeadm-config.service")
    assert_enabled(machine, "nodeadm-run.service")


@only_if(lambda expect: expect["recipe"].get("flavor") == "parallelcluster")
def test_parallelcluster_takes_the_image_for_one_of_its_own(machine, recipe):
    text = machine["text"]["/opt/parallelcluster/.bootstrapped"] or ""
    assert text.strip() == f"aws-parallelcluster-cookbook-{recipe['parallelcluster']}"


def test_boot_is_finished(machine):
    assert_active(machine, "multi-user.target")


def test_no_unit_was_left_out_for_an_ordering_cycle(machine):
    assert machine["cycles"] == []


def test_cloud_inits_network_stage_ran(machine):
    # Its name from 24.3 on is the second one; Ubuntu 24.04 and older keep the first.
    names = ("cloud-init.service", "cloud-init-network.service")
    there = [n for n in names if machine["units"].get(n, {}).get("LoadState") == "loaded"]
    assert there, "there is no unit of cloud-init's network stage"
    for name in there:
        assert_active(machine, name)


def test_cloud_init_is_done(machine):
    # Its last stage writes the file, with what failed in any of them; `cloud-init status` reads it.
    result = machine["text"]["/run/cloud-init/result.json"]
    assert result, "cloud-init has not finished"
    assert json.loads(result)["v1"]["errors"] == []


def test_cloud_init_is_not_degraded(machine):
    text = machine["text"]["/run/cloud-init/status.json"]
    assert text, "/run/cloud-init/status.json is missing: cloud-init did not run"
    stages = {n: s for n, s in json.loads(text)["v1"].items() if isinstance(s, dict)}
    assert stages, "status.json names no stage"
    # Before 23.4 a stage has no recoverable errors.
    wrong = {n: [s.get("errors"), s.get("recoverable_errors")] for n, s in stages.items()}
    wrong = {name: errors for name, errors in wrong.items() if any(errors)}
    assert wrong == {}, "see /var/log/cloud-init.log; often user data or an ordering cycle"


def test_the_clock_is_synchronized(machine, expect):
    skip_in_lab(machine, expect, "the lab has no time server")
    answer = machine["commands"]["chrony"]
    assert answer["rc"] == 0, f"chronyc: {answer['out'].strip()}; is chronyd installed and running?"
    assert answer["out"].strip().endswith(",Normal"), (
        f"chronyd has no time source, see `chronyc sources`: {answer['out'].strip()}"
    )


def test_imds_refuses_version_1(machine):
    imds = machine["imds"]
    assert imds.get("v2") == 200, f"IMDSv2 does not answer: {imds}"
    assert imds["v1"] == 401, "IMDSv1 answers: launch with HttpTokens=required"


@only_if(lambda expect: expect["recipe"].get("flavor") != "eks")  # whose pods are kept from it
def test_containers_reach_imds(machine, version_info):
    if not version_info["components"].get("container-toolkit", {}).get("runtimes"):
        pytest.skip("there is no container runtime on this image")
    hops = machine["imds"].get("hop_limit")
    assert hops, f"no answer of IMDS was seen: {machine['imds']}"
    assert hops > 1, "launch with HttpPutResponseHopLimit=2, EC2's default for this AMI"


def test_the_root_has_free_space(machine, expect):
    skip_in_lab(machine, expect, "a lab guest's disk is the host's")
    assert machine["free"] >= 1 << 30, (
        f"{machine['free'] >> 20} MiB are free on /: give the row a larger volume"
    )


@only_if(lambda expect: expect["recipe"].get("distro", {}).get("id") == "al2023")
def test_selinux_contexts_of_our_files_are_the_policys(machine, expect):
    skip_in_lab(machine, expect, "the lab has no SELinux")
    if not machine["text"]["/sys/fs/selinux/enforce"]:
        pytest.skip("SELinux is disabled")
    answer = machine["commands"]["selinux"]
    assert answer["rc"] == 0, f"run restorecon at the end of the bake: {answer['out'][-1500:]}"


def test_kernel_is_the_one_that_was_baked_for(machine, version_info):
    if machine["boot"]["container"]:
        pytest.skip("a lab guest runs the host's kernel")
    boots = version_info["kernel"]["boots"]
    assert boots, "the image names no kernel"
    assert machine["now"]["kernel"]["running"] == boots


def test_the_kernel_log_reports_no_broken_driver(machine):
    if machine["boot"]["container"]:
        pytest.skip("the lab plays a guest's kernel log")
    # Without what programs wrote into it, such as the test Xid.
    answer = machine["commands"]["kernel-log"]
    assert answer["rc"] == 0 and answer["out"].strip(), "the kernel log was not read"
    assert driver_errors(answer["out"]) == [], "look the Xid up with `./invoke xid`"


def test_every_unit_the_components_enabled_starts_at_boot(machine, version_info):
    units = {u for record in version_info["components"].values() for u in record.get("units", [])}
    assert units, "no component recorded a unit"
    for unit in sorted(units):
        assert_enabled(machine, unit)


def test_enabled_unit_is_up_or_held_back_by_its_condition(machine, version_info):
    units = {u for record in version_info["components"].values() for u in record.get("units", [])}
    assert units, "no component recorded a unit"
    down = {
        unit: f"{facts['ActiveState']} ({facts['Result']})"
        for unit in sorted(units)
        for facts in [machine["units"][unit]]
        if facts["ActiveState"] != "active" and facts["ConditionResult"] != "no"
    }
    assert down == {}


def test_the_recipe_on_the_image_is_the_one_that_is_checked(machine, recipe):
    text = machine["text"]["/etc/kiln/recipe.json"]
    assert text, "/etc/kiln/recipe.json is missing"
    baked = json.loads(text)
    for field in ("name", "driver", "kernel_module", "cuda", "nccl", "efa", "arch", "flavor"):
        assert baked.get(field) == recipe[field], f"{field} differs"
