"""The compatibility rules, by theme.

Each is a function under its id in kiln/facts/knowledge/rules.yaml. A rule gets a `Combination` and
yields an `Objection` per clash; a rule about instance types runs once per type. The values it
compares come from `kiln.facts`: no rule holds a version of its own. Importing the package registers
all rules.
"""

from kiln.compat.rules import driver as driver
from kiln.compat.rules import fabric as fabric
from kiln.compat.rules import flavors as flavors
from kiln.compat.rules import gpu as gpu
from kiln.compat.rules import kernel as kernel
from kiln.compat.rules import libraries as libraries
from kiln.compat.rules import machines as machines
from kiln.compat.rules import mig as mig
from kiln.compat.rules import network as network
from kiln.compat.rules import system as system
