"""`spec.sinks` -> sinks of the plan."""

from __future__ import annotations

import re

from ..diagnostics import Diagnostics, quote
from ..plan import (
    ConsoleSink,
    Delivery,
    Envelope,
    FileSink,
    JavaScript,
    KafkaSink,
    Literal,
    NatsSink,
    Outbox,
    Processor,
    RedisSink,
    Route,
    Sink,
    SinkFilter,
    Text,
    spelled,
)
from ..spec import Section, as_text
from .files import check_folders, check_name
from .origin import Origin
from .routing import event_route, fields_of

# What an envelope takes from each event; the tenant is a constant of the pipeline.
_ENVELOPE_READS = {
    "native": [
        "before",
        "after",
        "source",
        "op",
        "ts_ms",
        "transaction",
        "event_id",
        "schema_version",
        "schema_sequence",
        "ddl",
        "tx_end",
    ],
    "cloudevents": [
        "before",
        "after",
        "source.db",
        "source.schema",
        "source.table",
        "op",
        "ts_ms",
        "event_id",
    ],
}
_ENVELOPE_READS["debezium"] = _ENVELOPE_READS["native"]
# What may stand in a destination; the schema has checked what the user wrote, but not what a tenant
# or a pipeline's name brings in.
_FITS = {"topic": r"[A-Za-z0-9._-]*", "subject": r"[^\s*>]*", "name": r"(?!\.{1,2}$)[^/\\]*"}
# The parts of the idempotency key, which Redis entries and NATS message ids carry.
_IDENTITY = ("event_id", "source.db", "source.table", "transaction.id")


