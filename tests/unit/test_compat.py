"""`check`: what a user is told about a GPU stack, in the matrix or not."""

import re
from datetime import date

import pytest

from kiln.base import versions
from kiln.base.errors import KilnError
from kiln.base.findings import errors
from kiln.base.paths import ROOT
from kiln.cli import checks
from kiln.compat.engine import check_combination, check_matrix, check_recipe
from kiln.compat.judge import clashes
from kiln.compat.rules.combination import recipe_combination
from kiln.compat.which import rows_for
from kiln.facts import branches, instances, table
from kiln.matrix.load import load_recipes
from tests.unit.rows import row

TODAY = date(2026, 11, 21)
RECIPES = {recipe.name: recipe for recipe in load_recipes(ROOT / "amis.yaml")}
NEWEST_580 = max(table("drivers")["branches"]["580"]["versions"], key=versions.key)


def classic(**changes):
    return row("al2/classic/base/x86_64").changed(**changes)


def lts(**changes):
    return row("al2023/lts/base/x86_64").changed(**changes)


def levels(result):
    return {finding["rule"]: finding["level"] for finding in result["findings"]}


def test_the_matrix_has_no_error():
    assert errors(check_matrix(RECIPES.values(), today=TODAY)) == []


def test_the_classic_stack_is_allowed_on_al2_with_a_warning_of_what_its_end_means():
    found = {finding.rule: finding for finding in check_recipe(classic(), today=TODAY)}
    assert found["OS-EOL"].level == "warning"
    assert "550.163.01" in found["OS-EOL"].why
    assert "DRV-EOL" in found


def test_what_an_end_means_names_the_last_versions_of_the_facts(marked):
    marked("efa", "os", "al2", last="1.50.0")
    marked("cuda", "repos", "rhel7", last="12.3.2", drivers={"last": "535"})
    (ended,) = [item for item in check_recipe(classic(), today=TODAY) if item.rule == "OS-EOL"]
    newest = branches()["535"].newest
    assert f"rhel7 repository stops at CUDA 12.3.2 and driver {newest}" in ended.why
    assert "the EFA installer at 1.50.0" in ended.why


def test_a_finding_names_its_row_and_line_and_source():
    recipe = classic(cuda="12.2.2", cudnn=None)
    (finding,) = errors(check_recipe(recipe, today=TODAY))
    assert finding.rule == "DRV-CUDA-MAJOR"
    assert finding.rows == (recipe.name,)
    assert finding.place == recipe.row.origins["cuda"]
    assert finding.path == "stacks.classic.cuda"
    assert finding.source


@pytest.mark.parametrize("known", table("cuda")["known_good"], ids=lambda known: known["name"])
def test_what_aws_ships_passes(known):
    variants = [known["check"]]
    variants += [{**known["check"], "cuda": other} for other in known.get("other_cuda", [])]
    variants += [{**known["check"], "kubernetes": k} for k in known.get("other_kubernetes", [])]
    for variant in variants:
        result = check_combination(**variant, today=TODAY)
        assert [f for f in result["findings"] if f["level"] == "error"] == []
        assert result["instance_types"]


def test_there_are_ten_known_good_sets():
    assert len(table("cuda")["known_good"]) == 10


def test_the_json_has_the_fields_a_script_reads():
    result = check_combination("al2", "510.47.03", cuda="12.2", today=TODAY)
    assert list(result) == ["findings", "instance_types", "unconfirmed_facts"]
    fields = {"level", "rule", "message", "why", "hint", "rows", "source"}
    fields |= {"file", "line", "column", "path", "also_at", "component"}
    assert all(set(finding) == fields for finding in result["findings"])


def test_the_hint_names_a_combination_that_works():
    result = check_combination("al2", "510.47.03", cuda="12.2", today=TODAY)
    (error,) = [f for f in result["findings"] if f["level"] == "error"]
    assert error["hint"] == "nearest that works: driver 535.309.01, or CUDA 11.6.2"
    for change in ({"driver": "535.309.01", "cuda": "12.2"}, {"cuda": "11.6.2"}):
        again = check_combination(**{"distro": "al2", "driver": "510.47.03", **change}, today=TODAY)
        assert "error" not in levels(again).values()


