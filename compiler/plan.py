"""The intermediate plan: data only. Complete (defaults filled), typed, and all that emit may see.

`dfc plan --json` prints it, goldens keep it, `dfc diff` compares two of them. A credential is an
EnvRef here, so the plan cannot hold its value.
"""

from __future__ import annotations

from dataclasses import dataclass

from .span import Span

PLAN_VERSION = 1


# --- text: what stands in a field ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literal:
    text: str


@dataclass(frozen=True, slots=True)
class EnvRef:
    """`${NAME}` or `${NAME:-default}`: read by the job when it starts, never by the compiler."""

    name: str
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """`${after.customer_id}`: a value of each event."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """The same for all events, though the environment may have a part in it."""

    parts: tuple[Literal | EnvRef, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """Differs from event to event."""

    parts: tuple[Literal | EnvRef | Field, ...]


Route = Text | Template
Secret = EnvRef | Text  # the latter only with --allow-literal-secrets


def spelled(route: Route) -> str:
    """A text or template as a spec writes it, with `${...}` in place."""
    text = ""
    for part in route.parts:
        match part:
            case Literal(text=piece):
                text += piece.replace("$", "$$")
            case EnvRef(name=name, default=None):
                text += f"${{{name}}}"
            case EnvRef(name=name, default=default):
                text += f"${{{name}:-{default}}}"
            case Field(path=path):
                text += f"${{{'.'.join(path)}}}"
    return text


# --- sources ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    mode: str
    max_parallel_tables: int
    chunk_size: int
    intra_table_parallel: bool
    max_parallel_chunks: int


@dataclass(frozen=True, slots=True)
class MysqlSource:
    id: str
    dsn: Text
    tables: tuple[str, ...]
    outbox_tables: tuple[str, ...]
    snapshot: Snapshot | None
    on_schema_drift: str
    json_wide_integers: str
    span: Span


@dataclass(frozen=True, slots=True)
class PostgresSource:
    id: str
    dsn: Text
    slot: Text
    publication: Text
    tables: tuple[str, ...]
    start_position: str  # earliest, latest or an LSN
    outbox_prefixes: tuple[str, ...]
    snapshot: Snapshot | None
    on_schema_drift: str
    json_wide_integers: str
    manage: bool
    reselect: bool
    heartbeat_interval_secs: int
    heartbeat_query: str | None
    span: Span


@dataclass(frozen=True, slots=True)
class TursoSource:
    id: str
    url: Text
    auth_token: Secret | None
    tables: tuple[str, ...]
    cdc_mode: str
    poll_interval_ms: int
    native_cdc_level: str
    span: Span


Source = MysqlSource | PostgresSource | TursoSource
_REMOTE = ("libsql://", "http://", "https://", "ws://", "wss://")


def is_remote(url: Text) -> bool:
    """Whether the url of a turso source is known to be that of a server."""
    first = url.parts[0]
    return isinstance(first, Literal) and first.text.lower().startswith(_REMOTE)


# --- processors ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JavaScript:
    id: str
    script: str
    cpu_ms: int
    mem_mb: int
    timeout_ms: int
    on_error: str
    deterministic: bool
    engine: str
    reads: tuple[str, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Predicate:
    path: tuple[str, ...]
    op: str
    value: str | None  # JSON text, so that 1 and 1.0 stay apart


@dataclass(frozen=True, slots=True)
class Filter:
    id: str
    ops: tuple[str, ...]  # one-letter codes
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    fields: tuple[Predicate, ...]
    match: str
    runs: tuple[str, ...]  # arrow: as column expressions; kernel: compiled code over JSON text
    reads: tuple[str, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Flatten:
    id: str
    separator: str
    max_depth: int | None
    on_collision: str
    empty_object: str
    lists: str
    empty_list: str
    runs: tuple[str, ...]
    reads: tuple[str, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class OutboxColumns:
    payload: str
    aggregate_type: str
    aggregate_id: str
    event_type: str
    topic: str
    event_id: str


@dataclass(frozen=True, slots=True)
class Outbox:
    id: str
    tables: tuple[str, ...]
    columns: OutboxColumns
    topic: Route | None
    default_topic: Text | None
    key: Route | None
    additional_headers: tuple[tuple[str, str], ...]
    raw_payload: bool
    strict: bool
    runs: tuple[str, ...]
    reads: tuple[str, ...]
    span: Span


Processor = JavaScript | Filter | Flatten | Outbox


@dataclass(frozen=True, slots=True)
class Pass:
    """Adjacent processors of one engine: they share one crossing into it and back."""

    engine: str  # arrow or javascript
    steps: tuple[Processor, ...]


# --- sinks -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Envelope:
    type: str
    type_prefix: str | None


@dataclass(frozen=True, slots=True)
class SinkFilter:
    exclude_synthetic: bool
    synthetic_only: bool
    producers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delivery:
    """What every sink has."""

    required: bool
    envelope: Envelope
    encoding: str
    filter: SinkFilter | None
    routed: bool  # a processor may override destination, key and headers
    raw: bool  # a processor may ask for the payload without envelope
    reads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KafkaSink:
    id: str
    brokers: Text
    topic: Route
    key: Route | None
    exactly_once: bool
    send_timeout_secs: int
    client_conf: tuple[tuple[str, Text], ...]
    delivery: Delivery
    span: Span


@dataclass(frozen=True, slots=True)
class RedisSink:
    id: str
    uri: Text
    stream: Route
    key: Route | None
    maxlen: int | None
    send_timeout_secs: int
    batch_timeout_secs: int
    connect_timeout_secs: int
    delivery: Delivery
    span: Span


@dataclass(frozen=True, slots=True)
class NatsSink:
    id: str
    url: Text
    subject: Route
    key: Route | None
    stream: Text | None
    send_timeout_secs: int
    batch_timeout_secs: int
    connect_timeout_secs: int
    credentials_file: Text | None
    username: Text | None
    password: Secret | None
    token: Secret | None
    delivery: Delivery
    span: Span


@dataclass(frozen=True, slots=True)
class ConsoleSink:
    id: str
    key: Route | None
    pretty: bool
    delivery: Delivery
    span: Span


@dataclass(frozen=True, slots=True)
class FileSink:
    id: str
    path: Text
    name: Route
    roll_max_events: int
    roll_max_bytes: int
    roll_max_age_secs: int
    fsync: bool
    delivery: Delivery
    span: Span


Sink = KafkaSink | RedisSink | NatsSink | ConsoleSink | FileSink


def kind_of(node: Source | Processor | Sink) -> str:
    """The `type` that a spec writes for it."""
    return type(node).__name__.removesuffix("Source").removesuffix("Sink").lower()


# --- the rest --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    max_events: int
    max_bytes: int
    max_ms: int
    respect_source_tx: bool
    max_inflight: int
    span: Span


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    mode: str  # required, all or quorum
    quorum: int | None
    sinks: tuple[str, ...]  # whose acknowledgements count
    span: Span


@dataclass(frozen=True, slots=True)
class Lanes:
    count: int
    key: str | None


@dataclass(frozen=True, slots=True)
class Journal:
    enabled: bool
    max_event_bytes: int
    max_entries: int
    max_age_secs: int
    overflow_policy: str


@dataclass(frozen=True, slots=True)
class Storage:
    backend: str
    path: Text
    dsn: Text | None


@dataclass(frozen=True, slots=True)
class ConnectionPolicy:
    default_mode: str | None
    preferred_replica: Text | None
    max_dedicated_per_source: int | None


@dataclass(frozen=True, slots=True)
class SchemaSensing:
    """Off or on, with each setting by its dotted name in the order of the schema."""

    enabled: bool
    settings: tuple[tuple[str, str | int | float | bool | tuple[str, ...] | None], ...]


@dataclass(frozen=True, slots=True)
class Lineage:
    """Which tables reach which destination, and through what.

    All sinks get the events of all tables that come out of the last processor, so tables and
    processors stand here once: a plan of many sinks and tables would be megabytes otherwise.
    """

    tables: tuple[str, ...]
    processors: tuple[str, ...]
    destinations: tuple[tuple[str, str], ...]  # by sink id


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    tenant: str
    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]
    source: Source
    passes: tuple[Pass, ...]
    sinks: tuple[Sink, ...]
    batch: Batch
    commit: CommitPolicy
    sink_batch_deadline_secs: int | None
    lanes: Lanes
    journal: Journal
    schema_sensing: SchemaSensing
    storage: Storage
    connection_policy: ConnectionPolicy | None
    columns: tuple[str, ...]  # what the reader must carry, and nothing else
    env: tuple[str, ...]  # variables without a default, in order of use
    lineage: Lineage
