"""The runtime's log lines, of the documented shape and by the documented variables.

    2026-Nov-22 04:10:11.012345 4711:4711 ERROR   NRT:nrt_execute       message

NEURON_RT_LOG_LEVEL (ERROR) and NEURON_RT_LOG_LOCATION (console, which is standard error) hold for
all, NEURON_RT_LOG_LEVEL_NRT and so on for a component. A location other than console and syslog is
the name of a file that lines are appended to.
"""

from __future__ import annotations

import os
import sys
import syslog
import threading
from datetime import datetime
from pathlib import Path

LEVELS = ("QUIET", "ERROR", "WARNING", "INFO", "DEBUG", "TRACE")
LEVEL_VARIABLE = "NEURON_RT_LOG_LEVEL"
LOCATION_VARIABLE = "NEURON_RT_LOG_LOCATION"


def log(level: str, component: str, function: str, text: str) -> None:
    """Write a line if its level is wanted.

    Args:
        level: One of LEVELS.
        component: TDRV, NMGR or NRT.
        function: The runtime's function that it is about.
        text: The message; line ends become spaces.

    Raises:
        ValueError: A level in the environment is none.
        OSError: The file of the environment can't be written.
    """
    wanted = _variable(LEVEL_VARIABLE, component).upper() or "ERROR"
    if wanted not in LEVELS:
        raise ValueError(f"{LEVEL_VARIABLE}={wanted} is not valid; allowed: {', '.join(LEVELS)}")
    if LEVELS.index(level) > LEVELS.index(wanted):
        return
    now = datetime.now().astimezone()
    stamp = now.strftime("%Y-%b-%d %H:%M:%S.%f")
    who = f"{os.getpid()}:{threading.get_native_id()}"
    line = f"{stamp} {who} {level:<5} {component:>5}:{function:<40}{' '.join(text.split())}"
    place = _variable(LOCATION_VARIABLE, component) or "console"
    if place.lower() == "syslog":
        syslog.syslog(line)
    elif place.lower() == "console":
        sys.stderr.write(line + "\n")
    else:
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _variable(name: str, component: str) -> str:
    own = os.environ.get(f"{name}_{component}", "").strip()
    return own or os.environ.get(name, "").strip()
