"""What an image reports to CloudWatch: settings, agent configuration, its rules, its cost."""

from kiln.telemetry.agent import agent_files, dcgm_counters
from kiln.telemetry.pricing import cost_text, monthly_cost
from kiln.telemetry.rules import Problem, agent_config_problems, versions
from kiln.telemetry.settings import Telemetry

__all__ = [
    "Problem",
    "Telemetry",
    "agent_config_problems",
    "agent_files",
    "cost_text",
    "dcgm_counters",
    "monthly_cost",
    "versions",
]
