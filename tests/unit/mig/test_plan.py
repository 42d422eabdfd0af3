"""MIG without a GPU: profiles, check, plan, Kubernetes, the matrix's default labels."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from invoke import Context, Exit

from kiln import facts
from kiln.base.errors import KilnError
from kiln.base.paths import runtime_module
from kiln.cli import gpu as gpu_tasks
from kiln.mig.check import (
    check_mig_config,
    label_layout,
    label_problem,
    label_slices,
    labels_with,
)
from kiln.mig.k8s import k8s_configuration, k8s_text, planned_labels
from kiln.mig.plan import draw_text, plan_layout
from kiln.mig.profiles import gpu_type, gpu_types, profiles_for, profiles_rows
from tests.unit.searches import examples

placement = runtime_module("gpu_mig.placement")
config = runtime_module("gpu_mig.config")


# --- profiles ------------------------------------------------------------------------------


def test_the_table_shows_what_lgip_shows():
    rows = profiles_rows(profiles_for("p5.48xlarge"))
    assert ("3g.40gb", "9", "2", "16", "39.5", "60", "{0,4}:4") in rows

    # What nobody published is marked.
    assert "1g.16gb*" in [row[0] for row in profiles_rows(profiles_for("g7.48xlarge"))]


@pytest.mark.parametrize(
    ("typed", "found"),
    [("H100-80GB", "H100-80GB"), ("h100 80gb", "H100-80GB"), ("b200", "B200-180GB"),
     ("0x20B010DE", "A100-40GB"), ("NVIDIA A100-SXM4-80GB", "A100-80GB")],
)  # fmt: skip
def test_a_gpu_is_found_as_people_write_it(typed, found):
    assert gpu_type(typed).name == found


# --- check ---------------------------------------------------------------------------------


MIXED = "1g.5gb=1,2g.10gb=1,3g.20gb=1"


@pytest.mark.parametrize(
    ("where", "devices", "reason", "nearest"),
    [
        ({"gpu": "H100-80GB"}, "2g.20gb=2,4g.40gb=1", "8 of 7 compute", "2g.20gb=2,3g.40gb=1"),
        # 7 of 7 compute slices do not decide.
        ({"instance_type": "p4d.24xlarge"}, "3g.20gb=2,1g.5gb=1", "memory slices", MIXED),
        ({"instance_type": "p4de.24xlarge"}, "1g.5gb=7", "no profile 1g.5gb", "1g.10gb=7"),
        ({"gpu": "A10G"}, "1g.5gb=1", "no MIG on this GPU", None),
        ({"gpu": "nvidia l40s"}, "1g.5gb=1", "no MIG on this GPU", None),
        ({"gpu": "H100-80GB"}, "2g.20gb=2,3g.40gb=1", None, None),
    ],
)
def test_layout_that_does_not_fit_has_a_reason_and_the_nearest(where, devices, reason, nearest):
    answer = check_mig_config(**where, devices=devices)
    assert answer["valid"] is (reason is None)
    assert (reason or "") in (answer["reason"] or "")
    assert answer["nearest"] == nearest
    if nearest:
        assert check_mig_config(**where, devices=nearest)["valid"] is True


def test_a_valid_layout_comes_with_its_places():
    answer = check_mig_config(instance_type="p5.48xlarge", devices="1g.10gb=2,2g.20gb=1,3g.40gb")
    places = sorted(answer["placement"], key=lambda p: p["start"])
    assert [(p["profile"], p["start"]) for p in places] == [
        ("2g.20gb", 0), ("1g.10gb", 2), ("1g.10gb", 3), ("3g.40gb", 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"gpu": "H100-80GB", "devices": "2g20gb=1"}, "not a MIG profile name"),
        ({"gpu": "H100-80GB", "devices": "2g.20gb=x"}, "is not a count"),
        ({"gpu": "H100-80GB", "devices": "1g.10gb=0"}, "no instance is requested"),
        ({"gpu": "A30", "instance_type": "p5.48xlarge", "devices": "1g.6gb"}, "either a GPU or"),
        ({"instance_type": "p5.48xlrge", "devices": "1g.10gb=1"}, "not a GPU instance type"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments, says):
    with pytest.raises(KilnError, match=says) as e:
        check_mig_config(**arguments)
    assert e.value.exit_status == 2


# --- plan ----------------------------------------------------------------------------------


def test_exit_status_is_1_where_it_does_not_fit():
    with pytest.raises(Exit) as ended:
        gpu_tasks.plan(Context(), instance_type="p4d.24xlarge", want="1g.5gb=60")
    assert ended.value.code == 1
    answer = plan_layout("p4d.24xlarge", "1g.5gb=60")
    assert (answer["fits"], answer["missing"], answer["used"]) == (False, {"1g.5gb": 4}, 8)
    lines = draw_text(answer).splitlines()
    assert "1g.5gb=4 more than 8 GPUs hold" in lines[-1]
    assert len({line.rindex("  ") for line in lines if line.startswith("  GPU")}) == 1


def test_plan_uses_the_fewest_gpus():
    # The fullest layouts first would take three.
    assert plan_layout("p4d.24xlarge", "3g.20gb=2,1g.5gb+me=2")["used"] == 2


def test_a_profile_the_gpu_does_not_have_gets_the_like_one():
    with pytest.raises(KilnError, match=r"has no MIG profile 1g\.5gb") as e:
        plan_layout("p5.48xlarge", "1g.5gb=8")
    assert "did you mean 1g.10gb?" in e.value.hint


def test_the_plan_is_a_configuration_that_the_ami_reads():
    answer = plan_layout("p4d.24xlarge", "1c.3g.20gb=3,1g.5gb=9")
    label = config.labels_of(answer["label"], "x")["planned"]
    devices = {e.devices: dict(e.mig_devices) for e in label.entries}
    asked: dict[str, int] = {}
    for indices, counts in devices.items():
        for name, n in counts.items():
            asked[name] = asked.get(name, 0) + n * len(indices)
    assert asked == {"1c.3g.20gb": 3, "1g.5gb": 9}
    assert label_slices("planned", 8, gpu_types()["A100-40GB"], {"planned": label})


wishes = st.sampled_from([t.type for t in facts.instances().values() if t.mig]).flatmap(
    lambda name: st.tuples(
        st.just(name),
        st.dictionaries(
            st.sampled_from(sorted(gpu_types()[facts.instance(name).gpu].profiles)),
            st.integers(1, 12),
            min_size=1,
            max_size=4,
        ),
    )
)


@examples(50)
@given(wishes)
def test_plan_fits_and_leaves_nothing_out(wish):
    instance_type, counts = wish
    kind = gpu_types()[facts.instance(instance_type).gpu]
    answer = plan_layout(instance_type, ",".join(f"{p}={n}" for p, n in counts.items()))
    assert answer["used"] <= answer["available"]
    seen: dict[str, int] = dict(answer["missing"])
    for gpu in answer["gpus"]:
        names = [i["profile"] for i in gpu["instances"]]
        assert names
        fixed = [placement.Placed(i["profile"], i["start"]) for i in gpu["instances"]]
        assert placement.over_budget(kind, names) is None
        taken = [
            s for i in gpu["instances"] for s in range(i["start"], i["start"] + i["memory_slices"])
        ]
        assert len(taken) == len(set(taken))
        assert all(p.start in kind.profile(p.profile).starts for p in fixed)
        for name in names:
            seen[name] = seen.get(name, 0) + 1
    assert seen == counts
    assert answer["fits"] == (not answer["missing"])


# --- Kubernetes ----------------------------------------------------------------------------


def paths(values, at="") -> set[str]:
    if not isinstance(values, dict):
        return {at}
    return {p for k, v in values.items() for p in paths(v, f"{at}.{k}".lstrip("."))}


@pytest.mark.parametrize("owner", ["ami", "operator"])
def test_only_values_that_todays_charts_have(owner):
    charts = facts.table("mig-kubernetes")["charts"]
    answer = k8s_configuration("all-balanced", "mixed", instance_type="p5.48xlarge", owner=owner)
    assert paths(answer["gpu_operator"]) <= set(charts["gpu-operator"]["values"])
    assert paths(answer["device_plugin"]) <= set(charts["nvidia-device-plugin"]["values"])


@pytest.mark.parametrize(
    ("label", "strategy", "where", "offered"),
    [
        ("all-1g.10gb", "single", {"instance_type": "p5.48xlarge"}, {"nvidia.com/gpu": 56}),
        ("all-1g.5gb.me", "mixed", {"gpu": "A100-40GB"}, {"nvidia.com/mig-1g.5gb.me": 1}),
        ("all-balanced", "mixed", {"instance_type": "p4d.24xlarge"},
         {"nvidia.com/mig-1g.5gb": 16, "nvidia.com/mig-2g.10gb": 8, "nvidia.com/mig-3g.20gb": 8}),
    ],
)  # fmt: skip
def test_a_node_offers_its_slices(label, strategy, where, offered):
    assert k8s_configuration(label, strategy, **where)["resources"] == offered


@pytest.mark.parametrize(
    ("label", "strategy", "where", "says"),
    [
        ("all-balanced", "singel", {}, "unknown strategy 'singel'"),
        ("all-balancd", "mixed", {"gpu": "A100-40GB"}, "no label 'all-balancd'"),
        ("all-balanced", "mixed", {"gpu": "A100"}, "more than one GPU"),
        ("all-1g.5gb", "mixed", {"instance_type": "p5.48xlarge"}, "is for other GPUs"),
        (
            "all-balanced",
            "single",
            {"gpu": "A100-40GB"},
            "one profile on every GPU; all-balanced creates 1g.5gb, ",
        ),
        ("all-enabled", "mixed", {"gpu": "A100-40GB"}, "turns MIG on without slices"),
    ],
)
def test_kubernetes_questions_without_an_answer_are_refused(label, strategy, where, says):
    with pytest.raises(KilnError, match=says) as refused:
        k8s_configuration(label, strategy, **where)
    assert refused.value.exit_status == 2


def test_single_beside_whole_gpus_is_refused():
    labels = planned_labels("p4d.24xlarge", "1g.5gb=14")
    with pytest.raises(KilnError, match=r"planned creates 1g\.5gb on 2 of 8 GPUs"):
        k8s_configuration("planned", "single", instance_type="p4d.24xlarge", labels=labels)
    mixed = k8s_configuration("planned", "mixed", instance_type="p4d.24xlarge", labels=labels)
    assert mixed["resources"] == {"nvidia.com/gpu": 6, "nvidia.com/mig-1g.5gb": 14}
    with pytest.raises(KilnError, match="does not fit on p4d"):
        planned_labels("p4d.24xlarge", "1g.5gb=57")


def test_the_ami_owns_the_slices_unless_the_operator_does():
    ours = k8s_configuration("all-balanced", "mixed", gpu="H200-141GB")
    theirs = k8s_configuration("all-balanced", "mixed", gpu="H200-141GB", owner="operator")
    assert ours["gpu_operator"]["migManager"] == {"enabled": False}
    assert ours["node_labels"] == {}
    # The ClusterPolicy's definition takes all-disabled or nothing; the label selects the layout.
    assert theirs["gpu_operator"]["migManager"]["config"] == {"default": "all-disabled"}
    assert (ours["gpu_mig"], theirs["gpu_mig"]) == ({}, {"MIG_OWNER": "operator"})
    assert theirs["node_labels"] == {"nvidia.com/mig.config": "all-balanced"}


def test_the_text_is_yaml_in_parts():
    text = k8s_text(k8s_configuration("all-balanced", "mixed", instance_type="p4d.24xlarge"))
    assert "# node labels\n# none: gpu-mig on the AMI makes the slices\n" in text
    read = yaml.safe_load(text)  # the parts have no key in common
    assert read["mig"] == {"strategy": "mixed"}
    assert read["nvidia.com/mig-1g.5gb"] == 16
    assert read["resources"] == {"limits": {"nvidia.com/mig-1g.5gb": 1}}


def test_planned_layout_says_what_a_node_offers():
    labels = planned_labels("p4d.24xlarge", "1g.5gb=40,3g.20gb=4")
    ours = k8s_configuration("planned", "mixed", instance_type="p4d.24xlarge", labels=labels)
    assert ours["resources"] == {"nvidia.com/mig-1g.5gb": 40, "nvidia.com/mig-3g.20gb": 4}
    text = k8s_text(ours)
    assert "# on the AMI, /etc/kiln/mig-config.d/planned.json\n" in text
    # gpu-mig reads what is shown, and makes the same of it.
    again = k8s_configuration(
        "planned",
        "mixed",
        instance_type="p4d.24xlarge",
        labels=config.labels_of(ours["mig_config"], "x"),
    )
    assert again["resources"] == ours["resources"]


def test_operator_gets_config_map_of_own_layout():
    labels = planned_labels("p4d.24xlarge", "1g.5gb=40,3g.20gb=4")
    charts = facts.table("mig-kubernetes")["charts"]
    theirs = k8s_configuration(
        "planned", "mixed", instance_type="p4d.24xlarge", labels=labels, owner="operator"
    )
    values = theirs["gpu_operator"]
    made = values["migManager"]["config"]
    assert (made["default"], made["create"], made["name"]) == (
        "all-disabled", True, "kiln-mig-config",
    )  # fmt: skip
    inside = yaml.safe_load(made["data"]["config.yaml"])
    assert set(inside["mig-configs"]) == {"all-disabled", "planned"}
    assert paths(values) <= set(charts["gpu-operator"]["values"])
    shipped = k8s_configuration("all-balanced", "mixed", gpu="H100-80GB", owner="operator")
    assert shipped["gpu_operator"]["migManager"]["config"] == {"default": "all-disabled"}


def test_labels_of_a_drop_in_file_are_known(tmp_path):
    own = tmp_path / "ours.yaml"
    own.write_text(
        "version: v1\nmig-configs:\n  ours:\n  - devices: all\n    mig-enabled: true\n"
        "    mig-devices: {1g.10gb: 4}\n"
    )
    for named in (own, tmp_path):
        answer = k8s_configuration(
            "ours", "single", instance_type="p4d.24xlarge", labels=labels_with(str(named))
        )
        assert answer["resources"] == {"nvidia.com/gpu": 32}
    own.write_text("version: v2\nmig-configs: {}\n")
    with pytest.raises(KilnError, match=r"ours\.yaml: version 'v2'") as e:
        labels_with(str(own))
    assert e.value.exit_status == 2


# --- default labels of the matrix ----------------------------------------------------------


def test_a_default_label_must_fit_the_types_that_have_mig():
    def problem(label, instance_type):
        return label_problem(label, facts.instance(instance_type))

    assert problem("all-balanced", "p4d.24xlarge") == ""
    assert problem("all-1g.10gb", "p5.48xlarge") == ""
    unfit = problem("all-1g.10gb", "p5e.48xlarge")
    assert unfit.startswith("MIG label 'all-1g.10gb' on p5e.48xlarge (H200-141GB)")
    assert "did you mean 'all-balanced'?" in problem("all-balancd", "p5.48xlarge")


@pytest.mark.parametrize(
    ("label", "instance_type", "layout"),
    [
        ("all-3g.20gb", "p4d.24xlarge", (True, ["3g.20gb"])),
        ("all-disabled", "p4d.24xlarge", (False, [])),
        ("all-balancd", "p4d.24xlarge", (False, [])),
        ("all-balanced", "g5.xlarge", (False, [])),
    ],
)
def test_label_turns_mig_on_with_its_profiles(label, instance_type, layout):
    assert label_layout(label, facts.instance(instance_type)) == layout
