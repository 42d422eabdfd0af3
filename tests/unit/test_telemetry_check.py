"""`telemetry.check`: anybody's agent configuration, judged as the agent judges it.

Every verdict here is that of the agent's own translator at 1.300071, and of Go's regexp package for
patterns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import KilnError
from kiln.base.findings import Finding
from kiln.cli.front import run
from kiln.telemetry.check_files import check_files
from kiln.telemetry.go_pattern import go_pattern_problem


def logs(*entries: dict[str, Any]) -> dict[str, Any]:
    listed = [{"file_path": f"/var/log/{n}", **entry} for n, entry in enumerate(entries)]
    return {"logs": {"logs_collected": {"files": {"collect_list": listed}}}}


def metrics(**collected: Any) -> dict[str, Any]:
    return {"metrics": {"metrics_collected": collected}}


def prometheus(**keys: Any) -> dict[str, Any]:
    section = {"log_group_name": "/g", "cluster_name": "c", **keys}
    return {"logs": {"metrics_collected": {"prometheus": section}}}


def checked(folder: Path, *configs: dict[str, Any], instance_type: str | None = None) -> list[Any]:
    paths = [folder / f"{number}.json" for number in range(len(configs))]
    for path, config in zip(paths, configs, strict=True):
        path.write_text(json.dumps(config, indent=2))
    return check_files(paths, instance_type)


def rules(found: list[Finding], level: str = "error") -> list[str]:
    return [finding.rule for finding in found if finding.level == level]


@pytest.mark.parametrize(
    "config",
    [
        logs({"retention_in_days": 7}, {"retention_in_days": 30}),
        logs({"retention_in_days": 90.0}),
        logs({"file_path": "/a"}, {"file_path": "/a"}),
        metrics(cpu={"measurement": ["cpu_usage_idle", {"name": "time_user"}]}),
        metrics(procstat=[{"exe": "a", "measurement": ["procstat_cpu_usage"]}]),
        {"metrics": {**metrics(mem={"measurement": ["used"]})["metrics"], "append_dimensions": {}}},
        logs({"filters": [{"type": "exclude", "expression": r"^\[\w+\] (?i)debug"}]}),
        logs({"encoding": "UTF-8"}, {"encoding": "shift_jis"}, {"encoding": "cp037"}),
        prometheus(),
    ],
)
def test_what_the_agent_takes_has_no_error(tmp_path: Path, config: dict[str, Any]) -> None:
    assert rules(checked(tmp_path, config)) == []


@pytest.mark.parametrize(
    ("config", "rule", "line", "path"),
    [
        (
            metrics(cpu={"measurement": ["usage_idle", "used_percent"]}),
            "cloudwatch-measurement",
            7,
            "metrics.metrics_collected.cpu.measurement.1",
        ),
        (
            metrics(procstat=[{"exe": "a", "measurement": ["cpu"]}]),
            "cloudwatch-measurement",
            8,
            "metrics.metrics_collected.procstat.0.measurement.0",
        ),
        (
            prometheus(log_group_name=""),
            "cloudwatch-prometheus-log-group",
            4,
            "logs.metrics_collected.prometheus",
        ),
        (
            logs({"filters": [{"type": "include"}]}),
            "cloudwatch-filter",
            9,
            "logs.logs_collected.files.collect_list.0.filters.0",
        ),
        (
            logs({"filters": [{"type": "include", "expression": "(?=a)"}]}),
            "cloudwatch-pattern",
            11,
            "logs.logs_collected.files.collect_list.0.filters.0.expression",
        ),
        (
            logs({"encoding": "utf-9"}),
            "cloudwatch-encoding",
            8,
            "logs.logs_collected.files.collect_list.0.encoding",
        ),
        (
            logs(
                {"log_group_name": "/Ours/{instance_id}", "retention_in_days": 7},
                {"log_group_name": "/ours/i-0123456789abcdef0", "retention_in_days": 30},
            ),
            "cloudwatch-one-retention-in-days",
            14,
            "logs.logs_collected.files.collect_list.1.retention_in_days",
        ),
    ],
)
def test_what_stops_the_agent_is_named_with_its_line(
    tmp_path: Path, config: dict[str, Any], rule: str, line: int, path: str
) -> None:
    (found,) = [finding for finding in checked(tmp_path, config) if finding.level == "error"]
    assert (found.rule, found.line, found.path) == (rule, line, path)
    assert found.file == str(tmp_path / "0.json")


def test_what_the_agent_drops_without_a_word_is_a_warning(tmp_path: Path) -> None:
    config = metrics(efa={"measurement": ["efa_rx_bites"]})
    config["metrics"]["append_dimensions"] = {"InstanceId": "${!aws:InstanceId}"}
    found = checked(tmp_path, config)
    assert rules(found) == []
    assert rules(found, "warning") == ["cloudwatch-efa-counter", "cloudwatch-dimension"]


def test_two_files_that_contradict_each_other_are_named_with_the_later_ones_line(
    tmp_path: Path,
) -> None:
    first, second = logs({"log_group_name": "g", "retention_in_days": 7}), logs()
    second["logs"]["logs_collected"]["files"]["collect_list"] = [
        {"file_path": "/b", "log_group_name": "g", "retention_in_days": 30}
    ]
    for config, user in ((first, "root"), (second, "cwagent")):
        config["agent"] = {"run_as_user": user}
    (found,) = checked(tmp_path, first, second)
    assert (found.rule, found.path) == ("cloudwatch-merge", "agent.run_as_user")
    assert found.file == str(tmp_path / "1.json")
    second["agent"] = first["agent"]
    (found,) = checked(tmp_path, first, second)
    assert (found.rule, found.line) == ("cloudwatch-one-retention-in-days", 9)
    assert found.file == str(tmp_path / "1.json")


def test_processes_of_several_files_are_all_collected(tmp_path: Path) -> None:
    each = [metrics(procstat=[{"exe": name, "measurement": ["pid"]}]) for name in ("a", "b")]
    assert checked(tmp_path, *each) == []


def test_an_instance_type_without_efa_sends_no_series_of_it(tmp_path: Path) -> None:
    config = metrics(efa={"measurement": ["efa_rx_bytes"]})
    assert checked(tmp_path, config, instance_type="p4d.24xlarge") == []
    (found,) = checked(tmp_path, config, instance_type="g4dn.xlarge")
    assert "g4dn.xlarge has no EFA device" in found.message
    with pytest.raises(KilnError, match=r"p4d\.25xlarge"):
        checked(tmp_path, config, instance_type="p4d.25xlarge")


@pytest.mark.parametrize("text", ["{", "[]", "{'a': 1}", "", '{"agent": {}, "agent": {}}'])
def test_a_file_that_is_not_a_configuration_is_refused_with_its_place(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(KilnError, match=str(path)):
        check_files([path])


def test_lines_are_right_where_tabs_indent(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{\n\t"metrics": {\n\t\t"metrics_collected": {"mem": {"measurement": ["x"]}}}}')
    (found,) = check_files([path])
    assert (found.line, found.column) == (3, 49)


def test_the_task_takes_any_number_of_files_and_ends_with_2_for_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(metrics(mem={"measurement": ["used"]})))
    bad.write_text(json.dumps(metrics(disk={"measurement": ["usage"]})))
    here = ["./invoke", "--search-root", str(Path(__file__).parents[2]), "telemetry.check"]
    assert run([*here, str(good)]) == 0
    capsys.readouterr()
    assert run([*here, str(good), "--json", "--also", str(bad)]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["files"] == [str(good), str(bad)]
    assert [finding["rule"] for finding in answer["findings"]] == ["cloudwatch-measurement"]


# Go's verdict on each: `regexp.Compile`, Go 1.26.
TAKEN = r"""
a{1000} \pL+ \p{Greek} [[:alpha:]]+ \z (?i)abc abc(?i)d (?P<n>a) (?<n>a) \Qa.b\E \\\(?= [a\]]
\x{10FFFF} \d+\s { a{,3} x\b (?s-m:a) [^\]] (|a) \/ \- \A\B ^[\S] (TRACE|DEBUG) []a] ^? \Q[
\b? \123 {,3} \Q\1 \Q\C
"""
REFUSED = r"""
(?=a) (?!x) (a)\1 (?>a) a++ a{1001} \Z [ ( *a a** \\(?= a{2,1} \8 [\1] (?#c) \u0041 \e [z-a] a|* \i
(?P=n) [a \C a?+ \é (?x) \p{Nobody}
"""


@pytest.mark.parametrize("pattern", TAKEN.split())
def test_a_pattern_that_go_takes_passes(pattern: str) -> None:
    assert go_pattern_problem(pattern) == ""


@pytest.mark.parametrize("pattern", REFUSED.split())
def test_a_pattern_that_go_refuses_has_a_reason(pattern: str) -> None:
    assert go_pattern_problem(pattern)


@pytest.mark.parametrize(
    "config",
    [
        {"metrics": None},
        {"metrics": []},
        {"metrics": {"metrics_collected": None}},
        {"logs": {"logs_collected": {"files": {"collect_list": {"file_path": "/a"}}}}},
    ],
)
def test_a_section_of_the_wrong_type_is_a_finding_with_and_without_an_instance_type(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    for instance_type in (None, "g4dn.xlarge"):
        for others in ([], [logs({})], [metrics(mem={"measurement": ["used"]})]):
            found = checked(tmp_path, *others, config, instance_type=instance_type)
            assert "cloudwatch-schema" in rules(found)


def test_files_that_clash_are_named_also_where_a_name_has_a_colon(tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b: c.json"]
    for path in paths:
        path.write_text(json.dumps({"agent": {"region": path.stem}}))
    (clash,) = check_files(paths)
    assert clash.rule == "cloudwatch-merge"
    assert clash.place is not None
    assert clash.place.file == str(paths[1])


def test_a_number_of_too_many_digits_is_not_called_nested_too_deep(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    path.write_text('{"agent": {"metrics_collection_interval": ' + "9" * 5000 + "}}")
    with pytest.raises(KilnError, match="digits"):
        check_files([path])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('"a\x7fb\x85c"', id="control characters that JSON takes"),
        pytest.param(f'{{"{"k" * 2000}": 1}}', id="a long key"),
        pytest.param("[" * 200 + "]" * 200, id="two hundred levels"),
        pytest.param('{"<<": {"a": 1}, "": [[], {}, {"{,": "]"}, null, -1.5e3, true]}', id="forms"),
    ],
)
def test_all_json_that_the_agent_reads_is_read_and_has_its_places(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "agent.json"
    path.write_text(f'{{"agent":\n {{"aws_sdk_log_level": {text},\n  "bad": 1}},\n"metrics": 1}}')
    places = {str(finding.place) for finding in check_files([path])}
    assert f"{path}:4:1" in places


@pytest.mark.parametrize("levels", [400, 20_000])
def test_json_that_is_nested_too_deep_for_the_check_says_what_the_agent_takes(
    tmp_path: Path, levels: int
) -> None:
    path = tmp_path / "agent.json"
    path.write_text('{"agent": ' + "[" * levels + "]" * levels + "}")
    with pytest.raises(KilnError, match="nested more than 300 levels deep") as refused:
        check_files([path])
    assert "the agent itself reads 10,000 levels" in refused.value.hint


def test_a_key_that_is_there_twice_is_refused_with_both_places(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    path.write_text('{"agent": {},\n "agent": {}}')
    first = "'agent' is a duplicate key .first at line 1, column 2."
    with pytest.raises(KilnError, match=rf"agent\.json:2:2: {first}"):
        check_files([path])