def test_with_two_clashes_a_hint_names_the_fix_of_one_and_of_both():
    # 570 is too old for CUDA 13, Ubuntu 20.04 has neither CUDA 13 nor support.
    result = check_combination("ubuntu2004", "570.211.01", cuda="13.0", today=TODAY)
    hints = {finding["rule"]: finding["hint"] for finding in result["findings"]}
    assert f"resolves this one: driver {NEWEST_580}, or CUDA 12.8.1; " in hints["DRV-CUDA-MAJOR"]
    for rule in ("DRV-CUDA-MAJOR", "OS-CUDA-REPO"):
        assert hints[rule].endswith(f"works: driver {NEWEST_580} with distro ubuntu2204")
    again = check_combination("ubuntu2204", NEWEST_580, cuda="13.0", today=TODAY)
    assert "error" not in levels(again).values()


def test_no_distribution_is_proposed_whose_kernel_nobody_knows():
    result = check_combination("ubuntu2004", "570.211.01", today=TODAY)
    hint = next(f["hint"] for f in result["findings"] if f["rule"] == "OS-EOL")
    assert "ubuntu2604" not in hint
    assert hint.endswith(f"nearest that works: distro ubuntu2204 with driver {NEWEST_580}")


def test_no_nccl_is_proposed_of_which_nobody_knows_the_cuda():
    result = check_combination("al2023", "580.178.04", cuda="12.9.1", nccl="2.12.7", today=TODAY)
    (finding,) = result["findings"]
    assert finding["hint"].endswith("nearest that works: NCCL 2.26.2")


def test_a_combination_is_told_which_nccl_has_packages_for_exactly_its_cuda():
    def answer(nccl: str) -> list[dict]:
        more = {"cuda": "13.2.2", "nccl": nccl, "today": TODAY}
        return check_combination("al2023", "595.91.07", **more)["findings"]

    (warning,) = answer("2.30.7")
    assert (warning["level"], warning["rule"]) == ("warning", "NCCL-CUDA")
    assert "2.30.7" not in warning["hint"]
    proposed = warning["hint"].split(" choose NCCL ")[1].split(";")[0].split(" or ")
    assert [answer(version) for version in proposed] == [[], [], []]


def test_a_flavour_without_a_parent_of_the_distribution_names_one_that_has_it():
    result = check_combination("debian12", "580.178.04", flavor="eks", kubernetes="1.35")
    hint = next(f["hint"] for f in result["findings"] if f["rule"] == "EKS-OS")
    assert hint.endswith("nearest that works: distro al2023")


def test_a_clash_with_some_types_leaves_the_others_served():
    # Without EFA an old EFA installer does no harm.
    old_efa = check_combination("al2023", "580.95.05", efa="1.43.2", today=TODAY)
    assert "error" in levels(old_efa).values()
    assert "g6.xlarge" in old_efa["instance_types"]
    assert "p5.48xlarge" not in old_efa["instance_types"]


def test_which_types_the_latest_driver_serves_is_not_known():
    assert check_combination("al2023", "latest")["instance_types"] == []


def test_a_mistyped_driver_gets_the_right_one():
    result = check_combination("al2", "510.47.3", today=TODAY)
    (error,) = [f for f in result["findings"] if f["level"] == "error"]
    assert error["rule"] == "DRV-UNKNOWN"
    assert "did you mean 510.47.03?" in error["message"]


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"distro": "al2024"}, "al2023"),
        ({"instance_type": "p5.47xlarge"}, "p5.48xlarge"),
        ({"kernel_module": "opne"}, "open"),
        ({"arch": "amd64"}, "did you mean 'x86_64'?"),
        ({"kernel_module": "OPEN"}, "did you mean 'open'?"),
        ({"colour": "red"}, ""),
    ],
)
def test_what_is_not_even_a_choice_is_bad_input(wrong, hint):
    with pytest.raises(KilnError) as error:
        check_combination(**{"distro": "al2", "driver": "510.47.03", **wrong})
    assert error.value.exit_status == 2
    assert hint in error.value.hint


def test_a_wrong_target_in_the_matrix_is_named_with_its_line():
    recipe = classic(target_instance_types=("p4d.25xlarge",))
    with pytest.raises(KilnError, match=rf"{recipe.row.place}: p4d\.25xlarge"):
        check_recipe(recipe)


