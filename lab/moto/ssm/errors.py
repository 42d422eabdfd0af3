"""Systems Manager's errors.

https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_SendCommand.html
"""

from __future__ import annotations


class SsmError(Exception):
    """An error of a call, status 400: code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message
