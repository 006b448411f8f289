"""Tables as the log describes them: which are captured, their keys and types, and the decoder of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..kernels.pgoutput import Split
from ..kernels.postgres_messages import Relation
from ..kernels.postgres_rows import Decoded, TupleDecoder
from .log import SourceError, logger
from .postgres_address import Address, Connection
from .postgres_publication import captured
from .postgres_registry import Look, Registry, Version
from .postgres_reselect import Reselect
from .postgres_types import Array, Composite, Domain, Enum, Types, key_places, types_query
from .settings import ReaderSettings


@dataclass(slots=True)
class CapturedTable:
    """One version of a table."""

    relation: Relation
    key: tuple[str, ...]
    decoder: TupleDecoder
    version: Version
    identity: frozenset[str] | None = None  # as for TupleDecoder

    @property
    def keyed(self) -> bool:
        return bool(self.key)


class Tables:
    """By relation, equal ones once; asks the catalog when a table or a type is new."""

    def __init__(
        self,
        address: Address,
        settings: ReaderSettings,
        registry: Registry,
        *,
        database: str,
        patterns: Sequence[str],
        wide: bool,
        halt: bool,
        reselect: bool,
    ) -> None:
        self._address = address
        self._registry = registry
        self._database = database
        self._patterns = tuple(patterns)
        self._wide = wide
        self._halt = halt
        self._reselect = Reselect(address, wide) if reselect else None
        images = {"before": "before", "after": "after", "key": "primary_key"}
        self._want = tuple(i for i, column in images.items() if column in settings.needed)
        self._types = Types()
        self._known: dict[Relation, CapturedTable | None] = {}
        self._told: set[tuple[int, str]] = set()
        self.sql: Connection | None = None

    def of(self, relation: Relation, position: str) -> CapturedTable | None:
        """None for a table that is not captured."""
        if relation not in self._known:
            made = None
            if captured(relation.schema, relation.name, self._patterns):
                made = self._make(relation, position)
            self._known[relation] = made
        return self._known[relation]

    def decode(
        self, table: CapturedTable, split: Split, rows: Any, position: str
    ) -> tuple[Decoded, list[tuple[str, ...]] | None]:
        """Images and keys of these rows, and for each the columns that were read from the table."""
        decoded = table.decoder.rows(split, rows)
        if decoded.odd and self._refresh(table, position):
            # A composite type that was altered: what it is made of now may fit.
            decoded = table.decoder.rows(split, rows)
        for column in decoded.odd:
            if (table.relation.oid, column) not in self._told:
                self._told.add((table.relation.oid, column))
                logger.warning(
                    "%s.%s: some values of column %s are not as its type has them now; they are "
                    "kept as text",
                    table.relation.schema,
                    table.relation.name,
                    column,
                )
        if self._reselect is not None and self.sql is not None:
            return self._reselect.filled(self.sql, table, split, rows, decoded)
        return decoded, None

    def refresh(self, position: str) -> None:
        """Looks whether types have other labels or attributes now; nothing in the log tells that.

        Nor does it of the replica identities of partitions.
        """
        for table in [table for table in self._known.values() if table is not None]:
            altered = any(self._alterable(column.type) for column in table.relation.columns)
            if altered and self._refresh(table, position):
                continue
            if table.identity != (identity := self._identity(table.relation)):
                table.decoder = self._decoder(table.relation, table.key, identity)
                table.identity = identity

    def _alterable(self, oid: int) -> bool:
        match known := self._types.get(oid):
            case Array():
                return self._alterable(known.element)
            case Domain():
                return self._alterable(known.base)
            case _:
                return isinstance(known, Enum | Composite)

    def _refresh(self, table: CapturedTable, position: str) -> bool:
        """Whether the types of a table have changed; it then has another decoder and version."""
        before = self._looks(table.relation), self._types.columns(table.relation)
        self._load([column.type for column in table.relation.columns])
        if (self._looks(table.relation), self._types.columns(table.relation)) == before:
            return False
        made = self._make(table.relation, position)
        table.decoder, table.version, table.identity = made.decoder, made.version, made.identity
        return True

    def _make(self, relation: Relation, position: str) -> CapturedTable:
        kinds = [column.type for column in relation.columns]
        self._load(self._types.missing(kinds))
        key = self._key(relation)
        version = self._version(relation, key, position)
        identity = self._identity(relation)
        return CapturedTable(
            relation, key, self._decoder(relation, key, identity), version, identity
        )

    def _decoder(
        self, relation: Relation, key: tuple[str, ...], identity: frozenset[str] | None
    ) -> TupleDecoder:
        return TupleDecoder(
            self._types.columns(relation),
            key_places(relation, key),
            wide=self._wide,
            want=self._want,
            identity=identity,
        )

    def _identity(self, relation: Relation) -> frozenset[str] | None:
        """What old rows have of a partitioned table that says it has all.

        The server marks them by the table's own identity, and fills them by that of the partition, with
        nulls for what the partition does not log.
        """
        if relation.identity != "f" or self.sql is None:
            return None
        with self._address.guarded():
            rows = self.sql.execute(
                "SELECT l.relreplident = 'f', ARRAY(SELECT a.attname::pg_catalog.text"
                "  FROM pg_catalog.pg_index i CROSS JOIN LATERAL pg_catalog.unnest(i.indkey) k(at)"
                "  JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.at"
                "  WHERE i.indrelid = l.oid AND ((l.relreplident = 'd' AND i.indisprimary)"
                "   OR (l.relreplident = 'i' AND i.indisreplident)))"
                " FROM pg_catalog.pg_partition_tree(%s::pg_catalog.int8::pg_catalog.oid) t"
                " JOIN pg_catalog.pg_class l ON l.oid = t.relid"
                " WHERE t.isleaf AND l.relkind = 'r'",
                (relation.oid,),
            ).fetchall()
        partial = [frozenset(names) for whole, names in rows if not whole]
        return frozenset.intersection(*partial) if partial else None

    def _version(self, relation: Relation, key: tuple[str, ...], position: str) -> Version:
        latest = self._registry.latest(relation.schema, relation.name)
        looks = self._looks(relation)
        name = f"{relation.schema}.{relation.name}"
        if latest is not None and self._halt and (latest.columns, latest.key) != (looks, key):
            raise SourceError(
                f"{name} no longer has the columns last seen, and `on_schema_drift: halt` asks to "
                f"stop: {_difference(latest, looks, key)}; to go on with the new ones set it to adapt"
            )
        version = self._registry.register(
            self._database,
            relation.schema,
            relation.name,
            relation.identity,
            looks,
            key,
            position,
        )
        if latest is not None and latest.fingerprint != version.fingerprint:
            logger.info("%s has changed: %s", name, _difference(latest, looks, key))
        return version

    def _looks(self, relation: Relation) -> tuple[Look, ...]:
        made = []
        for column in relation.columns:
            known = self._types.get(column.type)
            labels = known.labels if isinstance(known, Enum) else ()
            kind = self._types.name(column.type)
            made.append(Look(column.name, kind, column.modifier, labels))
        return tuple(made)

    def _load(self, oids: Sequence[int]) -> None:
        if not oids or self.sql is None:
            return
        with self._address.guarded():
            rows = self.sql.execute(types_query(oids)).fetchall()
        self._types.load(text for (text,) in rows)

    def _key(self, relation: Relation) -> tuple[str, ...]:
        """The primary key's columns in its own order, as far as the log's version of the table has them.

        Under the default identity the log itself tells which columns they are.
        """
        names: tuple[str, ...] = ()
        if self.sql is not None:
            with self._address.guarded():
                rows = self.sql.execute(
                    "SELECT a.attname FROM pg_catalog.pg_index i"
                    " CROSS JOIN LATERAL pg_catalog.unnest(i.indkey) WITH ORDINALITY k(attnum, at)"
                    " JOIN pg_catalog.pg_attribute a"
                    "   ON a.attrelid = i.indrelid AND a.attnum = k.attnum"
                    " WHERE i.indrelid = %s AND i.indisprimary ORDER BY k.at",
                    (relation.oid,),
                ).fetchall()
            names = tuple(name for (name,) in rows)
        told = tuple(column.name for column in relation.columns if column.key)
        if relation.identity == "d":
            return names if set(names) == set(told) else told
        return names if set(names) <= {column.name for column in relation.columns} else ()


def _difference(latest: Version, looks: tuple[Look, ...], key: tuple[str, ...]) -> str:
    old, new = {c.name: c for c in latest.columns}, {c.name: c for c in looks}
    parts = []
    if gone := [name for name in old if name not in new]:
        parts.append(f"without {', '.join(gone)}")
    if come := [name for name in new if name not in old]:
        parts.append(f"with {', '.join(come)}")
    parts += [
        f"{name} from {_kind(old[name])} to {_kind(new[name])}"
        for name in new
        if name in old and old[name] != new[name]
    ]
    if latest.key != key:
        parts.append(f"primary key ({', '.join(latest.key)}) to ({', '.join(key)})")
    return "; ".join(parts) or "other order or replica identity"


def _kind(look: Look) -> str:
    labels = f" ({', '.join(look.labels)})" if look.labels else ""
    modifier = f"[{look.modifier}]" if look.modifier >= 0 else ""
    return f"{look.type}{modifier}{labels}"
