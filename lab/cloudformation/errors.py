"""What CloudFormation answers when it refuses."""

from __future__ import annotations


class CloudFormationError(Exception):
    """An error of the API: its code and its message."""

    def __init__(self, message: str, code: str = "ValidationError") -> None:
        super().__init__(message)
        self.code, self.message = code, message


class ResourceError(Exception):
    """A resource could not be made, changed or deleted; the text is the reason of its event."""
