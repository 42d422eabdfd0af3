"""The agents in the guests, as Systems Manager knows them.

An agent says who it is (UpdateInstanceInformation), then waits for messages (GetMessages). One that
does not ask any more is ConnectionLost: after LOST seconds here, after minutes on AWS.

https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_InstanceInformation.html
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Any

# How long an agent's question for messages is held, and after how many seconds without one it is
# taken as lost. An agent asks again at once.
HELD = 5.0
LOST = 9.0
# What an agent reports of its machine, and DescribeInstanceInformation shows.
REPORTED = (
    "AgentVersion", "PlatformType", "PlatformName", "PlatformVersion", "IPAddress", "ComputerName",
)  # fmt: skip


@dataclass
class Agent:
    """An agent: what it reported and when, what waits for it, how often it asked."""

    instance_id: str
    reported: dict[str, str] = field(default_factory=dict)
    heard: float = 0.0
    messages: queue.SimpleQueue[dict[str, Any]] = field(default_factory=queue.SimpleQueue)
    questions: int = 0

    @property
    def online(self) -> bool:
        return time.monotonic() - self.heard < LOST


class Agents:
    """A region's agents, by instance."""

    def __init__(self) -> None:
        self._agents: dict[str, Agent] = {}
        self._lock = threading.Lock()

    def hear(self, instance_id: str, fields: dict[str, Any]) -> None:
        """An agent says who it is."""
        with self._lock:
            agent = self._agents.setdefault(instance_id, Agent(instance_id))
            agent.reported |= {name: str(fields[name]) for name in REPORTED if fields.get(name)}
            agent.heard = time.monotonic()

    def find(self, instance_id: str) -> Agent | None:
        return self._agents.get(instance_id)

    def live(self, instance_ids: set[str]) -> list[Agent]:
        """The agents of these instances; the others are forgotten."""
        with self._lock:
            self._agents = {id_: self._agents[id_] for id_ in self._agents if id_ in instance_ids}
            return list(self._agents.values())

    def wait(self, instance_id: str, held: float = HELD) -> list[dict[str, Any]]:
        """The message that an agent gets; none when nothing comes while its question is held."""
        agent = self._agents.get(instance_id)
        if agent is None:
            return []
        with self._lock:
            agent.heard = time.monotonic()
            agent.questions += 1
            mine = agent.questions
        try:
            message = agent.messages.get(timeout=held)
        except queue.Empty:
            return []
        if mine != agent.questions:
            # The agent has asked again since, as after a restart: nobody waits for this answer.
            agent.messages.put(message)
            return []
        agent.heard = time.monotonic()
        return [message]