def test_the_types_served_are_those_the_driver_and_the_module_drive():
    served = check_combination("al2", "510.47.03", today=TODAY)["instance_types"]
    assert {"g4dn.xlarge", "g5.xlarge", "p4d.24xlarge", "p3dn.24xlarge"} <= set(served)
    # Too new for it, another processor, not offered, a fraction of a GPU.
    assert not {"p5.48xlarge", "g6.xlarge", "g5g.xlarge", "p3.2xlarge", "g6f.large"} & set(served)


def test_blackwell_is_served_by_open_modules_of_a_new_enough_driver_only():
    open_ = check_combination("al2023", "595.112.07", kernel_module="open", today=TODAY)
    closed = check_combination("al2023", "595.112.07", kernel_module="proprietary", today=TODAY)
    blackwell = {
        name
        for name, instance_type in instances().items()
        if (instance_type.gpu_arch, instance_type.arch) == ("blackwell", "x86_64")
    }
    assert blackwell <= set(open_["instance_types"])
    assert not blackwell & set(closed["instance_types"])


def test_both_modules_serve_what_either_serves():
    def served(module: str) -> set[str]:
        found = check_combination("al2023", "580.178.04", kernel_module=module, today=TODAY)
        return set(found["instance_types"])

    assert served("both") == served("open") | served("proprietary")
    assert "p3dn.24xlarge" in served("proprietary") - served("open")
    assert "p6-b200.48xlarge" in served("open") - served("proprietary")


def test_both_modules_are_the_way_out_where_targets_want_different_ones():
    types = ("p3dn.24xlarge", "p6-b200.48xlarge")
    found = check_combination(
        "al2023", "580.178.04", kernel_module="open", instance_types=types, today=TODAY
    )["findings"]
    assert [finding["rule"] for finding in found if finding["level"] == "error"] == ["GPU-OPEN-OLD"]
    assert "kernel_module: both" in found[-1]["hint"]


def test_on_old_g_families_both_modules_warn_of_nothing():
    found = check_combination(
        "al2023", "580.178.04", kernel_module="both", instance_type="g5.xlarge", today=TODAY
    )["findings"]
    assert "GPU-OPEN-G" not in {finding["rule"] for finding in found}


def test_a_combination_that_does_not_work_serves_nothing():
    assert check_combination("al2", "510.47.03", cuda="12.2")["instance_types"] == []


def test_an_arm64_instance_type_says_which_image_is_meant():
    result = check_combination("al2023", "595.91.07", instance_type="g5g.xlarge", today=TODAY)
    assert "ARCH-INSTANCE" not in levels(result)
    assert "g5g.xlarge" in result["instance_types"]


def test_strict_refuses_a_branch_without_security_fixes():
    found = {f.rule: f.level for f in check_recipe(classic(), today=TODAY, strict=True)}
    assert found["DRV-EOL"] == "error"


def test_a_branch_ends_on_its_day():
    before = check_combination("al2023", "580.178.04", today=date(2028, 6, 30))
    after = check_combination("al2023", "580.178.04", today=date(2028, 7, 1))
    assert "DRV-EOL" not in levels(before)
    assert levels(after)["DRV-EOL"] == "warning"


def level_on(day, rule, distro, driver, **more):
    """The level of a rule's finding on a day; None without one."""
    return levels(check_combination(distro, driver, today=day, **more)).get(rule)


def test_a_distribution_ends_after_its_last_day():
    assert level_on(date(2025, 5, 31), "OS-EOL", "ubuntu2004", "535.309.01") is None
    assert level_on(date(2025, 6, 1), "OS-EOL", "ubuntu2004", "535.309.01") == "error"


def test_declared_extended_support_covers_its_last_day():
    asked = ("OS-EOL", "ubuntu2004", "535.309.01")
    assert level_on(date(2030, 4, 30), *asked, extended_support=True) == "warning"
    assert level_on(date(2030, 5, 1), *asked, extended_support=True) == "error"


