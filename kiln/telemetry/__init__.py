"""What an image reports to CloudWatch: settings, agent configuration, its rules, its cost."""

from kiln.telemetry.agent import agent_files, dcgm_counters
from kiln.telemetry.config_problems import Problem, validate_agent_config
from kiln.telemetry.merge import merged
from kiln.telemetry.pricing import cost_text, monthly_cost
from kiln.telemetry.rules import agent_config_problems, versions
from kiln.telemetry.settings import Telemetry

__all__ = [
    "Problem",
    "Telemetry",
    "agent_config_problems",
    "agent_files",
    "cost_text",
    "dcgm_counters",
    "merged",
    "monthly_cost",
    "validate_agent_config",
    "versions",
]
