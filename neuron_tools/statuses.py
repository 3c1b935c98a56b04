"""How executions can fail, and by what name each tool counts that.

The names of a status are NRT_STATUS of libnrt; the summaries are those of neuron-monitor's guide,
and the names in sysfs those of the driver's sources (neuron_sysfs_metrics.c).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from neuron_tools.registry.layout import LAYOUT
from neuron_tools.registry.reader import Values

ERRORS: Final = ("generic", "numerical", "transient", "model", "runtime", "hardware")
OUTCOMES: Final = (
    "completed", "completed_with_err", "completed_with_num_err", "timed_out", "incorrect_input",
    "failed_to_queue",
)  # fmt: skip


class Names(NamedTuple):
    """Keys of a status in `execution_summary` and `error_summary`, and its name in sysfs."""

    outcome: str
    error: str
    sysfs: str


NAMES: Final[dict[int, Names]] = {
    1: Names("completed_with_err", "generic", "failure"),
    2: Names("incorrect_input", "generic", "invalid_error"),
    4: Names("failed_to_queue", "runtime", "resource_error"),
    5: Names("timed_out", "runtime", "timeout"),
    6: Names("completed_with_err", "hardware", "hw_error"),
    7: Names("failed_to_queue", "runtime", "execute_failed_to_queue"),
    14: Names("failed_to_queue", "runtime", "execute_failed_to_queue"),
    101: Names("completed_with_err", "hardware", "hw_nc_ue_error"),
    1002: Names("incorrect_input", "generic", "exec_bad_input"),
    1003: Names("completed_with_num_err", "numerical", "execute_completed_with_num_error"),
    1004: Names("completed_with_err", "model", "execute_completed_with_error"),
    1005: Names("failed_to_queue", "transient", "resource_nc_error"),
    1006: Names("completed_with_err", "model", "oob_error"),
    1200: Names("completed_with_err", "hardware", "hw_collectives_error"),
    1201: Names("completed_with_err", "hardware", "hw_hbm_ue_error"),
    1202: Names("completed_with_err", "hardware", "hw_nc_ue_error"),
    1203: Names("completed_with_err", "hardware", "hw_dma_abort_error"),
    1204: Names("completed_with_err", "runtime", "execute_sw_nq_overflow"),
    1205: Names("completed_with_err", "transient", "hw_repairable_hbm_ue_error"),
    1206: Names("completed_with_err", "runtime", "generic_error"),
}
#: All names of the driver, in its order.
SYSFS: Final = (
    "success", "failure", "timeout", "exec_bad_input", "hw_error", "execute_completed_with_error",
    "execute_completed_with_num_error", "generic_error", "resource_error", "resource_nc_error",
    "execute_failed_to_queue", "invalid_error", "unsupported_neff_version", "oob_error",
    "hw_collectives_error", "hw_hbm_ue_error", "hw_nc_ue_error", "hw_dma_abort_error",
    "execute_sw_nq_overflow", "execute_sw_semaphore_error", "execute_sw_event_error",
    "execute_sw_psum_collision", "execute_sw_sequencer_fatal", "hw_repairable_hbm_ue_error",
)  # fmt: skip
_NUMERICAL = 1003


def failures(core: Values) -> dict[int, int]:
    """How many executions on a core failed, by status."""
    return dict(zip(LAYOUT.statuses, core.series["failures"], strict=False))


def completed(core: Values) -> int:
    """How many executions on a core succeeded with the right result."""
    ended = sum(core.series["at_call"]) + sum(core.series["enqueued_running"])
    return max(0, ended - failures(core).get(_NUMERICAL, 0))


def summaries(core: Values) -> tuple[dict[str, int], dict[str, int]]:
    """Return `execution_summary` and `error_summary` of a core since its process began."""
    outcomes = dict.fromkeys(OUTCOMES, 0) | {"completed": completed(core)}
    errors = dict.fromkeys(ERRORS, 0)
    for status, count in failures(core).items():
        names = NAMES[status]
        outcomes[names.outcome] += count
        errors[names.error] += count
    return outcomes, errors
