"""Whether a server keeps its log for as long as a copy of tables may take.

The log is read while tables are copied, so a copy that goes on misses nothing. What the server must keep
is the log from where the slowest sink stands. The log's reader looks at the slot every few seconds; here
it is estimated before the copy begins.
"""

from __future__ import annotations

from .log import logger

RISKY, HIGH = 0.5, 0.8
_LOG_OF_DATA = 2  # bytes of log that others may write while a byte of tables is copied


def preflight(limit_mb: int, size: int, source_id: str) -> None:
    """Warns when the log that may come meanwhile is much of what a slot may hold; -1 is no limit."""
    if limit_mb < 0:
        return
    limit = limit_mb << 20
    share = _LOG_OF_DATA * size / limit if limit else float(size > 0)
    if share < RISKY:
        return
    logger.warning(
        "source %s: %sthe snapshot of %s MB may last for %.0f %% of the log that the server keeps for a "
        "slot (max_slot_wal_keep_size = %s MB): a job that is stopped in the middle and comes back late "
        "could find its slot invalid. ALTER SYSTEM SET max_slot_wal_keep_size = '%s MB'; SELECT "
        "pg_reload_conf()",
        source_id,
        "HIGH RISK: " if share >= HIGH else "",
        f"{size >> 20:,}",
        100 * share,
        f"{limit_mb:,}",
        max(1024, 5 * size >> 20),
    )
