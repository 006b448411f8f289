"""What is known of every event before the first one comes: constants, and fields never filled."""

from __future__ import annotations

from dataclasses import dataclass

# Fields that a source of this type never fills, with all that lies below them.
_NEVER_SOURCE = {
    "mysql": {"schema", "lsn", "txId", "xmin", "sequence"},
    "postgres": {"server_id", "gtid", "file", "pos", "row", "sequence"},
    "turso": {
        *("schema", "snapshot", "server_id", "gtid", "file", "pos", "row"),
        *("lsn", "txId", "xmin"),
    },
}
_NEVER = {
    "mysql": {"trace_id"},
    "postgres": {"trace_id"},
    "turso": {"trace_id", "transaction", "ddl", "schema_sequence"},
}
# Only a script can put something there.
_SCRIPTED = {"tags", "synthetic"}
_NO_SCRIPT = "use a field of the row such as `${after.id}`, or `${op}`, or add a script"

# What else says where in the log, or in which transaction, an event stands.
_PLACES = {
    "mysql": "`${source.gtid}`, `${source.file}` or `${source.pos}`",
    "postgres": "`${source.lsn}` or `${source.txId}`",
    "turso": "`${source.sequence}` or `${event_id}`",
}
_INSTEAD = {
    "source.schema": "`${source.db}` or `${source.table}`",
    "source.snapshot": "`${op}`, which is `r` for rows that were there before",
    "source.server_id": "`${source.db}`",
    "schema_sequence": "`${schema_version}`",
    "ddl": "`${op}` or `${schema_version}`",
    "trace_id": "`${event_id}`",
}


@dataclass(frozen=True, slots=True)
class Origin:
    pipeline: str
    tenant: str
    connector: str  # as events carry it
    source_type: str  # as the spec writes it
    scripted: bool  # some processor is a script

    def constant(self, path: tuple[str, ...]) -> str | None:
        """A field that is the same for all events.

        Scripts change nothing of this: what they return counts for `before`, `after`, `tags` and
        the routing of an event only.
        """
        known = {
            ("tenant_id",): self.tenant,
            ("source", "connector"): self.connector,
            ("source", "name"): self.pipeline,
        }
        if self.source_type == "turso":
            known["source", "db"] = "main"
        return known.get(path)

    def never(self, path: tuple[str, ...]) -> tuple[str, str] | None:
        """Why a field is null in all events, and what to use instead; None when it is not."""
        root = path[0]
        if root in _SCRIPTED and not self.scripted:
            return "only a javascript processor sets it, and there is none", _NO_SCRIPT
        below = path[1] if root == "source" and len(path) > 1 else None
        if root not in _NEVER[self.source_type] and below not in _NEVER_SOURCE[self.source_type]:
            return None
        field = f"source.{below}" if below else root
        instead = _INSTEAD.get(field, _PLACES[self.source_type])
        return f"events of a {self.source_type} source have none", f"use {instead}"
