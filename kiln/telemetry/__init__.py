"""What an image reports to CloudWatch: settings, agent configuration, its problems, its cost."""

from kiln.telemetry.agent import agent_config_problems, agent_files, dcgm_counters
from kiln.telemetry.settings import Telemetry, cost_text, monthly_cost

__all__ = [
    "Telemetry",
    "agent_config_problems",
    "agent_files",
    "cost_text",
    "dcgm_counters",
    "monthly_cost",
]
