"""Whether a server keeps its log for as long as a copy of tables may take.

The log is read while tables are copied, so a copy that goes on misses nothing. What the server must
keep is the log from where the slowest sink stands: after a crash reading begins there. The log's
reader watches that; here it is estimated before the copy begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .log import logger

BYTES_A_SECOND = 20_000_000  # of tables, by one thread: a careful guess
RISKY, HIGH = 0.5, 0.8

Query = Callable[..., list[tuple[Any, ...]]]


def preflight(query: Query, size: int, threads: int, source_id: str) -> None:
    """Warns when the copy of so many bytes may outlast the log."""
    kept = seconds_kept(query)
    share = size / (BYTES_A_SECOND * threads) / kept if kept else 0.0
    if share < RISKY:
        return
    logger.warning(
        "source %s: %sthe snapshot of %s MB may take %.0f %% of the time for which the server keeps "
        "its binary log (%s s): a job that is stopped in the middle and comes back late could not go "
        "on; raise binlog_expire_logs_seconds, or copy from a replica",
        source_id,
        "HIGH RISK: " if share >= HIGH else "",
        f"{size // 1_000_000:,}",
        100 * share,
        f"{kept:,.0f}",
    )


def seconds_kept(query: Query) -> float:
    """0 for a log that is kept until somebody removes it."""
    names = ("binlog_expire_logs_seconds", "expire_logs_days", "binlog_expire_logs_auto_purge")
    listed = ", ".join(f"'{name}'" for name in names)
    rows = query(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({listed})")
    found = {str(name).lower(): str(value) for name, value in rows}
    if found.get(names[2], "ON").upper() in ("OFF", "0"):
        return 0.0
    return float(found.get(names[0], 0)) or 86400 * float(found.get(names[1], 0))
