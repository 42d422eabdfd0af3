"""What the agent would refuse or silently drop is found before an image is built."""

import pytest

from kiln.telemetry.agent import agent_config_problems
from kiln.telemetry.settings import Telemetry

NEW = "580.126.09"


@pytest.mark.parametrize(
    ("settings", "driver", "agent", "image", "expected"),
    [
        (Telemetry(), NEW, "1.300055.0", {}, ["error power-draw"]),
        (Telemetry(), NEW, "1.300056.0b1123", {}, []),
        (Telemetry(), "550.163.01", "1.300055.0", {}, []),
        (Telemetry(), "550.163.01", "1.247349.0", {}, ["error nvidia-gpu"]),
        (Telemetry(log_class="INFREQUENT_ACCESS"), NEW, None, {}, ["warning log-class"]),
        (
            Telemetry(log_class="INFREQUENT_ACCESS"),
            "550.163.01",
            "1.300031.0",
            {},
            ["error log-class", "warning log-class"],
        ),
        (Telemetry(), NEW, None, {"mig": True}, ["warning mig"]),
        (Telemetry(dcgm=True), NEW, None, {"mig": True}, []),
        (Telemetry(profile=("power_draw",)), NEW, None, {"mig": True}, []),
        (Telemetry(dcgm=True), NEW, None, {"exporter": False}, ["error dcgm"]),
        (Telemetry(dcgm=True), NEW, None, {"exporter": True}, []),
        (Telemetry(), NEW, None, {"exporter": False}, []),
        (Telemetry(), NEW, None, {"exporter": True}, ["warning dcgm"]),
    ],
)
def test_setting_ignored_by_the_agent_is_found(settings, driver, agent, image, expected):
    found = agent_config_problems(settings, driver, agent, **image)
    assert [f"{each.level} {each.rule.removeprefix('cloudwatch-')}" for each in found] == expected
    assert all(each.hint for each in found)
