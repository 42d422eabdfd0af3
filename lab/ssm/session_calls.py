"""Session Manager's calls: StartSession, ResumeSession, TerminateSession, DescribeSessions.

https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_Operations.html
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any

from lab.access import holders, iam_policy
from lab.access.conditions import Context
from lab.access.iam_policy import Question
from lab.guests import inside
from lab.guests.instances import LabInstance
from lab.ssm import sessions
from lab.ssm.agents import Agent
from lab.ssm.errors import SsmError
from lab.ssm.sessions import Session

Request = dict[str, Any]
CALLS = ("StartSession", "ResumeSession", "TerminateSession", "DescribeSessions")
# AWS's documents that open a port: parameters with their defaults, and what else their session
# gets. https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-working-with-sessions-start.html
DOCUMENTS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "AWS-StartSSHSession": ({"portNumber": "22"}, {}),
    "AWS-StartPortForwardingSession": (
        {"portNumber": "80", "localPortNumber": "0"},
        {"type": "LocalPortForwarding"},
    ),
}
# What an agent calls before there can be a session, of which AmazonSSMManagedInstanceCore has all.
# https://docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-add-permissions-to-existing-profile.html
_OF_AGENTS = ("CreateControlChannel", "CreateDataChannel", "OpenControlChannel", "OpenDataChannel")


def start(
    find: Callable[[str], Agent | None], key: str, region: str, request: Request, host: str
) -> Request:
    """Begin a session. `find` knows the agents; `host` is the name that the API was asked by."""
    target = str(request.get("Target", ""))
    properties = _properties(str(request.get("DocumentName", "")), request.get("Parameters", {}))
    agent = find(target)
    instance = next(
        (
            machine
            for machine in list(LabInstance.machines.by_address.values())
            if machine.id == target
        ),
        None,
    )
    if agent is None or instance is None or agent.region != region or not _connected(agent):
        # As in https://github.com/aws/session-manager-plugin/issues/5
        raise SsmError("TargetNotConnected", f"{target} is not connected.")
    holder = holders.find(key)
    owner = holder[0].user_id if holder else "kiln-lab"
    name = (holder[0].name if holder else "") or owner.rpartition(":")[2]
    boot = inside.boot_of(instance)
    session = Session(
        target=target,
        region=region,
        owner=owner,
        document=str(request["DocumentName"]),
        properties=properties,
        agent=agent.reported.get("AgentVersion", ""),
        connect=lambda port: inside.connect(instance, port),
        alive=lambda: agent.online and inside.boot_of(instance) == boot is not None,
        id=f"{name}-{secrets.token_hex(9)[:17]}",
    )
    sessions.KEPT.add(session)
    return _opened(session, host)


def resume(region: str, request: Request, host: str) -> Request:
    """A new token of a session; none when it is over."""
    session = sessions.KEPT.find(str(request.get("SessionId", "")))
    if session is None or session.region != region:
        raise SsmError(
            "DoesNotExistException", f"Session {request.get('SessionId')} does not exist."
        )
    if session.ended:
        return {"SessionId": session.id}
    session.resumed()
    return _opened(session, host)


def terminate(request: Request) -> Request:
    """End a session."""
    name = str(request.get("SessionId", ""))
    session = sessions.KEPT.find(name)
    if session:
        session.end()
    return {"SessionId": name}


def describe(region: str, request: Request) -> list[Request]:
    """Sessions, the newest first: those that are open (State `Active`), or over (`History`)."""
    over = str(request.get("State", "Active")) == "History"
    listed = [
        _shown(session) for session in sessions.KEPT.of(region) if bool(session.ended) is over
    ]
    for wanted_filter in request.get("Filters", []):
        name = {"Target": "Target", "SessionId": "SessionId", "Status": "Status"}.get(
            wanted_filter["key"]
        )
        if name is None:
            raise SsmError(
                "InvalidFilterKey", f"AMI Kiln lab: {wanted_filter['key']} is not implemented"
            )
        listed = [session for session in listed if session[name] == wanted_filter["value"]]
    return sorted(listed, key=lambda session: -float(session["StartDate"]))


def _properties(document: str, parameters: Request) -> dict[str, str]:
    if document not in DOCUMENTS:
        names = " and ".join(DOCUMENTS)
        raise SsmError(
            "InvalidDocument",
            f"AMI Kiln lab: of sessions there are {names}, no {document or 'shell'}",
        )
    defaults, more = DOCUMENTS[document]
    strange = sorted(set(parameters) - set(defaults))
    if strange:
        raise SsmError("InvalidParameters", f"{document} has no parameter {', '.join(strange)}")
    values = {
        name: str((parameters.get(name) or [default])[0]) for name, default in defaults.items()
    }
    for name, text in values.items():
        least = 0 if name == "localPortNumber" else 1
        if not re.fullmatch("[0-9]{1,5}", text) or not least <= int(text) <= 65535:
            raise SsmError("InvalidParameters", f"{name}: {text} is not a port")
    return {**values, **more}


def _connected(agent: Agent) -> bool:
    """Whether an agent runs and may open channels."""
    holder = holders.find(agent.key)
    if not agent.online or holder is None:
        return False
    questions = [Question(f"ssmmessages:{call}", "*", Context({})) for call in _OF_AGENTS]
    return not any(iam_policy.refusal(holder[1], question) for question in questions)


def _opened(session: Session, host: str) -> Request:
    name = host.rpartition(":")[0] or host
    # Who asked by AWS's name is directed to AWS's name.
    of_aws = name.endswith(".amazonaws.com")
    base = f"wss://ssmmessages.{session.region}.amazonaws.com" if of_aws else f"ws://{host}"
    return {
        "SessionId": session.id,
        "TokenValue": session.token,
        "StreamUrl": f"{base}{sessions.PATH}{session.id}?role=publish_subscribe",
    }


def _shown(session: Session) -> Request:
    ended = {"EndDate": session.ended} if session.ended else {}
    return {
        "SessionId": session.id,
        "Target": session.target,
        "Status": "Terminated" if session.ended else "Connected",
        "StartDate": session.started,
        "DocumentName": session.document,
        "Owner": session.owner,
        **ended,
    }
