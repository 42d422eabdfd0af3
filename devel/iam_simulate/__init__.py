"""Asks IAM's simulator about the policies: verdicts for tests/unit/cloud/test_iam.py.

@cloud-copilot/iam-simulate evaluates conditions and knows the resources and condition keys of each
EC2 action (it refuses a question with others). It needs Node, which AMI Kiln does not depend on:
who changes a policy runs `python -m devel.iam_simulate` once, after `npm install` in this folder.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from kiln.cloud import iam

HERE = Path(__file__).parent
# The policy before issue 12, with which the two attacks were allowed.
BEFORE = HERE / "policy-before.json"
# The tasks besides builds that may change something in EC2.
CHANGING = ("publish", "promote", "retire", "stack", "fleet")
POLICIES = {
    "main": (iam.POLICY_FILE,),
    "before": (BEFORE,),
    **{role: (iam.publishing_file(role),) for role in CHANGING},
}


def digests() -> dict[str, str]:
    """SHA-256 of the policies that a set of verdicts is of, by the set's name."""
    return {
        name: hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
        for name, paths in POLICIES.items()
    }
