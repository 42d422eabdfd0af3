"""The files of the CloudWatch agent's stand-in, as its package installs them in a guest."""

from __future__ import annotations

from pathlib import Path

LIB = "/usr/lib/kiln-lab/cloudwatch_agent"
_PROGRAM = Path(__file__).parent / "agent"


def files() -> dict[str, bytes]:
    """Absolute path in the guest → content. The package's start script runs `main`."""
    return {f"{LIB}/{path.name}": path.read_bytes() for path in sorted(_PROGRAM.glob("*.py"))}
