"""MIG without a GPU: the profiles of an instance type, what fits, and how to place it.

The rules are imported from `gpu-mig` on the AMI (`runtime/opt/kiln/lib/gpu_mig`).
"""

from kiln.mig.check import check_label, check_mig_config
from kiln.mig.draw import draw_svg, draw_text
from kiln.mig.k8s import k8s_configuration
from kiln.mig.plan import plan_layout
from kiln.mig.profiles import profiles_for

__all__ = [
    "check_label",
    "check_mig_config",
    "draw_svg",
    "draw_text",
    "k8s_configuration",
    "plan_layout",
    "profiles_for",
]
