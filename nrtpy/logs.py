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

from neuronxcc.environment.runtime import LOG_LEVELS, NEURON_RT_LOG_LEVEL, NEURON_RT_LOG_LOCATION

LEVELS = tuple(level.upper() for level in LOG_LEVELS)


def log(level: str, component: str, function: str, text: str) -> None:
    """Write a line if its level is wanted.

    Args:
        level: One of LEVELS.
        component: TDRV, NMGR or NRT.
        function: The runtime's function that it is about.
        text: The message; line ends become spaces.

    Raises:
        VariableError: A level in the environment is none.
        OSError: The file of the environment can't be written.
    """
    wanted = NEURON_RT_LOG_LEVEL.get(component=component)
    if LEVELS.index(level) > LOG_LEVELS.index(wanted):
        return
    now = datetime.now().astimezone()
    stamp = now.strftime("%Y-%b-%d %H:%M:%S.%f")
    who = f"{os.getpid()}:{threading.get_native_id()}"
    line = f"{stamp} {who} {level:<5} {component:>5}:{function:<40}{' '.join(text.split())}"
    place = NEURON_RT_LOG_LOCATION.get(component=component)
    if place.lower() == "syslog":
        syslog.syslog(line)
    elif place.lower() == "console":
        sys.stderr.write(line + "\n")
    else:
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
