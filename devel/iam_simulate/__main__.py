"""`python -m devel.iam_simulate`: writes tests/data/iam/simulated.json."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from devel import iam_requests
from devel.iam_simulate import HERE, POLICIES, digests
from kiln.base.paths import ROOT


def main() -> None:
    """Ask about each set of policies, and write the verdicts."""
    questions = iam_requests.questions()
    verdicts = {}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(questions, file)
        file.flush()
        for name, paths in POLICIES.items():
            command = ["node", "simulate.mjs", file.name, *map(str, paths)]
            done = subprocess.run(command, cwd=HERE, check=True, capture_output=True, text=True)
            verdicts[name] = json.loads(done.stdout)
    answer = {
        "tool": json.loads((HERE / "package.json").read_text())["dependencies"],
        "policies": digests(),
        "questions": questions,
        "verdicts": verdicts,
    }
    out = Path(ROOT / "tests" / "data" / "iam" / "simulated.json")
    out.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    print(f"{out}: {len(questions)} questions, {len(verdicts)} sets of policies")


if __name__ == "__main__":
    main()
