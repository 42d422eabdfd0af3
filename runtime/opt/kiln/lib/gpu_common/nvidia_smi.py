"""nvidia-smi with a time limit that holds.

On a broken GPU it may hang in the kernel, where even SIGKILL does not end it. It is then left
behind: waiting for it would hang this program as well.
"""

from __future__ import annotations

import subprocess
import tempfile
from typing import IO


class NvidiaSmiError(Exception):
    """nvidia-smi is missing, failed or did not answer in time; str() says which and how."""

    def __init__(self, message: str, status: int | None = None) -> None:
        Exception.__init__(self, message)
        self.status = status  # its exit status, None when it gave none


def run(arguments: list[str], timeout_s: float, program: str = "nvidia-smi") -> str:
    """Return the output (stdout and stderr) of nvidia-smi.

    Raises NvidiaSmiError when it fails or does not end within `timeout_s` seconds.
    """
    status, text = call(arguments, timeout_s, program)
    if status:
        first = (text.strip() or "no output").splitlines()[0]
        command = " ".join(["nvidia-smi", *arguments[:1]])
        raise NvidiaSmiError(f"{command}: exit status {status}: {first}", status)
    return text


def call(arguments: list[str], timeout_s: float, program: str = "nvidia-smi") -> tuple[int, str]:
    """Return (exit status, stdout and stderr) of nvidia-smi.

    Raises NvidiaSmiError when it is missing or does not end within `timeout_s` seconds.
    """
    with _scratch_file() as output:
        try:
            child = subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except FileNotFoundError:
            raise NvidiaSmiError("nvidia-smi is not installed") from None
        except OSError as error:
            raise NvidiaSmiError(f"nvidia-smi cannot be run: {error}") from None
        try:
            status = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            raise NvidiaSmiError(f"nvidia-smi did not answer in {timeout_s:g} s") from None
        except BaseException:  # a signal: nothing may go on changing GPUs
            child.kill()
            raise
        output.seek(0)
        return status, output.read().decode("utf-8", "replace")


def _scratch_file() -> IO[bytes]:
    """Return a file for the output. Not a pipe: one that hangs would keep the pipe open."""
    try:
        return tempfile.TemporaryFile()
    except OSError:  # the disk is full
        try:
            return tempfile.TemporaryFile(dir="/run")
        except OSError as error:
            raise NvidiaSmiError(f"nvidia-smi cannot be run: {error}") from None