class SinkResolver:
    def __init__(
        self, processors: tuple[Processor, ...], origin: Origin, diagnostics: Diagnostics
    ) -> None:
        self.origin = origin
        self.diagnostics = diagnostics
        self.routed = any(isinstance(p, JavaScript | Outbox) for p in processors)
        self.raw = any(
            isinstance(p, JavaScript) or (isinstance(p, Outbox) and p.raw_payload)
            for p in processors
        )
        self.processors = {p.id: p for p in processors}
        self.scripts = [p.id for p in processors if isinstance(p, JavaScript)]

    def resolve(self, sections: tuple[Section, ...]) -> tuple[Sink, ...]:
        sinks: list[Sink] = []
        files: list[tuple[FileSink, Section]] = []
        seen: dict[str, int] = {}
        for section in sections:
            config = section.section("config")
            ident = config.string("id")
            if ident in seen:
                self.diagnostics.error(
                    "DFC403",
                    config.at("id"),
                    f"two sinks have the id {quote(ident)}, the first at line {seen[ident]}",
                    "positions are kept by sink id; give each its own",
                )
            seen.setdefault(ident, section.span.line)
            sink = self.sink(section, config)
            sinks.append(sink)
            if isinstance(sink, FileSink):
                files.append((sink, config))
        check_folders(files, self.diagnostics)
        return tuple(sinks)

    def sink(self, section: Section, config: Section) -> Sink:
        match section.string("type"):
            case "kafka":
                return self.kafka(section, config)
            case "redis":
                return self.redis(section, config)
            case "nats":
                return self.nats(section, config)
            case "console":
                return self.console(section, config)
            case _:
                return self.file(section, config)

    def kafka(self, section: Section, config: Section) -> KafkaSink:
        topic, key = self.route(config, "topic"), self.opt_route(config, "key")
        default_key = () if key else ("primary_key", "source.db", "source.table")
        conf = config.section("client_conf")
        _check_client_conf(config, conf, self.diagnostics)
        return KafkaSink(
            id=config.string("id"),
            brokers=config.text("brokers"),
            topic=topic,
            key=key,
            exactly_once=config.flag("exactly_once"),
            send_timeout_secs=config.integer("send_timeout_secs"),
            client_conf=tuple((k, as_text(conf.written(k))) for k in conf.values),
            delivery=self.delivery(config, fields_of(topic, key) + default_key),
            span=section.span,
        )

    def redis(self, section: Section, config: Section) -> RedisSink:
        stream, key = self.route(config, "stream"), self.opt_route(config, "key")
        return RedisSink(
            id=config.string("id"),
            uri=config.text("uri"),
            stream=stream,
            key=key,
            maxlen=config.opt_integer("maxlen"),
            send_timeout_secs=config.integer("send_timeout_secs"),
            batch_timeout_secs=config.integer("batch_timeout_secs"),
            connect_timeout_secs=config.integer("connect_timeout_secs"),
            delivery=self.delivery(config, fields_of(stream, key) + _IDENTITY),
            span=section.span,
        )

    def nats(self, section: Section, config: Section) -> NatsSink:
        subject, key = self.route(config, "subject"), self.opt_route(config, "key")
        self.nats_auth(config)
        return NatsSink(
            id=config.string("id"),
            url=config.text("url"),
            subject=subject,
            key=key,
            stream=config.opt_text("stream"),
            send_timeout_secs=config.integer("send_timeout_secs"),
            batch_timeout_secs=config.integer("batch_timeout_secs"),
            connect_timeout_secs=config.integer("connect_timeout_secs"),
            credentials_file=config.opt_text("credentials_file"),
            username=config.opt_text("username"),
            password=config.secret("password"),
            token=config.secret("token"),
            delivery=self.delivery(config, fields_of(subject, key) + _IDENTITY),
            span=section.span,
        )

    def nats_auth(self, config: Section) -> None:
        ways = [k for k in ("credentials_file", "username", "token") if config.opt_written(k)]
        if len(ways) > 1:
            self.diagnostics.error(
                "DFC413",
                config.at(ways[1]),
                f"`{ways[0]}` and `{ways[1]}` are two ways to log in",
                "keep one of them",
            )
        for given, other in (("username", "password"), ("password", "username")):
            if config.opt_written(given) and not config.opt_written(other):
                self.diagnostics.error(
                    "DFC413", config.at(given), f"`{given}` is of no use without `{other}`"
                )

    def console(self, section: Section, config: Section) -> ConsoleSink:
        key = self.opt_route(config, "key")
        return ConsoleSink(
            id=config.string("id"),
            key=key,
            pretty=config.flag("pretty"),
            delivery=self.delivery(config, fields_of(key)),
            span=section.span,
        )

    def file(self, section: Section, config: Section) -> FileSink:
        name = self.opt_route(config, "name")
        if name:
            check_name(name, config, self.diagnostics)
        else:
            name = Text((Literal(config.string("id")),))
        roll = config.section("roll")
        return FileSink(
            id=config.string("id"),
            path=config.text("path"),
            name=name,
            roll_max_events=roll.integer("max_events"),
            roll_max_bytes=roll.integer("max_bytes"),
            roll_max_age_secs=roll.integer("max_age_secs"),
            fsync=config.flag("fsync"),
            delivery=self.delivery(config, fields_of(name)),
            span=section.span,
        )

    # --- what all sinks share ------------------------------------------------------------------

    def route(self, config: Section, key: str) -> Route:
        return event_route(config.written(key), self.origin, self.diagnostics, _FITS.get(key))

    def opt_route(self, config: Section, key: str) -> Route | None:
        return self.route(config, key) if config.opt_written(key) else None

    def delivery(self, config: Section, reads: tuple[str, ...]) -> Delivery:
        envelope = config.section("envelope")
        kind = envelope.string("type")
        encoding = config.opt_section("encoding")
        prefix = envelope.string("type_prefix") if kind == "cloudevents" else None
        all_reads = dict.fromkeys((*_ENVELOPE_READS[kind], *reads))
        return Delivery(
            required=config.flag("required"),
            envelope=Envelope(kind, prefix),
            encoding=encoding.string("type") if encoding else config.string("encoding"),
            filter=self.filter(config),
            routed=self.routed,
            raw=self.raw,
            reads=tuple(all_reads),
        )

    def filter(self, config: Section) -> SinkFilter | None:
        section = config.opt_section("filter")
        if section is None:
            return None
        exclude, only = section.flag("exclude_synthetic"), section.flag("synthetic_only")
        if exclude and only:
            self.diagnostics.error(
                "DFC414",
                section.at("synthetic_only"),
                "`exclude_synthetic` and `synthetic_only` together let nothing through",
                "keep one of them",
            )
        elif only and not self.scripts:
            self.diagnostics.error(
                "DFC415",
                section.at("synthetic_only"),
                "`synthetic_only` lets nothing through: only scripts make events, and there is none",
                "leave it out, or add a javascript processor",
            )
        for producer, span in section.placed("producers"):
            if producer in self.scripts:
                continue
            if producer in self.processors:
                message = f"processor {quote(producer)} makes no events, only scripts do"
            else:
                message = f"no processor has the id {quote(producer)}"
            known = f"scripts: {', '.join(self.scripts)}" if self.scripts else ""
            self.diagnostics.error("DFC415", span, message, known)
        return SinkFilter(exclude, only, section.strs("producers"))