def test_each_support_of_a_kubernetes_version_covers_its_last_day():
    asked = ("EKS-OS", "al2023", "580.178.04")
    on = {
        day: level_on(day, *asked, flavor="eks", kubernetes="1.31")
        for day in (date(2025, 11, 26), date(2025, 11, 27), date(2026, 11, 26), date(2026, 11, 27))
    }
    assert list(on.values()) == [None, "warning", "warning", "error"]


def test_the_kubernetes_versions_that_are_proposed_are_supported_that_day():
    answer = check_combination(
        "al2023", "580.178.04", flavor="eks", kubernetes="1.30", today=date(2026, 11, 26)
    )
    (hint,) = [each["hint"] for each in answer["findings"] if each["rule"] == "EKS-OS"]
    assert "1.31" in hint.split(";")[0] and "1.30" not in hint


def test_a_fact_nobody_confirmed_only_warns():
    # L40S's first driver branch is unconfirmed; p6-b300's is in AWS's device lists.
    ada = check_combination("ubuntu2204", "530.30.02", instance_type="g6e.xlarge", today=TODAY)
    assert levels(ada)["GPU-MIN"] == "warning"
    b300 = check_combination("al2023", "570.211.01", instance_type="p6-b300.48xlarge", today=TODAY)
    assert levels(b300)["GPU-BLACKWELL-OPEN"] == "error"
    # It does not serve it all the same.
    assert "g6e.xlarge" not in ada["instance_types"]


def test_a_driver_older_than_the_first_of_its_architecture_surely_does_not_know_a_gpu():
    older = check_combination("al2", "515.86.01", instance_type="p5.48xlarge", today=TODAY)
    first = check_combination("al2", "520.61.05", instance_type="p5.48xlarge", today=TODAY)
    assert levels(older)["GPU-HOPPER"] == "error"
    assert levels(first)["GPU-HOPPER"] == "warning"


def test_declared_extended_support_makes_an_ended_distribution_a_warning():
    refused = check_combination("ubuntu2004", "535.309.01", today=TODAY)
    declared = check_combination("ubuntu2004", "535.309.01", extended_support=True, today=TODAY)
    assert levels(refused)["OS-EOL"] == "error"
    assert levels(declared)["OS-EOL"] == "warning"


def test_the_distributions_own_packages_may_build_where_stock_sources_fail():
    stock = check_combination("debian12", "535.261.03", driver_source="runfile", today=TODAY)
    own = check_combination("debian12", "535.261.03", driver_source="distro", today=TODAY)
    assert levels(stock)["KERN-BUILD"] == "error"
    assert "KERN-BUILD" not in levels(own)


def test_no_kernel_of_amazon_linux_was_measured_so_it_only_warns():
    result = check_combination("al2023", "570.211.01", today=TODAY)
    assert levels(result)["KERN-BUILD"] == "warning"


def test_a_pinned_kernel_is_the_one_that_counts():
    rolled = check_combination("ubuntu2404", "580.126.09", kernel="linux-aws-lts-24.04")
    assert "KERN-BUILD" not in levels(rolled)
    old = check_combination("ubuntu2404", "580.95.05", kernel="linux-aws-lts-24.04")
    assert levels(old)["KERN-BUILD"] == "error"


def test_a_row_without_fabric_manager_does_not_fit_an_nvswitch_target():
    components = tuple(name for name in lts().components if name != "nvidia-fabricmanager")
    recipe = lts(components=components, target_instance_types=("p5.48xlarge",))
    assert "FM-NEEDED" in {finding.rule for finding in errors(check_recipe(recipe, today=TODAY))}


def test_baking_the_driver_before_the_kernel_is_refused():
    names = [name for name in lts().components if name != "kernel"]
    names.insert(names.index("nvidia-driver") + 1, "kernel")
    found = errors(check_recipe(lts(components=tuple(names)), today=TODAY))
    assert [finding.rule for finding in found] == ["KERN-HEADERS"]


def test_a_check_machine_the_driver_does_not_drive_is_pointed_out():
    recipe = lts(verify_instance_type="p3dn.24xlarge")
    messages = [f.message for f in check_recipe(recipe, today=TODAY) if f.rule == "BUILD-INSTANCE"]
    assert any("p3dn.24xlarge" in message for message in messages)


