"""docs/telemetry-cloudwatch.md says what the knowledge says."""

import re
from pathlib import Path

from kiln.telemetry.settings import profile_metrics, telemetry_facts

PAGE = (Path(__file__).parents[2] / "docs/telemetry-cloudwatch.md").read_text()


def rows(heading: str) -> dict[str, list[str]]:
    """First cell → the others, of the first table below a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return {first.strip(" `"): [cell.strip() for cell in rest] for first, *rest in cells}


def test_the_table_of_measurements_is_the_profiles():
    table = rows("Measurements")
    assert set(table) == set(telemetry_facts()["gpu_metrics"]["names"])
    for place, profile in enumerate(("compute", "graphics", "full")):
        assert {name for name, row in table.items() if row[place]} == set(profile_metrics(profile))


def test_the_units_of_the_table_are_those_that_are_set():
    for name, row in rows("Measurements").items():
        unit = telemetry_facts()["gpu_metrics"]["names"][name]
        assert row[3] == unit if unit else "none" in row[3] or not row[3]


def test_agent_versions_of_the_page_are_those_of_the_rules():
    since = {number.rsplit(".", 1)[0] for number in telemetry_facts()["agent"]["since"].values()}
    assert set(re.findall(r"1\.3\d{5}", PAGE)) <= since
