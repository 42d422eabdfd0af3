"""What an image reports to CloudWatch: settings, agent configuration, its rules, its cost."""

from kiln.telemetry.agent import agent_files, dcgm_counters
from kiln.telemetry.pricing import cost, cost_text
from kiln.telemetry.rules import Problem, merged, problems, validate, versions
from kiln.telemetry.settings import Telemetry

__all__ = [
    "Problem",
    "Telemetry",
    "agent_files",
    "cost",
    "cost_text",
    "dcgm_counters",
    "merged",
    "problems",
    "validate",
    "versions",
]