def test_the_names_that_components_ask_for_are_the_vendors_names():
    for recipe in RECIPES.values():
        for driver in ("570.211.01", "580.178.04", "590.48.01", "595.112.07"):
            for source in ("repo", "distro"):
                changed = recipe.changed(driver=driver, driver_source=source, imex=True)
                imex = changed.changed(components=(*recipe.components, "nvidia-imex"))
                found = clashes(recipe_combination(imex, TODAY))
                assert [finding for finding in found if finding.rule.id == "FM-NAME"] == []


def test_nccl_without_cuda_is_refused_in_a_row():
    found = errors(check_recipe(lts(cuda=None), today=TODAY))
    assert {finding.rule for finding in found} == {"LIB-CUDA"}


def test_a_mig_label_has_to_fit_the_targets():
    recipe = lts(mig_config="all-1g.5gb", target_instance_types=("p5.48xlarge",))
    assert "MIG-GPU" in {finding.rule for finding in errors(check_recipe(recipe, today=TODAY))}


def about_mig(label, *types):
    """The findings about a row's MIG label for instance types, as (level, rule)."""
    recipe = lts(mig_config=label, target_instance_types=types, efa=None)
    found = check_recipe(recipe, today=TODAY)
    return [(each.level, each.rule) for each in found if each.rule.startswith("MIG-")]


def test_a_mig_label_does_not_keep_a_row_from_types_without_mig():
    assert not about_mig("all-1g.5gb", "p4d.24xlarge", "g5.xlarge")
    assert not about_mig("all-disabled", "g5.xlarge")
    recipe = lts(mig_config="all-1g.5gb", target_instance_types=("p4d.24xlarge",))
    assert rows_for("g5.xlarge", [recipe], today=TODAY)["serves"]


def test_a_mig_label_for_types_without_mig_alone_has_no_effect_there():
    assert about_mig("all-1g.5gb", "g5.xlarge") == [("warning", "MIG-LABEL")]
    assert about_mig("all-typo", "g5.xlarge") == [("error", "MIG-LABEL")]


def on_p4d(label, driver):
    """The findings about the driver's MIG of a row whose p4d machines begin with a layout."""
    recipe = lts(mig_config=label, target_instance_types=("p4d.24xlarge",), driver=driver)
    return [found for found in check_recipe(recipe, today=TODAY) if found.rule == "MIG-DRV"]


def test_the_profiles_of_a_mig_label_need_a_driver_that_has_them():
    (found,) = on_p4d("all-1g.10gb", "510.47.03")
    assert found.level == "error"
    assert "MIG profile 1g.10gb on A100 (p4d.24xlarge) needs driver >= 525" in found.message
    assert not on_p4d("all-1g.5gb", "510.47.03")
    assert not on_p4d("all-1g.10gb", "525.147.05")


def test_a_label_that_leaves_mig_off_needs_no_driver_with_mig():
    assert on_p4d("all-enabled", "450.51.06")
    assert not on_p4d("all-disabled", "450.51.06")


def test_a_flavour_without_its_version_is_judged_in_a_row_only():
    for flavor, rule in (("eks", "EKS-OS"), ("parallelcluster", "PC-OS")):
        asked = check_combination("al2023", "595.112.07", flavor=flavor, today=TODAY)
        assert rule not in levels(asked)
        row = errors(check_recipe(lts(flavor=flavor), today=TODAY))
        assert rule in {finding.rule for finding in row}


def test_a_build_machine_of_another_processor_is_an_error():
    (finding,) = errors(check_recipe(lts(instance_type="g5g.xlarge"), today=TODAY))
    assert finding.rule == "ARCH-BUILD"
    assert finding.message.startswith("g5g.xlarge is arm64, the image x86_64")
    assert "g4dn.xlarge" in finding.hint


def test_a_build_machine_of_the_account_settings_is_judged_too():
    row = lts()
    account = row.row.account.changed(instance_types=("g4dn.xlarge", "g5g.xlarge"))
    recipe = row.changed(row=row.row.changed(account=account))
    assert [finding.rule for finding in errors(check_recipe(recipe, today=TODAY))] == ["ARCH-BUILD"]


def asked(**more: str) -> dict:
    """What `./invoke check` answers for a combination on the command line."""
    return checks.check_answer({"distro": "al2023", "driver": "580.178.04", **more}, strict=False)


