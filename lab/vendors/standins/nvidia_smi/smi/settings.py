"""Commands that change a GPU: MIG mode, reset, persistence, application clocks."""

from __future__ import annotations

from . import box
from .gpus import Gpu, Lab

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from collections.abc import Callable

    Result = tuple[str, int]  # text on stdout, exit code

ON = {"1": True, "ENABLED": True, "0": False, "DISABLED": False}
IN_USE = "In use by another client"
WARNED = "Treating as warning and moving on.\n"


def _denied(what: str, gpu: Gpu) -> Result:
    early = "Terminating early due to previous errors.\n"
    return f"{what} for GPU {gpu.bus_id}: Insufficient Permissions\n{early}", 4


def _not_valid(value: str, what: str) -> Result:
    return f'"{value}" is not a valid {what}. Valid options are 0/DISABLED or 1/ENABLED.\n', 2


def mig_mode(lab: Lab, gpus: list[Gpu], value: str) -> Result:
    """-mig 0|1.

    Ampere: the driver resets the card. When a client or the hypervisor prevents the reset, the mode
    is pending. Later cards switch at once, unless work runs on them or instances exist.
    """
    wanted = ON.get(value.upper())
    if wanted is None:
        return _not_valid(value, "MIG mode")
    word, verb = ("enable", "Enabled") if wanted else ("disable", "Disabled")
    out = ""
    for gpu in gpus:
        state = gpu.state
        if gpu.mig is None:
            out += f"Unable to {word} MIG Mode for GPU {gpu.bus_id}: Not Supported\n{WARNED}"
            continue
        if not lab.root:
            text, code = _denied(f"Unable to {word} MIG Mode", gpu)
            return out + text, code
        state["mig_pending"] = wanted
        problem = "" if state["mig"] == wanted else _obstacle(gpu)
        if problem:
            out += f"Warning: MIG mode is in pending {word} state for GPU {gpu.bus_id}:{problem}\n"
            out += (
                f"{gpu.bus_id} is currently being used by one or more other processes (e.g. CUDA "
                "application or a monitoring application such as another instance of nvidia-smi). "
                "Please first kill all processes using the device and retry the command or reboot "
                "the system to make MIG mode effective.\n"
                if problem == IN_USE
                else "Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on "
                f"GPU {gpu.bus_id}\n"
            )
            continue
        if state["mig"] != wanted:
            state["instances"] = []
        state["mig"] = wanted
        out += f"{verb} MIG Mode for GPU {gpu.bus_id}\n{_persistence_warning(gpu)}"
    return out + "All done.\n", 0


def _obstacle(gpu: Gpu) -> str:
    """Return the obstacle to a change of the MIG mode, in the driver's words; empty when nothing
    does."""
    if gpu.ampere and not _can_reset():
        return "Not Supported"
    holders = box.clients(gpu.index)
    if gpu.state["instances"] or any(
        client["compute"] or (gpu.ampere and client["blocks"]) for client in holders
    ):
        return IN_USE
    return ""


def _can_reset() -> bool:
    return bool(box.faults().get("reset_supported", True))


def _persistence_warning(gpu: Gpu) -> str:
    if gpu.state["pm"]:
        return ""
    return (
        f"\nWarning: persistence mode is disabled on device {gpu.bus_id}. See the Known Issues "
        "section of the nvidia-smi(1) man page for more information. Run with [--help | -h] switch "
        "to get more information on how to enable persistence mode.\n"
    )


def reset(lab: Lab, gpus: list[Gpu], _value: str = "") -> Result:
    """--gpu-reset: makes pending modes effective and deletes instances."""
    if not lab.root:
        return "Insufficient Permissions\n", 4
    if not _can_reset() and lab.branch < 580:
        return "".join(f"Resetting GPU {gpu.bus_id} is not supported.\n" for gpu in gpus), 3
    held = [gpu for gpu in gpus if any(client["blocks"] for client in box.clients(gpu.index))]
    if held or not _can_reset():
        why = IN_USE if _can_reset() else "Not Supported"
        out = "The following GPUs could not be reset:\n"
        out += "".join(f"  GPU {gpu.bus_id}: {why}\n" for gpu in held or gpus)
        if held:
            number = "1 device is" if len(held) == 1 else f"{len(held)} devices are"
            devices = "this device" if len(held) == 1 else "these devices"
            out += (
                f"\n{number} currently being used by one or more other processes (e.g., Fabric "
                "Manager, CUDA application, graphics application such as an X server, or a "
                "monitoring application such as another instance of nvidia-smi). Please first kill "
                f"all processes using {devices} and all compute applications running in the system.\n"
            )
        return out, 255
    for gpu in gpus:
        gpu.state["mig"], gpu.state["instances"] = gpu.state["mig_pending"], []
    done = "".join(f"GPU {gpu.bus_id} was successfully reset.\n" for gpu in gpus)
    return done + "All done.\n", 0


def persistence(lab: Lab, gpus: list[Gpu], value: str) -> Result:
    """-pm 0|1"""
    wanted = ON.get(value.upper())
    if wanted is None:
        return _not_valid(value, "persistence mode")
    if not lab.root:
        return _denied("Unable to set persistence mode", gpus[0])
    out, verb = "", "Enabled" if wanted else "Disabled"
    for gpu in gpus:
        if gpu.state["pm"] == wanted:
            out += f"Persistence mode is already {verb} for GPU {gpu.bus_id}.\n"
        else:
            gpu.state["pm"] = wanted
            out += f"{verb} persistence mode for GPU {gpu.bus_id}.\n"
    return out + "All done.\n", 0


def application_clocks(lab: Lab, gpus: list[Gpu], value: str) -> Result:
    """-ac MEMORY,GRAPHICS"""
    parts = value.split(",")
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        return f"Invalid applications clocks specified: {value}\n", 2
    if not lab.root:
        return _denied("Setting applications clocks", gpus[0])
    memory, graphics = (int(part) for part in parts)
    named = f'"(MEM {memory}, SM {graphics})"'
    out = ""
    for gpu in gpus:
        low, high, idle, top = gpu.model["mhz"][:4]
        if lab.branch >= 590:
            out += f"Setting applications clocks is not supported for GPU {gpu.bus_id}.\n{WARNED}"
        elif memory not in (idle, top) or not low <= graphics <= high:
            out += (
                f"Specified clock combination {named} is not supported for GPU {gpu.bus_id}. "
                "Run 'nvidia-smi -q -d SUPPORTED_CLOCKS' to see list of supported clock "
                f"combinations\n{WARNED}"
            )
        else:
            gpu.state["app"] = [memory, graphics]
            out += f"Applications clocks set to {named} for GPU {gpu.bus_id}\n"
            out += _persistence_warning(gpu)
    return out + "All done.\n", 0


def reset_application_clocks(lab: Lab, gpus: list[Gpu], _value: str = "") -> Result:
    """-rac"""
    if not lab.root:
        return _denied("Resetting applications clocks", gpus[0])
    for gpu in gpus:
        gpu.state["app"] = None
    return "All done.\n", 0


ACTIONS: dict[str, Callable[[Lab, list[Gpu], str], Result]] = {
    "mig": mig_mode, "r": reset, "pm": persistence, "ac": application_clocks,
    "rac": reset_application_clocks,
}  # fmt: skip
