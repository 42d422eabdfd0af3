"""A log stream that the agent writes: groups and streams are made when they are missing.

github:aws/amazon-cloudwatch-agent plugins/outputs/cloudwatchlogs/internal/pusher/{queue,batch,
convert,sender,target}.go @ab55b8daa204e95c42c0267ee5aa49ec3b3a7317
"""

from __future__ import annotations

from .aws import AwsError

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Dict

    from .aws import Caller
    from .plan import Source

    Sent = Dict[str, Any]

MOST_EVENTS = 10000
_OLDEST, _NEWEST = 14 * 86400, 2 * 3600


class Stream:
    """Events that wait for their stream, sent when they are many or old enough."""

    def __init__(
        self, source: Source, caller: Caller, flush: float, say: Callable[[str], None]
    ) -> None:
        self.source, self.caller, self.flush, self.say = source, caller, flush, say
        self.place = f"{source.group}/{source.stream}"
        self.waiting: list[Sent] = []
        self.since = 0.0
        # The time of an event without one is that of the event before.
        self.last: float | None = None
        self.retry_at, self.retries = 0.0, 0
        self.retention_asked = False

    def add(self, seconds: float | None, text: str, now: float) -> None:
        """Take an event."""
        if seconds is not None:
            if not -_NEWEST <= now - seconds <= _OLDEST:
                self.say(
                    f"E! The log entry in ({self.place}) with timestamp ({seconds}) is out of "
                    "accepted time range. Discard the log entry."
                )
                return
            self.last = seconds
        moment = now if self.last is None else self.last
        if not self.waiting:
            self.since = now
        self.waiting.append({"timestamp": int(moment * 1000), "message": text})

    def send(self, now: float) -> bool:
        """Send what waits when it is time. True when nothing is left unsent."""
        full = len(self.waiting) >= MOST_EVENTS
        due = self.waiting and (full or now - self.since >= self.flush)
        if not due or now < self.retry_at:
            return not self.waiting
        batch = self.waiting[:MOST_EVENTS]
        try:
            self._put(batch)
        except AwsError as error:
            if error.code in ("InvalidParameterException", "DataAlreadyAcceptedException"):
                self.say(f"E! {error}, will not retry the request")
            else:
                self._again(error, now)
                return False
        except (OSError, ValueError) as error:
            self._again(error, now)
            return False
        self.waiting = self.waiting[len(batch) :]
        self.since, self.retries = now, 0
        return not self.waiting

    def _again(self, error: Exception, now: float) -> None:
        self.say(f"E! Aws error received when sending logs to {self.place}: {error}")
        self.retry_at = now + min(0.2 * 2**self.retries, 60.0)
        self.retries += 1

    def _put(self, batch: list[Sent]) -> None:
        names = {"logGroupName": self.source.group, "logStreamName": self.source.stream}
        events = sorted(batch, key=lambda event: event["timestamp"])
        try:
            self.caller.logs("PutLogEvents", logEvents=events, **names)
        except AwsError as error:
            if error.code != "ResourceNotFoundException":
                raise
            self._make(names)
            self.caller.logs("PutLogEvents", logEvents=events, **names)
        if not self.retention_asked:
            self._retain()

    def _make(self, names: dict[str, str]) -> None:
        """The stream; the group, with its class, only when the stream says that it is missing."""
        group = {"logGroupName": names["logGroupName"]}
        try:
            self._create("CreateLogStream", names)
        except AwsError as error:
            if error.code != "ResourceNotFoundException":
                raise
            made = dict(group)
            if self.source.log_class:
                made["logGroupClass"] = self.source.log_class
            self._create("CreateLogGroup", made)
            self._create("CreateLogStream", names)

    def _create(self, call: str, body: dict[str, str]) -> None:
        try:
            self.caller.logs(call, **body)
        except AwsError as error:
            if error.code != "ResourceAlreadyExistsException":
                raise

    def _retain(self) -> None:
        """A group's retention is set where it is another than ours."""
        self.retention_asked = True
        if self.source.retention <= 0:
            return
        try:
            groups = self.caller.logs("DescribeLogGroups", logGroupNamePrefix=self.source.group)
            for group in groups.get("logGroups", []):
                mine = group["logGroupName"] == self.source.group
                if mine and group.get("retentionInDays") != self.source.retention:
                    self.caller.logs(
                        "PutRetentionPolicy",
                        logGroupName=self.source.group,
                        retentionInDays=self.source.retention,
                    )
        except (AwsError, OSError) as error:
            self.say(f"E! failed to update retention policy for {self.source.group}: {error}")
