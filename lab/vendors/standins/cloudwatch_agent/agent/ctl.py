"""config-downloader and config-translator, which amazon-cloudwatch-agent-ctl calls.

github:aws/amazon-cloudwatch-agent tool/downloader/downloader.go, translator/cmdutil/
translatorutil.go, translator/config/defaultConfig.go @ab55b8daa204e95c42c0267ee5aa49ec3b3a7317
"""

from __future__ import annotations

import glob
import json
import os
import sys
import time

from . import aws, config

TYPE_CHECKING = False  # typing itself costs start-up time
if TYPE_CHECKING:
    from typing import Any

# Seconds between two tries to read the instance's tags.
_SLEEPS = (0.2, 0.4, 0.8, 1.6, 3.2, 60)

# What `default` measures, in the lab's words: memory and disk, every minute.
_DEFAULT = {
    "agent": {"metrics_collection_interval": 60, "run_as_user": "root"},
    "metrics": {
        "append_dimensions": {
            name: "${aws:" + name + "}"
            for name in ("AutoScalingGroupName", "ImageId", "InstanceId", "InstanceType")
        },
        "metrics_collected": {
            "disk": {"measurement": ["used_percent"], "resources": ["*"]},
            "mem": {"measurement": ["mem_used_percent"]},
        },
    },
}


class _FailedError(Exception):
    """What makes the program end with status 1."""


def _flags() -> dict[str, str]:
    words = sys.argv[1:]
    return {name.lstrip("-"): value for name, value in zip(words[::2], words[1::2])}


def downloader() -> int:
    """Fetch a configuration into a .tmp file, or remove the file of one."""
    flags = _flags()
    folder, place = flags["output-dir"], flags["download-source"]
    for path in glob.glob(folder + "/*.tmp"):
        os.unlink(path)
    try:
        kind, _, name = place.partition(":")
        file = _escaped(kind, name)
        if flags.get("multi-config") == "remove":
            os.unlink(os.path.join(folder, file))
            return 0
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, file + ".tmp"), "w") as stream:
            stream.write(_fetched(kind, name))
        print(f"Successfully fetched the config and saved in {folder}/{file}.tmp")
    except _FailedError as error:
        print(f"E! Fail to fetch/remove json config: {error}")
        return 1
    except OSError as error:
        print(f"E! Fail to fetch/remove json config: {error}")
        return 1
    return 0


def _escaped(kind: str, name: str) -> str:
    if kind == "default" and not name:
        return kind
    name = os.path.basename(name) if kind == "file" else name
    return kind + "_" + name.replace("/", "_").replace(" ", "_").replace(":", "_")


def _fetched(kind: str, name: str) -> str:
    if kind == "default" and not name:
        return json.dumps(_DEFAULT, indent=2)
    if kind == "file":
        with open(name) as stream:
            return stream.read()
    if kind != "ssm" or not name:
        raise _FailedError(f"downloadLocation {kind}:{name} is malformed")
    about = json.loads(aws.imds("dynamic/instance-identity/document") or "{}")
    if not about:
        raise _FailedError("please check if you can access the metadata service")
    try:
        parameter = aws.Caller(about["region"]).parameter(name)
    except aws.AwsError as error:
        raise _FailedError(f"error in retrieving parameter store content: {error}") from None
    return parameter


def translator() -> int:
    """Judge the configuration and write the agent's .toml; files by --multi-config:
    default takes the new (.tmp), append both, remove those that are there."""
    flags = _flags()
    way = flags.get("multi-config", "default")
    files: dict[str, str] = {}
    listed = [flags["input"], *glob.glob(flags["input-dir"] + "/*")]
    for path in sorted(path for path in listed if os.path.exists(path)):
        new = path.endswith(".tmp")
        if new and way in ("default", "append"):
            files[path[: -len(".tmp")]] = path  # in place of one with its name
        elif not new and way in ("append", "remove"):
            files.setdefault(path, path)
    try:
        parts = [config.read(files[name]) for name in sorted(files)]
        whole = config.merged(parts)
    except config.ConfigError as error:
        print(error)
        print("Configuration validation first phase failed. Agent version: AMI Kiln lab stand-in")
        return 1
    if not parts:
        print("No json config files found")
        return config.NO_FILES
    if not _cluster_is_known(whole):
        return 2
    with open(flags["output"], "w") as stream:
        stream.write(f"# AMI Kiln lab stand-in\n# {json.dumps(whole, sort_keys=True)}\n")
    print("I! Valid Json input schema.\nConfiguration validation first phase succeeded")
    return 0


def _cluster_is_known(whole: dict[str, Any]) -> bool:
    """A prometheus section without a cluster's name makes the translator read the instance's tags,
    and end by a nil pointer once it was refused six times.

    translator/translate/logs/util/get_eks_cluster_name.go, translator/util/tagutil/tagutil.go
    """
    prometheus = whole.get("logs", {}).get("metrics_collected", {}).get("prometheus")
    if prometheus is None or prometheus.get("cluster_name"):
        return True
    about = json.loads(aws.imds("dynamic/instance-identity/document") or "{}")
    if not about:
        return True
    for number, seconds in enumerate(_SLEEPS):
        try:
            aws.Caller(about["region"]).tags(about["instanceId"])
            return True
        except aws.AwsError as error:
            print(f"Describe EC2 Tag Fail. Will retry the request: {error}")
            print(f"W! It is the {number} time, going to sleep {seconds}s before retrying.")
            time.sleep(seconds)
    print("panic: runtime error: invalid memory address or nil pointer dereference")
    return False