def destination(sink: Sink) -> str:
    """Where a sink's events go, in a few words."""
    match sink:
        case KafkaSink():
            return f"kafka topic {spelled(sink.topic)}"
        case RedisSink():
            return f"redis stream {spelled(sink.stream)}"
        case NatsSink():
            return f"nats subject {spelled(sink.subject)}"
        case ConsoleSink():
            return "console"
        case FileSink():
            return f"files {spelled(sink.path)}/{spelled(sink.name)}"


def _check_client_conf(config: Section, conf: Section, diagnostics: Diagnostics) -> None:
    values = {k: conf.written(k).plain for k in conf.values}
    for key in ("bootstrap.servers", "metadata.broker.list"):
        if key in values:
            diagnostics.error(
                "DFC416",
                conf.at(key),
                f"`client_conf` sets {quote(key)}, which `brokers` sets already",
                "use `brokers`",
            )
    if "transactional.id" in values:
        diagnostics.error(
            "DFC417",
            conf.at("transactional.id"),
            "dfc names the transactions itself, by pipeline and sink",
            "leave `transactional.id` out; `exactly_once: true` turns transactions on",
        )
    idempotence = values.get("enable.idempotence", "true")
    acks = values.get("acks", values.get("request.required.acks", "all"))
    acks_at = conf.at("acks" if "acks" in values else "request.required.acks")
    if config.flag("exactly_once"):
        if idempotence == "false":
            diagnostics.error(
                "DFC418",
                conf.at("enable.idempotence"),
                "`exactly_once` needs an idempotent producer",
                'leave `enable.idempotence: "false"` out',
            )
        if acks not in ("all", "-1", None):
            diagnostics.error(
                "DFC418",
                acks_at,
                f"`exactly_once` needs `acks: all`, not {quote(acks)}",
                "leave `acks` out",
            )
    elif acks not in ("all", "-1", None) and idempotence != "false":
        diagnostics.error(
            "DFC419",
            acks_at,
            f"`acks: {acks}` cannot go with an idempotent producer, which is the default",
            'add `enable.idempotence: "false"` (records may then repeat or swap), or leave `acks` out',
        )
    _check_limits(config, conf, values, idempotence, diagnostics)


def _check_limits(
    config: Section,
    conf: Section,
    values: dict[str, str | None],
    idempotence: str | None,
    diagnostics: Diagnostics,
) -> None:
    def number(*names: str) -> tuple[str, int | None]:
        name = next((n for n in names if n in values), names[0])
        text = values.get(name)
        return name, int(text) if text and re.fullmatch(r"[0-9]{1,18}", text) else None

    name, inflight = number("max.in.flight.requests.per.connection", "max.in.flight")
    if inflight and inflight > 5 and idempotence != "false":
        diagnostics.error(
            "DFC419",
            conf.at(name),
            f"an idempotent producer has at most 5 requests in flight, not {inflight}",
            "leave it out",
        )
    name, delivery = number("delivery.timeout.ms", "message.timeout.ms")
    transaction_name, given = number("transaction.timeout.ms")
    transaction = given or 60_000  # what dfc sets
    if config.flag("exactly_once") and delivery and delivery > transaction:
        diagnostics.error(
            "DFC418",
            conf.at(transaction_name if given else name),
            f"a transaction ends after {transaction} ms, before `{name}` of {delivery} ms is over",
            f'set `transaction.timeout.ms: "{delivery}"` or more',
        )
