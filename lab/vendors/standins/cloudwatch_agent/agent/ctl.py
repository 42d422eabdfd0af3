"""config-downloader and config-translator, which amazon-cloudwatch-agent-ctl calls.

github:aws/amazon-cloudwatch-agent tool/downloader/downloader.go, translator/cmdutil/
translatorutil.go, translator/config/defaultConfig.go @ab55b8daa204e95c42c0267ee5aa49ec3b3a7317
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import sys

from . import config


def _flags() -> dict[str, str]:
    words = sys.argv[1:]
    return {name.lstrip("-"): value for name, value in zip(words[::2], words[1::2])}


def downloader() -> int:
    """Fetch a configuration file into a .tmp file, or remove the file of one."""
    flags = _flags()
    folder, place = flags["output-dir"], flags["download-source"]
    for path in glob.glob(folder + "/*.tmp"):
        os.unlink(path)
    kind, _, name = place.partition(":")
    if kind != "file":
        print(f"E! {place}: only file:… is there in the lab (AMI Kiln lab stand-in)")
        return 1
    file = "file_" + os.path.basename(name).replace(" ", "_").replace(":", "_")
    try:
        if flags.get("multi-config") == "remove":
            os.unlink(os.path.join(folder, file))
            return 0
        os.makedirs(folder, exist_ok=True)
        shutil.copyfile(name, os.path.join(folder, file + ".tmp"))
        print(f"Successfully fetched the config and saved in {folder}/{file}.tmp")
    except OSError as error:
        print(f"E! Fail to fetch/remove json config: {error}")
        return 1
    return 0


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
    with open(flags["output"], "w") as stream:
        stream.write(f"# AMI Kiln lab stand-in\n# {json.dumps(whole, sort_keys=True)}\n")
    print("I! Valid Json input schema.\nConfiguration validation first phase succeeded")
    return 0
