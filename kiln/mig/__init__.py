"""MIG without a GPU: the profiles of an instance type, what fits, and how to place it.

The rules are imported from `gpu-mig` on the AMI (`runtime/opt/kiln/lib/gpu_mig`).
"""

from kiln.mig.check import check, check_label
from kiln.mig.draw import draw_svg, draw_text
from kiln.mig.k8s import k8s
from kiln.mig.plan import plan
from kiln.mig.profiles import profiles_for

__all__ = ["check", "check_label", "draw_svg", "draw_text", "k8s", "plan", "profiles_for"]
