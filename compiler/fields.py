"""The fields of an event, as templates may name them, and the answers to names that are none."""

from __future__ import annotations

from .diagnostics import did_you_mean

SOURCE_FIELDS = [
    "version",
    "connector",
    "name",
    "ts_ms",
    "db",
    "schema",
    "table",
    "snapshot",
    "server_id",
    "gtid",
    "file",
    "pos",
    "row",
    "lsn",
    "txId",
    "xmin",
    "sequence",
]
# None: what lies below is data, so any path is right. Otherwise the names below, if any.
EVENT_FIELDS: dict[str, tuple[str, ...] | None] = {
    "before": None,
    "after": None,
    "source": tuple(SOURCE_FIELDS),
    "op": (),
    "ts_ms": (),
    "transaction": ("id", "total_order", "data_collection_order"),
    "event_id": (),
    "tenant_id": (),
    "schema_version": (),
    "schema_sequence": (),
    "ddl": None,
    "trace_id": (),
    "tags": (),
    "synthetic": (),
    "tx_end": (),
}


def is_event_field(path: tuple[str, ...]) -> bool:
    root, rest = path[0], path[1:]
    if root not in EVENT_FIELDS:
        return False
    below = EVENT_FIELDS[root]
    return below is None or not rest or (len(rest) == 1 and rest[0] in below)


def suggest(path: tuple[str, ...]) -> str:
    """A help line for a path that is no event field."""
    root, rest = path[0], path[1:]
    if not rest and root in SOURCE_FIELDS:
        return f"did you mean `${{source.{root}}}`?"
    near = root if root in EVENT_FIELDS else did_you_mean(root, EVENT_FIELDS)
    if near:
        below = EVENT_FIELDS[near]
        if rest and below:
            close = did_you_mean(rest[0], below)
            if close is None:
                return f"fields: {', '.join(f'{near}.{name}' for name in below)}"
            rest = (close,)
        elif below == ():
            rest = ()
        return f"did you mean `${{{'.'.join((near, *rest))}}}`?"
    if not rest:
        return (
            f"a column is `${{after.{root}}}` or `${{before.{root}}}`; "
            f"an environment variable is written in capitals: `${{{root.upper()}}}`"
        )
    return f"fields: {', '.join(EVENT_FIELDS)}"
