"""The page that the tables print."""

from __future__ import annotations

from nki.coverage import page
from nki.errors import CODES
from nki.isa.table import TABLE
from nki.lowering.implement import IMPLEMENT, load

# Made while the kernel is recorded, or merged away: nothing is left for a replay.
ANSWERED = {
    "get_nc_version", "get_nc_sub_version", "register_alloc", "core_barrier", "sendrecv",
}  # fmt: skip


def test_every_instruction_runs_natively() -> None:
    load()
    assert set(TABLE) - set(IMPLEMENT) == ANSWERED


def test_the_page_names_everything() -> None:
    text = page()
    for name in TABLE:
        assert f"\n## {name}\n" in text
    for code in CODES:
        assert f"\n- {code}: " in text
    assert "by the reference only" not in text