def test_a_kubernetes_version_eks_has_no_more_is_an_error():
    answer = asked(flavor="eks", kubernetes="1.30")
    assert [finding["rule"] for finding in answer["findings"]] == ["EKS-OS"]
    assert not asked(flavor="eks", kubernetes="1.35")["findings"]


def test_what_a_parallelcluster_release_brings_is_minded():
    found = asked(flavor="parallelcluster", parallelcluster="3.16.3")["findings"]
    assert "PC-EFA-DUP" in {finding["rule"] for finding in found}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kubernetes": "1.35"}, "--kubernetes is valid only for flavour eks"),
        ({"flavor": "eks", "parallelcluster": "3.16.3"}, "only for flavour parallelcluster"),
        ({"flavor": "eks", "kubernetes": "1.35.2"}, "1.35.2 is not a version such as 1.35"),
        ({"flavor": "parallelcluster", "parallelcluster": "3.1"}, "3.1 is not a version such as"),
    ],
)
def test_a_flavours_version_has_to_fit_the_flavour(more: dict[str, str], message: str):
    with pytest.raises(KilnError, match=message) as error:
        asked(**more)
    assert error.value.exit_status == 2


@pytest.mark.parametrize(
    ("flag", "wrong", "meant"),
    [
        ("driver", "580", NEWEST_580),
        ("driver", "v580.178.04", "580.178.04"),
        ("driver", "580.178.04-1", "580.178.04"),
        ("driver", " 580.178.04", "580.178.04"),
        ("driver", "the newest", ""),
        ("cuda", "13", "13.5.0"),
        ("cuda", "twelve", ""),
        ("nccl", "2.28", "2.28.9"),
        ("nccl", "2.28.9-1+cuda13.0", "2.28.9"),
        ("efa", "1.51", "1.51.0"),
    ],
)
def test_an_incomplete_version_on_the_command_line_is_bad_input(flag, wrong, meant):
    given = {"distro": "al2023", "driver": "580.178.04", flag: wrong}
    with pytest.raises(KilnError, match=f"--{flag} {re.escape(wrong)} is not a version") as error:
        checks.check_answer(given, strict=False)
    assert error.value.exit_status == 2
    assert error.value.hint == (f"did you mean {meant}?" if meant else "")


def test_cudnn_8_and_cuda_13_do_not_go_together_and_that_is_certain():
    result = check_combination("al2023", "580.178.04", cuda="13.0.2", cudnn="8.9.7.29", today=TODAY)
    (error,) = [finding for finding in result["findings"] if finding["level"] == "error"]
    assert error["rule"] == "CUDNN-CUDA"
    assert error["hint"].startswith("for CUDA 13 choose cuDNN 9.12.0 or newer")


def test_the_cudnn_that_is_proposed_for_a_cuda_has_an_end_where_it_lost_it():
    asked = check_combination("al2023", "580.178.04", cuda="11.8", cudnn="9.12.0", today=TODAY)
    (hint,) = [each["hint"] for each in asked["findings"] if each["rule"] == "CUDNN-CUDA"]
    assert hint.startswith("for CUDA 11 choose cuDNN 8.5.0 or newer, older than 9.11.0;")


def test_a_driver_of_tomorrow_is_not_taken_for_an_old_one():
    (found,) = check_combination("al2023", "580.999.01", today=TODAY)["findings"]
    message, _, meant = found["message"].partition("; did you mean ")
    assert message == "580.999.01 is not an NVIDIA release"
    assert meant.removesuffix("?") in table("drivers")["branches"]["580"]["versions"]


def test_a_driver_nobody_ever_heard_of_gets_no_silly_guess():
    (found,) = check_combination("al2023", "999.1.2", today=TODAY)["findings"]
    assert found["message"] == "999.1.2 is not an NVIDIA release"
    assert "the branches: 450, 460" in found["hint"]


def test_a_branch_alone_is_not_a_version():
    result = check_combination("al2023", "580", today=TODAY)
    message = next(f["message"] for f in result["findings"] if f["rule"] == "DRV-UNKNOWN")
    assert f"did you mean {NEWEST_580}?" in message


