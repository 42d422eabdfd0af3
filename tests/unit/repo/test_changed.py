"""`./invoke test --changed`: the tests that a change touches."""

from __future__ import annotations

import pytest

from devel.changed import touched_tests


@pytest.mark.parametrize(
    ("file", "touched"),
    [
        ("kiln/mig/plan.py", "tests/unit/mig/test_plan.py"),
        ("kiln/mig/plan.py", "tests/unit/consume/test_consume.py"),  # consume rests on it
        ("provisioners/nccl.sh", "tests/unit/provisioners/test_library.py"),
        ("tests/unit/publish/conftest.py", "tests/unit/publish/test_publish.py"),
        ("docs/lab.md", "tests/unit/repo/test_docs.py"),
    ],
)
def test_change_touches_its_tests(file: str, touched: str) -> None:
    near, far = touched_tests([file])
    assert touched in near + far


def test_change_of_a_leaf_leaves_others_alone() -> None:
    near, far = touched_tests(["kiln/mig/plan.py"])
    assert "tests/unit/mig/test_plan.py" in near
    assert "tests/unit/provisioners/test_library.py" not in near + far
    assert touched_tests(["LICENSE"]) == ([], [])
