"""The tables that a source captures, and the publication by which the server sends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..patterns import matches, selected
from .log import SourceError, TransientError, logger
from .postgres_address import Address, Connection, Denied
from .postgres_server import Server, quoted

# State of dfc itself, when its storage is in the same database: each write would make the next event.
_OWN = frozenset({"df_kv", "df_log", "df_slot", "df_queue", "df_migrations"})
_IDENTITIES = {
    "d": "before images hold the primary key alone",
    "i": "before images hold the columns of an index alone",
    "n": "there are no before images",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A table that rows stand in: its own replica identity decides what the log tells of them."""

    oid: int
    schema: str
    name: str
    identity: str
    has_key: bool

    @property
    def sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def identified(self) -> bool:
        """Whether updates and deletes of it can be published; without, they would fail."""
        return self.identity in "fi" or (self.identity == "d" and self.has_key)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the catalog; `ancestors` are those that it is a partition of.

    `parts` are its partitions that have none themselves; of another table, and of one that has no
    partition yet, itself.
    """

    oid: int
    schema: str
    name: str
    kind: str
    has_key: bool
    logged: bool
    ancestors: tuple[int, ...]
    published: bool
    parts: tuple[Part, ...]

    @property
    def sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def published_as(self) -> str:
        """As a publication is to name it: without ONLY it would get every table that inherits."""
        return f"ONLY {self.sql}" if self.kind == "r" else self.sql

    @property
    def shown(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def identity(self) -> str:
        """What holds for all rows."""
        return min((part.identity for part in self.parts), key="nidf".index)

    @property
    def unfit(self) -> tuple[Part, ...]:
        """Those whose updates and deletes would fail once they are published."""
        return tuple(part for part in self.parts if not part.identified)

    @property
    def identified(self) -> bool:
        return not self.unfit


def captured(schema: str, name: str, patterns: Sequence[str]) -> bool:
    if schema == "information_schema" or schema.startswith("pg_"):
        return False
    if name in _OWN and not any(pattern.endswith(name) for pattern in patterns):
        return False
    return selected(schema, name, patterns)


def tables(
    address: Address, connection: Connection, publication: str, patterns: Sequence[str]
) -> list[Table]:
    """The tables that the patterns mean, without partitions of others among them."""
    with address.guarded():
        rows = connection.execute(
            "SELECT c.oid::pg_catalog.int8, n.nspname, c.relname, c.relkind::pg_catalog.text,"
            " c.relpersistence = 'p',"
            " ARRAY(SELECT a.relid::pg_catalog.oid::pg_catalog.int8"
            "   FROM pg_catalog.pg_partition_ancestors(c.oid) a WHERE a.relid <> c.oid),"
            " EXISTS (SELECT FROM pg_catalog.pg_publication_tables p WHERE p.pubname = %s"
            "   AND p.schemaname = n.nspname AND p.tablename = c.relname),"
            " c.relreplident::pg_catalog.text,"
            " EXISTS (SELECT FROM pg_catalog.pg_index i"
            "   WHERE i.indrelid = c.oid AND i.indisprimary),"
            " ARRAY(SELECT l.relid::pg_catalog.oid::pg_catalog.int8"
            "   FROM pg_catalog.pg_partition_tree(c.oid) l WHERE l.isleaf AND c.relkind = 'p')"
            " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'"
            " ORDER BY n.nspname, c.relname",
            (publication,),
        ).fetchall()
    own = {row[0]: Part(row[0], row[1], row[2], row[7], row[8]) for row in rows}
    found = []
    for oid, schema, name, kind, logged, above, published, _, key, leaves in rows:
        if captured(schema, name, patterns):
            parts = [own[leaf] for leaf in leaves if leaf in own and leaf != oid] or [own[oid]]
            found.append(
                Table(oid, schema, name, kind, key, logged, tuple(above), published, tuple(parts))
            )
    roots = {table.oid for table in found}
    return [table for table in found if not roots.intersection(table.ancestors)]


class Publication:
    """`came` is called with a table before it is added to what is there already."""

    def __init__(
        self,
        address: Address,
        server: Server,
        name: str,
        patterns: Sequence[str],
        manage: bool,
        came: Callable[[Table], None] = lambda table: None,
    ) -> None:
        self._address = address
        self._server = server
        self._name = name
        self._patterns = tuple(patterns)
        self._manage = manage
        self._came = came
        # By OID: another table may take the name.
        self._refused: set[int] = set()
        self._told: set[int] = set()

    def ensure(self, connection: Connection, messages_only: bool) -> None:
        """Makes it, or completes it, where that is allowed; else says how.

        `messages_only` tells that a source may do without any table.
        """
        found = tables(self._address, connection, self._name, self._patterns)
        self._warn(found, messages_only)
        row = self._options(connection)
        if row is None:
            self._create(connection, found)
            return
        inserts, updates, deletes, truncates, by_root = row
        lacking = [
            word
            for word, there in zip(
                ("insert", "update", "delete", "truncate"),
                (inserts, updates, deletes, truncates),
                strict=True,
            )
            if not there
        ]
        if lacking:
            logger.warning(
                "the publication %s leaves out every %s", self._name, " and ".join(lacking)
            )
        parted = [table for table in found if table.kind == "p"]
        if parted and not by_root:
            self._change(
                connection,
                f"ALTER PUBLICATION {quoted(self._name)} SET (publish_via_partition_root = true)",
                f"the publication {self._name} tells changes of {_listed(parted)} under the names "
                "of partitions",
            )
            found = tables(self._address, connection, self._name, self._patterns)
        missing = [table for table in found if not table.published and table.logged]
        if self._manage:
            self._check_identities(missing)
        self._add(connection, missing)

    def follow(self, connection: Connection) -> None:
        """Tables that came later."""
        found = tables(self._address, connection, self._name, self._patterns)
        self._tell_unfit([table for table in found if table.logged])
        fresh = [
            table
            for table in found
            if table.logged
            and table.identified
            and not table.published
            and table.oid not in self._refused
        ]
        if fresh and not self._manage:
            self._refused.update(table.oid for table in fresh)
            logger.warning(
                "%s: not in the publication %s, so not captured: %s",
                _listed(fresh),
                self._name,
                self._add_sql(fresh),
            )
            return
        for table in fresh:  # one that is refused shall not keep out the others
            try:
                self._add(connection, [table])
                logger.info("the publication %s now has %s too", self._name, table.shown)
            except TransientError:
                raise
            except Denied as error:
                self._refused.add(table.oid)
                logger.warning("%s", error)
            except SourceError as error:
                # Perhaps it was dropped just now, perhaps it can be had in a moment.
                if table.oid not in self._told:
                    logger.warning("%s", error)
                self._told.add(table.oid)

    def _tell_unfit(self, found: list[Table]) -> None:
        """Also partitions that came later to a table: a new one has the default identity."""
        unfit = [part for table in found for part in table.unfit if part.oid not in self._told]
        self._told.update(part.oid for part in unfit)
        if unfit:
            logger.warning("%s", _no_identity(unfit))

    def _options(self, connection: Connection) -> tuple[bool, ...] | None:
        with self._address.guarded():
            return connection.execute(
                "SELECT pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot"
                " FROM pg_catalog.pg_publication WHERE pubname = %s",
                (self._name,),
            ).fetchone()

    def _create(self, connection: Connection, found: list[Table]) -> None:
        found = [table for table in found if table.logged]
        names = ", ".join(table.published_as for table in found)
        what = f" FOR TABLE {names}" if names else ""
        if self._manage:
            self._check_identities(found)
        self._change(
            connection,
            f"CREATE PUBLICATION {quoted(self._name)}{what}"
            " WITH (publish_via_partition_root = true)",
            f"there is no publication {self._name}",
        )
        logger.info("made the publication %s with %s", self._name, _listed(found) or "no table yet")

    def _add(self, connection: Connection, missing: list[Table]) -> None:
        if not missing:
            return
        if self._manage:
            for table in missing:
                self._came(table)
        self._change(
            connection,
            self._add_sql(missing),
            f"the publication {self._name} lacks {_listed(missing)}",
        )

    def _add_sql(self, missing: list[Table]) -> str:
        names = ", ".join(table.published_as for table in missing)
        return f"ALTER PUBLICATION {quoted(self._name)} ADD TABLE {names}"

    def _change(self, connection: Connection, statement: str, why: str) -> None:
        if not self._manage:
            raise SourceError(f"{why}, and `manage: false` leaves that to you: {statement}")
        if self._server.standby:
            raise SourceError(f"{why}; this server is a standby, so on its primary: {statement}")
        try:
            with self._address.guarded():
                connection.execute(statement)
        except Denied as error:
            raise Denied(
                f"{why}, and the login may not change that ({error}): {statement}"
            ) from None

    @staticmethod
    def _check_identities(found: list[Table]) -> None:
        unfit = [part for table in found for part in table.unfit]
        if unfit:
            raise SourceError(_no_identity(unfit))

    def _warn(self, found: list[Table], messages_only: bool) -> None:
        for pattern in self._patterns:
            if not any(matches(pattern, table.schema, table.name) for table in found) and not (
                messages_only and "*" not in pattern
            ):
                logger.warning("no table is there yet for the pattern %s", pattern)
        unlogged = [table for table in found if not table.logged]
        if unlogged:
            logger.warning("%s: unlogged, so the log has no changes of them", _listed(unlogged))
        for identity, meaning in _IDENTITIES.items():
            those = [t for t in found if t.identity == identity and t.logged and t.identified]
            if identity == "n":
                those = [t for t in found if t.identity == identity and t.logged]
            if those:
                logger.warning(
                    "%s: %s; for whole ones ALTER TABLE ... REPLICA IDENTITY FULL",
                    _listed(those),
                    meaning,
                )


def _no_identity(found: list[Part]) -> str:
    statements = "; ".join(f"ALTER TABLE {part.sql} REPLICA IDENTITY FULL" for part in found)
    return (
        f"{_listed(found)}: without primary key or replica identity, so the server would refuse "
        f"every UPDATE and DELETE there once published; first: {statements}; or leave them out of "
        "`tables`"
    )


def _listed(found: Sequence[Table | Part]) -> str:
    shown = [f"{table.schema}.{table.name}" for table in found[:20]]
    if len(found) > len(shown):
        shown.append(f"{len(found) - len(shown)} more")
    return ", ".join(shown)