def test_an_nccl_nobody_released_is_pointed_out():
    assert "NCCL-CUDA" in levels(check_combination("al2023", "580.178.04", nccl="9.9.9"))


def test_a_distribution_the_facts_do_not_know_is_named_with_its_row():
    recipe = classic(distro=classic().distro.changed(id="plan9"))
    with pytest.raises(KilnError, match=r"amis\.yaml:\d+:\d+: plan9 is not a known distribution"):
        check_recipe(recipe)


def test_an_unknown_pinned_kernel_is_pointed_out_and_not_judged():
    result = check_combination("ubuntu2404", "510.47.03", kernel="linux-lowlat", today=TODAY)
    assert "OS-SSM-KERNEL" in levels(result)
    assert not {"KERN-BUILD", "KERN-MIN"} & set(levels(result))


def test_a_driver_that_fails_on_an_older_kernel_is_doubted_on_a_newer_one():
    # ubuntu2404 boots 7.0, where only 580 and 595 were tried; 550 fails on its 6.8 already.
    doubted = check_combination("ubuntu2404", "550.163.01", driver_source="runfile", today=TODAY)
    assert levels(doubted)["KERN-BUILD"] == "warning"
    tried = check_combination("ubuntu2404", "580.178.04", today=TODAY)
    assert "KERN-BUILD" not in levels(tried)


@pytest.mark.parametrize(
    ("distro", "driver", "message"),
    [
        ("ubuntu2204", "580.105.08", "does not compile"),  # measured
        ("ubuntu2204", "580.119.02", "driver 580.119.02 was not measured"),
        ("ubuntu2204", "580.126.09", ""),  # measured
        ("ubuntu2204", "580.178.04", ""),  # newer than one that builds
        ("ubuntu2204", "535.309.01", "535.288.01 of the same branch does not compile there"),
        ("debian12", "580.119.02", "was not measured"),
        ("debian12", "580.126.09", ""),  # has the fix
    ],
)
def test_a_driver_newer_than_the_last_that_failed_is_doubted_until_one_builds(
    distro, driver, message
):
    found = check_combination(distro, driver, driver_source="repo", today=TODAY)["findings"]
    messages = [finding["message"] for finding in found if finding["rule"] == "KERN-BUILD"]
    assert bool(messages) == bool(message)
    assert not message or message in messages[0]
    assert message == "does not compile" or "error" not in {finding["level"] for finding in found}


def test_the_driver_proposed_from_a_distribution_is_the_one_it_packages():
    result = check_combination("debian12", "580.178.04", driver_source="distro", today=TODAY)
    hint = next(
        finding["hint"] for finding in result["findings"] if finding["rule"] == "OS-DRV-REPO"
    )
    assert "nearest that works: driver 535.309.01, or driver_source: runfile" in hint


def test_no_driver_is_proposed_that_may_not_compile_there():
    result = check_combination("debian12", "580.105.08", today=TODAY)
    hint = next(
        finding["hint"] for finding in result["findings"] if finding["rule"] == "KERN-BUILD"
    )
    assert hint.endswith("nearest that works: driver 580.126.09")


def test_the_hint_of_a_row_minds_the_packages_that_move_with_it():
    # DCGM's package follows the driver: the row of branch 570 has -cuda12, that of 580 -cuda13.
    recipe = lts(driver="570.211.01", cuda="13.0.2")
    finding = next(
        f for f in errors(check_recipe(recipe, today=TODAY)) if f.rule == "DRV-CUDA-MAJOR"
    )
    (driver,) = re.findall(r"driver (580[\d.]+)", finding.hint)
    assert not errors(check_recipe(recipe.changed(driver=driver), today=TODAY))


@pytest.mark.parametrize(
    ("distro", "page"),
    [
        ("ubuntu2004", "products/ubuntu.md"),
        ("debian12", "products/debian.md"),
        ("al2", "products/amazon-linux.md"),
    ],
)
def test_the_end_of_life_cites_the_page_of_the_rows_own_distribution(distro, page):
    findings = check_combination(distro, "535.309.01", today=TODAY)["findings"]
    (source,) = {item["source"] for item in findings if item["rule"] == "OS-EOL"}
    assert page in source
    assert source.count("products/") == 1
