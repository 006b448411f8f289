"""Stage 3: rules between fields, each by its name, and what the plan works out for the job."""

from __future__ import annotations

import ast

import pytest
from dfc.compiler.plan import FileSink, JavaScript, KafkaSink, Template, Text, spelled
from dfc.compiler.resolve.columns import COLUMNS, never_filled
from dfc.compiler.resolve.patterns import captures
from dfc.compiler.serialise import plan_json

from .specs import (
    CONSOLE,
    FILE,
    KAFKA,
    MYSQL,
    NATS,
    POSTGRES,
    REDIS,
    SCRIPT,
    TURSO,
    Json,
    compiled,
    having,
    spec,
    to_yaml,
)

OUTBOX_SOURCE = having(MYSQL, outbox={"tables": ["shop.outbox"]})
FILTER = {"type": "filter", "ops": ["create"]}


def other(sink: Json, ident: str) -> Json:
    return having(sink, id=ident)


def conf(**values: str) -> Json:
    """A Kafka sink with client settings; `__` stands for a dot."""
    settings = {key.replace("__", "."): value for key, value in values.items()}
    return having(KAFKA, client_conf=settings)


def predicate(**parts: Json) -> Json:
    return spec(processors=[{"type": "filter", "fields": [{"path": "total", **parts}]}])


def refused(given: Json, code: str, words: str) -> None:
    found = compiled(given).only
    assert found.code == code
    assert words in found.message


def accepted(given: Json) -> None:
    result = compiled(given)
    assert not result.found, result.diagnostics.text()


# --- commit policy ---------------------------------------------------------------------------


def test_quorum_larger_than_sink_count_is_rejected() -> None:
    policy = {"mode": "quorum", "quorum": 3}
    refused(spec(KAFKA, REDIS, commit_policy=policy), "DFC401", "cannot be reached with 2 sinks")
    accepted(spec(KAFKA, REDIS, NATS, commit_policy=policy))


def test_quorum_mode_without_a_number_is_rejected() -> None:
    refused(spec(commit_policy={"mode": "quorum"}), "DFC402", "has no `quorum`")


@pytest.mark.parametrize("mode", ["required", "all"])
def test_quorum_in_another_mode_is_rejected(mode: str) -> None:
    refused(spec(commit_policy={"mode": mode, "quorum": 1}), "DFC402", "has no meaning")


def test_required_mode_without_a_required_sink_is_rejected() -> None:
    sink = having(CONSOLE, required=False)
    refused(spec(sink), "DFC405", "no sink is `required`")
    refused(spec(sink, commit_policy={"mode": "required"}), "DFC405", "no sink is `required`")
    for policy in ({"mode": "all"}, {"mode": "quorum", "quorum": 1}):
        accepted(spec(sink, commit_policy=policy))


@pytest.mark.parametrize(
    ("policy", "counted"),
    [
        ({}, ("events",)),
        ({"mode": "required"}, ("events",)),
        ({"mode": "all"}, ("events", "cache")),
        ({"mode": "quorum", "quorum": 1}, ("events", "cache")),
    ],
)
def test_commit_policy_names_the_sinks_that_count(policy: Json, counted: tuple[str, ...]) -> None:
    plan = compiled(spec(KAFKA, having(REDIS, required=False), commit_policy=policy)).plan
    assert plan.commit.sinks == counted


# --- ids -------------------------------------------------------------------------------------


def test_duplicate_sink_ids_are_rejected() -> None:
    refused(spec(KAFKA, other(REDIS, "events")), "DFC403", "two sinks have the id `events`")


def test_duplicate_processor_ids_are_rejected() -> None:
    refused(spec(processors=[SCRIPT, SCRIPT]), "DFC404", "two processors have the id `derive`")


def test_default_processor_ids_are_numbered_around_given_ones() -> None:
    steps = [FILTER, FILTER, {**FILTER, "id": "filter-3"}, {"type": "flatten"}, FILTER]
    plan = compiled(spec(processors=steps)).plan
    assert [s.id for p in plan.passes for s in p.steps] == [
        *("filter", "filter-2", "filter-3", "flatten", "filter-4")
    ]


def test_a_given_id_is_never_taken_by_a_default_one() -> None:
    plan = compiled(spec(processors=[FILTER, {**FILTER, "id": "filter"}])).plan
    assert [s.id for s in plan.passes[0].steps] == ["filter-2", "filter"]


# --- outbox ----------------------------------------------------------------------------------


def test_outbox_table_that_is_not_captured_is_rejected() -> None:
    source = having(MYSQL, outbox={"tables": ["shop.missing"]})
    refused(spec(source=source), "DFC406", "`shop.missing` is not among the captured")


@pytest.mark.parametrize(
    ("captured", "pattern", "expected"),
    [
        ((), "shop.outbox", True),
        (("shop.outbox",), "shop.outbox", True),
        (("shop.%",), "shop.outbox", True),
        (("shop.*",), "shop.outbox", True),
        (("outbox",), "shop.outbox", True),
        (("shop.outbox",), "outbox", True),
        (("%.outbox",), "shop.outbox", True),
        (("shop.out_ox",), "shop.outbox", False),
        (("shop.out_o%",), "shop.outbox", True),
        (("shop.orders",), "shop.outbox", False),
        (("other.%",), "shop.outbox", False),
        (("shop.orders",), "shop.%box", False),
        (("shop.%",), "shop.%box", True),
        (("a.b.c",), "a+b", False),
    ],
)
def test_captured_tables_are_compared_by_pattern(
    captured: tuple[str, ...], pattern: str, expected: bool
) -> None:
    assert captures(captured, pattern) is expected


@pytest.mark.parametrize("source", [MYSQL, POSTGRES, TURSO], ids=lambda source: source["type"])
def test_outbox_processor_without_an_outbox_is_rejected(source: Json) -> None:
    refused(
        spec(source=source, processors=[{"type": "outbox"}]), "DFC407", "has nothing to work on"
    )


def test_outbox_processor_for_an_unmarked_table_is_rejected() -> None:
    steps = [{"type": "outbox", "tables": ["payments"]}]
    refused(spec(source=OUTBOX_SOURCE, processors=steps), "DFC407", "marks nothing that `payments`")


def test_outbox_processor_takes_marked_tables_and_prefixes() -> None:
    accepted(spec(source=OUTBOX_SOURCE, processors=[{"type": "outbox", "tables": ["outbox"]}]))
    source = having(POSTGRES, outbox={"prefixes": ["orders", "pay%"]})
    accepted(spec(source=source, processors=[{"type": "outbox", "tables": ["payments"]}]))


# --- sources, storage, journal ---------------------------------------------------------------


@pytest.mark.parametrize("mode", ["triggers", "polling"])
def test_native_level_in_another_mode_is_rejected(mode: str) -> None:
    source = having(TURSO, cdc_mode=mode, native_cdc={"level": "binlog"})
    refused(spec(source=source), "DFC408", f"has no meaning with `cdc_mode: {mode}`")
    accepted(spec(source=having(source, cdc_mode="native", url="libsql://h")))


FILES = ["shop.db", "./shop.db", "/x/shop.db", "file:shop.db", "FILE:${DB}", "./x/${DB}", "C:\\x"]
SERVERS = ["libsql://h", "http://h", "https://h:8080", "ws://h", "WSS://h", "libsql://${HOST}"]


@pytest.mark.parametrize("url", FILES)
def test_settings_of_a_server_are_rejected_for_a_local_file(url: str) -> None:
    words = "has no meaning for a local file"
    source = having(TURSO, url=url)
    refused(spec(source=having(source, auth_token="${TOKEN}")), "DFC408", words)
    for mode in ("auto", "native"):
        given = having(source, cdc_mode=mode, native_cdc={"level": "data"})
        refused(spec(source=given), "DFC408", words)
    accepted(spec(source=having(source, auth_token=None, native_cdc={})))


@pytest.mark.parametrize("url", [*SERVERS, "${DB}", "${DB:-./x.db}"])
def test_settings_of_a_server_are_taken_for_what_may_be_one(url: str) -> None:
    level = {"level": "binlog"}
    accepted(spec(source=having(TURSO, url=url, auth_token="${TOKEN}", native_cdc=level)))


@pytest.mark.parametrize(
    ("config", "needs"),
    [
        *(({"url": url}, ("dfc_turso", "turso_remote")) for url in SERVERS),
        *(({"url": url}, ("dfc_turso",)) for url in (*FILES, "${DB}")),
        ({"cdc_mode": "native"}, ("dfc_turso", "turso_native")),
        ({"cdc_mode": "native", "url": "ws://h"}, ("dfc_turso", "turso_native", "turso_remote")),
    ],
    ids=str,
)
def test_jobs_of_servers_and_of_the_native_mode_say_so(
    config: Json, needs: tuple[str, ...]
) -> None:
    job = compiled(spec(source=having(TURSO, **config))).job
    calls = [node for node in ast.walk(ast.parse(job)) if isinstance(node, ast.keyword)]
    assert [ast.literal_eval(k.value) for k in calls if k.arg == "needs"] == [needs]


def test_postgres_storage_without_dsn_is_rejected() -> None:
    refused(spec(storage={"backend": "postgres"}), "DFC420", "has no `dsn`")
    accepted(spec(storage={"backend": "postgres", "dsn": "${STORAGE_DSN}"}))


@pytest.mark.parametrize(
    "storage",
    [
        {"backend": "sqlite", "dsn": "${STORAGE_DSN}"},
        {"dsn": "${STORAGE_DSN}"},
        {"backend": "memory", "path": "./x.db"},
        {"backend": "postgres", "dsn": "${STORAGE_DSN}", "path": "./x.db"},
    ],
    ids=str,
)
def test_storage_settings_of_another_backend_are_rejected(storage: Json) -> None:
    refused(spec(storage=storage), "DFC420", "has no meaning with")


def test_a_setting_written_as_null_is_a_setting_left_out() -> None:
    accepted(spec(storage={"backend": "sqlite", "dsn": None}))
    refused(spec(storage={"backend": "postgres", "dsn": None}), "DFC420", "has no `dsn`")
    accepted(spec(having(NATS, username=None, password=None, token="${TOKEN}")))
    refused(
        spec(having(NATS, username="app", password=None)), "DFC413", "no use without `password`"
    )


def test_dead_letters_without_journal_are_rejected() -> None:
    steps = [{**SCRIPT, "on_error": "dlq"}]
    refused(spec(processors=steps), "DFC409", "dead letter queue, which is off")
    accepted(spec(processors=steps, journal={"enabled": True}))


def test_key_of_a_single_lane_is_rejected() -> None:
    refused(spec(sharding={"key": "id"}), "DFC424", "has no effect with one lane")
    refused(spec(sharding={"key": "id", "count": 1}), "DFC424", "has no effect with one lane")
    accepted(spec(sharding={"key": "id", "count": 2}))
    accepted(spec(sharding={"key": None, "count": 1}))


@pytest.mark.parametrize(
    ("part", "settings", "warned"),
    [
        ("journal", {"max_event_bytes": 2048, "dlq": {"max_entries": 5}}, 2),
        ("journal", {"enabled": False, "dlq": {"max_entries": 5}}, 1),
        ("journal", {"enabled": True, "dlq": {"max_entries": 5}}, 0),
        ("journal", {"enabled": False, "dlq": {}}, 0),
        ("journal", {}, 0),
        ("schema_sensing", {"tables": {"include": ["a"]}, "deep_inspect": {"max_depth": 3}}, 2),
        ("schema_sensing", {"enabled": True, "tables": {"include": ["a"]}}, 0),
    ],
    ids=str,
)
def test_settings_of_what_is_off_are_warned_about(part: str, settings: Json, warned: int) -> None:
    result = compiled(spec(**{part: settings}))
    assert result.plan
    assert [(d.code, d.severity) for d in result.found] == [("DFC421", "warning")] * warned


@pytest.mark.parametrize(
    "policy",
    [{}, {"default_mode": "dedicated"}, {"limits": {}}, {"preferred_replica": None}],
    ids=str,
)
def test_connection_policy_of_defaults_asks_nothing_of_the_runtime(policy: Json) -> None:
    result = compiled(spec(connection_policy=policy))
    assert result.plan.connection_policy is None
    assert 'needs=("dfc_turso",)' in result.job


def test_connection_policy_that_asks_for_something_is_planned() -> None:
    for policy in ({"preferred_replica": "db2"}, {"limits": {"max_dedicated_per_source": 2}}):
        result = compiled(spec(connection_policy=policy))
        assert result.plan.connection_policy is not None
        assert '"connection_policy"' in result.job


# --- processors ------------------------------------------------------------------------------


def test_filter_that_keeps_everything_is_rejected() -> None:
    refused(spec(processors=[{"type": "filter"}]), "DFC410", "lets everything through")


@pytest.mark.parametrize("op", ["exists", "not_exists", "changed"])
def test_predicate_with_a_value_too_many_is_rejected(op: str) -> None:
    refused(predicate(op=op, value=1), "DFC411", "takes no `value`")
    accepted(predicate(op=op))


@pytest.mark.parametrize("op", ["eq", "ne", "gt", "gte", "lt", "lte", "in", "contains", "regex"])
def test_predicate_without_its_value_is_rejected(op: str) -> None:
    refused(predicate(op=op), "DFC411", "needs a `value`")


@pytest.mark.parametrize("op", ["in", "not_in"])
def test_predicate_without_its_list_is_rejected(op: str) -> None:
    refused(predicate(op=op, value="paid"), "DFC411", "needs a list")
    accepted(predicate(op=op, value=["paid", 1, None]))


@pytest.mark.parametrize("value", [True, [1], {"a": 1}, None], ids=str)
def test_order_of_what_has_none_is_rejected(value: Json) -> None:
    refused(predicate(op="gt", value=value), "DFC411", "compares with a number or a text")


@pytest.mark.parametrize(("op", "instead"), [("eq", "not_exists"), ("ne", "exists")])
def test_equality_with_null_is_rejected_and_the_right_question_named(op: str, instead: str) -> None:
    given = predicate(op=op, value=None)
    refused(given, "DFC411", "a null counts as missing")
    assert f"`op: {instead}`" in compiled(given).only.help


@pytest.mark.parametrize("op", ["in", "not_in"])
def test_empty_list_of_values_is_rejected(op: str) -> None:
    refused(predicate(op=op, value=[]), "DFC411", "an empty list")


@pytest.mark.parametrize("value", [".inf", "-.inf", "1e999", "1" + "0" * 309, "-9e308"])
def test_numbers_that_no_row_can_hold_are_rejected(value: str) -> None:
    text = to_yaml(spec(processors=[{"type": "filter", "fields": [{"path": "a", "op": "OP"}]}]))
    for op in ("eq", "ne", "gt", "gte", "lt", "lte", "contains"):
        refused(text.replace('"OP"', f'"{op}", "value": {value}'), "DFC411", "no row can hold")
    for op in ("in", "not_in"):
        refused(text.replace('"OP"', f'"{op}", "value": [1, {value}]'), "DFC411", "no row can hold")


def test_numbers_as_large_as_a_float_may_be_compared() -> None:
    accepted(predicate(op="lt", value=1.7e308))
    accepted(predicate(op="in", value=[10**308, -(10**308), True]))


@pytest.mark.parametrize("value", ["(", "[a", "*", 5, None], ids=str)
def test_pattern_that_is_none_is_rejected(value: Json) -> None:
    assert compiled(predicate(op="regex", value=value)).only.code == "DFC412"


@pytest.mark.parametrize(
    "value",
    ["a{99999999999999999999}", "(" * 490 + ")" * 490, "(" * 3000 + ")" * 3000, "a" * 1001],
    ids=["count", "nested", "nested-and-long", "long"],
)
def test_pattern_that_is_too_much_for_the_engine_is_rejected(value: str) -> None:
    assert compiled(predicate(op="regex", value=value)).only.code == "DFC412"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", ["[[a]", "[a&&b]", "x" * 1000])
def test_pattern_that_python_frowns_upon_passes_without_a_word(value: str) -> None:
    accepted(predicate(op="regex", value=value))


# --- sinks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("login", "words"),
    [
        ({"username": "app"}, "`username` is of no use without `password`"),
        ({"password": "${PW}"}, "`password` is of no use without `username`"),
        ({"credentials_file": "x", "token": "${T}"}, "two ways to log in"),
        ({"username": "a", "password": "${PW}", "token": "${T}"}, "two ways to log in"),
        ({"username": "a", "password": "${PW}", "credentials_file": "x"}, "two ways to log in"),
    ],
    ids=str,
)
def test_nats_logins_that_are_none_or_two_are_rejected(login: Json, words: str) -> None:
    refused(spec(having(NATS, **login)), "DFC413", words)


@pytest.mark.parametrize(
    "login",
    [{}, {"username": "a", "password": "${PW}"}, {"credentials_file": "x"}, {"token": "${T}"}],
    ids=str,
)
def test_nats_takes_one_login(login: Json) -> None:
    accepted(spec(having(NATS, **login)))


def test_sink_filter_that_lets_nothing_through_is_rejected() -> None:
    both = {"exclude_synthetic": True, "synthetic_only": True}
    refused(spec(having(CONSOLE, filter=both)), "DFC414", "let nothing through")


def test_sink_filter_for_an_unknown_producer_is_rejected() -> None:
    sink = having(CONSOLE, filter={"producers": ["derives"]})
    refused(spec(sink, processors=[SCRIPT]), "DFC415", "no processor has the id `derives`")
    accepted(spec(having(CONSOLE, filter={"producers": ["derive"]}), processors=[SCRIPT]))


def test_sink_filter_for_a_producer_that_makes_no_events_is_rejected() -> None:
    sink = having(CONSOLE, filter={"producers": ["filter"]})
    refused(spec(sink, processors=[FILTER, SCRIPT]), "DFC415", "`filter` makes no events")
    assert compiled(spec(sink, processors=[FILTER, SCRIPT])).only.help == "scripts: derive"


def test_synthetic_only_without_a_script_is_rejected() -> None:
    sink = having(CONSOLE, filter={"synthetic_only": True})
    refused(spec(sink, processors=[FILTER]), "DFC415", "lets nothing through")
    accepted(spec(sink, processors=[SCRIPT]))
    accepted(spec(having(CONSOLE, filter={"synthetic_only": False, "exclude_synthetic": True})))


@pytest.mark.parametrize("key", ["bootstrap.servers", "metadata.broker.list"])
def test_client_settings_that_the_sink_makes_are_rejected(key: str) -> None:
    sink = having(KAFKA, client_conf={key: "k:9092"})
    refused(spec(sink), "DFC416", "which `brokers` sets already")


@pytest.mark.parametrize("exactly_once", [True, False])
def test_transactional_id_of_ones_own_is_rejected(exactly_once: bool) -> None:
    sink = having(conf(transactional__id="x"), exactly_once=exactly_once)
    refused(spec(sink), "DFC417", "names the transactions itself")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"enable__idempotence": "false"}, "idempotent producer"),
        ({"acks": "1"}, "needs `acks: all`"),
        ({"acks": "0"}, "needs `acks: all`"),
        ({"request__required__acks": "1"}, "needs `acks: all`"),
        ({"delivery__timeout__ms": "120000"}, "a transaction ends after 60000 ms"),
        ({"message__timeout__ms": "120000"}, "a transaction ends after 60000 ms"),
        (
            {"delivery__timeout__ms": "9000", "transaction__timeout__ms": "8000"},
            "a transaction ends after 8000 ms",
        ),
    ],
    ids=str,
)
def test_exactly_once_with_a_setting_that_breaks_it_is_rejected(settings: Json, words: str) -> None:
    refused(spec(having(conf(**settings), exactly_once=True)), "DFC418", words)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"acks": "1"}, "cannot go with an idempotent producer"),
        ({"max__in__flight": "6"}, "at most 5 requests in flight"),
        ({"max__in__flight__requests__per__connection": "6"}, "at most 5 requests in flight"),
    ],
    ids=str,
)
def test_idempotence_with_a_setting_that_breaks_it_is_rejected(settings: Json, words: str) -> None:
    refused(spec(conf(**settings)), "DFC419", words)
    accepted(spec(conf(**settings, enable__idempotence="false")))


@pytest.mark.parametrize(
    "settings",
    [
        {"acks": "all"},
        {"acks": "-1"},
        {"acks": "${ACKS}"},
        {"acks": "${ACKS:-1}"},
        {"max__in__flight": "5"},
        {"max__in__flight": "${N}"},
        {"enable__idempotence": "true"},
        {"delivery__timeout__ms": "60000"},
        {"delivery__timeout__ms": "90000", "transaction__timeout__ms": "90000"},
        {"delivery__timeout__ms": "²"},
    ],
    ids=str,
)
def test_exactly_once_with_settings_that_agree(settings: Json) -> None:
    accepted(spec(having(conf(**settings), exactly_once=True)))


# --- file sinks ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["./out", "out", "./out/", "./a/../out", "out//"])
def test_two_file_sinks_in_one_folder_are_rejected(path: str) -> None:
    second = having(FILE, id="second", path=path)
    refused(spec(FILE, second), "DFC422", "`archive` and `second` write to the same folder `out`")
    accepted(spec(FILE, having(FILE, id="second", path=path + "2")))


def test_a_folder_of_the_environment_is_compared_by_its_name() -> None:
    sinks = [having(FILE, id=ident, path="${OUT}/x") for ident in ("a", "b")]
    refused(spec(*sinks), "DFC422", "write to the same folder")
    accepted(spec(sinks[0], having(FILE, path="${OTHER}/x")))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (".dfc", "keeps its journal"),
        (".dfc/x", "keeps its journal"),
        (".dfc/${source.table}", "keeps its journal"),
        ("a//b", "a step is empty"),
        ("a/", "a step is empty"),
        ("${source.table}//b", "a step is empty"),
        ("a/${source.table}/", "a step is empty"),
        ("x" * 201, "longer than 200 bytes"),
        ("a/" + "ü" * 101, "longer than 200 bytes"),
        ("x" * 201 + "${source.table}", "longer than 200 bytes"),
    ],
)
def test_file_name_that_the_sink_would_refuse_is_rejected(name: str, why: str) -> None:
    refused(spec(having(FILE, name=name)), "DFC423", why)


@pytest.mark.parametrize(
    "name",
    [
        *("a/.dfc", ".dfcx", "a.b/c", "x" * 200, "${source.table}/x", "a/${source.table}"),
        *(".dfc${source.table}", "${STAGE}/a", ".${op}"),
    ],
)
def test_file_name_that_the_sink_takes_passes(name: str) -> None:
    accepted(spec(having(FILE, name=name)))


# --- templates -------------------------------------------------------------------------------


def topic(template: str, source: Json = MYSQL) -> Text | Template:
    (sink,) = compiled(spec(having(KAFKA, topic=template), source=source)).plan.sinks
    assert isinstance(sink, KafkaSink)
    return sink.topic


@pytest.mark.parametrize(
    ("template", "source", "folded"),
    [
        ("plain", MYSQL, "plain"),
        ("${tenant_id}.x", MYSQL, "acme.x"),
        ("${source.name}", MYSQL, "orders"),
        ("a.${source.connector}", MYSQL, "a.mysql"),
        ("a.${source.connector}", POSTGRES, "a.postgresql"),
        ("${source.connector}", TURSO, "turso"),
        ("${source.db}-${tenant_id}", TURSO, "main-acme"),
        ("${tenant_id}${ENV_NAME}.${source.name}", MYSQL, "acme${ENV_NAME}.orders"),
    ],
)
def test_what_is_the_same_for_all_events_is_folded(
    template: str, source: Json, folded: str
) -> None:
    route = topic(template, source)
    assert isinstance(route, Text)
    assert spelled(route) == folded


@pytest.mark.parametrize(
    ("template", "parts"),
    [
        ("${source.db}.x", 2),
        ("${tenant_id}.${source.table}.${source.name}", 3),
        ("a${tenant_id}b${op}c${tenant_id}${source.connector}", 3),
    ],
)
def test_neighbouring_literals_become_one(template: str, parts: int) -> None:
    route = topic(template)
    assert isinstance(route, Template)
    assert len(route.parts) == parts


_ONLY_MYSQL = ["server_id", "gtid", "file", "pos", "row"]
_ONLY_POSTGRES = ["schema", "lsn", "txId", "xmin"]
NEVER = [
    *((MYSQL, f"source.{name}") for name in [*_ONLY_POSTGRES, "sequence"]),
    *((POSTGRES, f"source.{name}") for name in [*_ONLY_MYSQL, "sequence"]),
    *((TURSO, f"source.{name}") for name in [*_ONLY_MYSQL, *_ONLY_POSTGRES, "snapshot"]),
    *((TURSO, name) for name in ("transaction", "transaction.id", "transaction.total_order")),
    *((TURSO, name) for name in ("ddl", "ddl.sql", "schema_sequence")),
    *((source, name) for source in (MYSQL, POSTGRES, TURSO) for name in ("trace_id", "tags")),
    *((source, "synthetic") for source in (MYSQL, POSTGRES, TURSO)),
]


@pytest.mark.parametrize(("source", "name"), NEVER, ids=lambda x: x if isinstance(x, str) else "")
def test_template_on_a_field_that_the_source_never_fills_is_rejected(
    source: Json, name: str
) -> None:
    for key in ("topic", "key"):
        given = spec(having(KAFKA, **{key: f"a.${{{name}}}"}), source=source)
        refused(given, "DFC311", f"`${{{name}}}` is always empty")


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (MYSQL, [f"source.{name}" for name in (*_ONLY_MYSQL, "snapshot", "db")]),
        (POSTGRES, [f"source.{name}" for name in (*_ONLY_POSTGRES, "snapshot", "db")]),
        (TURSO, ["source.sequence", "source.table", "source", "schema_version", "event_id"]),
        *((s, ["transaction.id", "ddl.sql", "schema_sequence"]) for s in (MYSQL, POSTGRES)),
    ],
    ids=str,
)
def test_template_on_a_field_that_the_source_fills_is_taken(source: Json, names: list[str]) -> None:
    for name in names:
        accepted(spec(having(KAFKA, key=f"${{{name}}}"), source=source))


def test_tags_and_synthetic_come_from_scripts() -> None:
    sink = having(KAFKA, topic="a.${synthetic}", key="${tags}")
    accepted(spec(sink, processors=[SCRIPT]))
    steps = [{"type": "outbox"}]
    given = spec(having(KAFKA, key="${synthetic}"), source=OUTBOX_SOURCE, processors=steps)
    refused(given, "DFC311", "only a javascript processor sets it")


def test_file_without_a_name_goes_by_its_id() -> None:
    (sink,) = compiled(spec(FILE)).plan.sinks
    assert isinstance(sink, FileSink)
    assert spelled(sink.name) == "archive"


# --- what is carried -------------------------------------------------------------------------

ALWAYS = ["position", "tx_end", "op", "ts_ms"]


def columns(*sinks: Json, source: Json = OUTBOX_SOURCE, **parts: Json) -> list[str]:
    return list(compiled(spec(*sinks, source=source, **parts)).plan.columns)


CLOUD = {"type": "cloudevents", "type_prefix": "com.acme"}
CLOUD_ONLY = [*ALWAYS, "db", "schema", "table", "before", "after", "event_id"]
ALL = [
    *("position", "tx_end", "op", "ts_ms", "db", "schema", "table", "primary_key", "before"),
    *("after", "source", "transaction", "tx_id", "event_id", "schema_version"),
    *("schema_sequence", "ddl"),
]


def test_cloudevents_carry_neither_source_nor_transaction() -> None:
    assert columns(having(CONSOLE, envelope=CLOUD)) == CLOUD_ONLY


def test_templates_carry_what_they_read_and_no_more() -> None:
    def sink(key: str) -> Json:
        return having(CONSOLE, envelope=CLOUD, key=key)

    assert columns(sink("${after.id}")) == CLOUD_ONLY
    assert set(columns(sink("${transaction.id}"))) - set(CLOUD_ONLY) == {"tx_id"}
    assert set(columns(sink("${source.gtid}"))) - set(CLOUD_ONLY) == {"source"}
    assert set(columns(sink("${ddl.sql}"))) - set(CLOUD_ONLY) == {"ddl"}
    assert set(columns(sink("${tenant_id}${source.name}"))) == set(CLOUD_ONLY)


def test_kafka_without_key_carries_the_primary_key() -> None:
    assert "primary_key" in columns(having(KAFKA, envelope=CLOUD))
    assert "primary_key" not in columns(having(KAFKA, envelope=CLOUD, key="${after.id}"))


@pytest.mark.parametrize("sink", [REDIS, NATS], ids=lambda sink: sink["type"])
def test_idempotency_keys_carry_the_transaction(sink: Json) -> None:
    assert "tx_id" in columns(having(sink, envelope=CLOUD))


def test_scripts_carry_everything() -> None:
    assert columns(having(CONSOLE, envelope=CLOUD), processors=[SCRIPT]) == ALL


def test_what_a_source_never_fills_is_not_carried() -> None:
    carried = columns(CONSOLE, source=TURSO, processors=[SCRIPT])
    assert set(ALL) - set(carried) == {"schema", "transaction", "tx_id", "schema_sequence", "ddl"}


def test_mysql_carries_a_schema_only_to_mark_outbox_rows() -> None:
    assert "schema" in columns(CONSOLE, source=OUTBOX_SOURCE, processors=[SCRIPT])
    assert "schema" in columns(CONSOLE, source=OUTBOX_SOURCE, processors=[{"type": "outbox"}])
    assert "schema" not in columns(CONSOLE, source=OUTBOX_SOURCE)
    carried = columns(CONSOLE, source=MYSQL, processors=[SCRIPT])
    assert set(ALL) - set(carried) == {"schema"}


def test_columns_are_those_of_the_runtime() -> None:
    from dfc_runtime.events import EVENT_COLUMNS, SPARSE_COLUMNS

    assert list(EVENT_COLUMNS) == COLUMNS
    for source in (MYSQL, OUTBOX_SOURCE, POSTGRES, TURSO):
        # What is not carried must read as nulls, or a job would miss it.
        assert never_filled(compiled(spec(source=source)).plan.source) <= SPARSE_COLUMNS


def test_filters_and_lanes_carry_what_they_look_at() -> None:
    def reads(**parts: Json) -> tuple[str, ...]:
        plan = compiled(spec(source=MYSQL, processors=[{"type": "filter", **parts}])).plan
        return plan.passes[0].steps[0].reads

    assert reads(ops=["create"]) == ("op",)
    assert reads(tables={"exclude": ["x"]}) == ("source.db", "source.schema", "source.table")
    assert reads(fields=[{"path": "a.b", "op": "exists"}]) == ("after.a.b",)
    assert reads(fields=[{"path": "a", "op": "changed"}]) == ("after.a", "before.a")


def test_columns_keep_one_order_whatever_reads_them() -> None:
    for carried in (columns(KAFKA, REDIS), columns(REDIS, KAFKA), columns(CONSOLE)):
        assert carried == [c for c in ALL if c in carried]


# --- passes, lineage, environment ------------------------------------------------------------


def test_adjacent_scripts_share_one_pass() -> None:
    steps = [
        SCRIPT,
        {**SCRIPT, "id": "two"},
        FILTER,
        {"type": "flatten"},
        {**SCRIPT, "id": "three"},
    ]
    passes = compiled(spec(processors=steps)).plan.passes
    assert [(p.engine, [s.id for s in p.steps]) for p in passes] == [
        ("javascript", ["derive", "two"]),
        ("arrow", ["filter", "flatten"]),
        ("javascript", ["three"]),
    ]
    assert all(isinstance(s, JavaScript) for s in passes[0].steps)


def test_steps_say_whether_they_need_a_kernel_over_json_text() -> None:
    """One pass may hold both: they work on the same columns."""
    by_field = {"type": "filter", "fields": [{"path": "total", "op": "gt", "value": 1}]}
    plan = compiled(spec(processors=[FILTER, by_field, {"type": "flatten"}])).plan
    (only,) = plan.passes
    assert [getattr(step, "runs", None) for step in only.steps] == [
        ("arrow",),
        ("kernel", "arrow"),
        ("kernel",),
    ]


def test_flatten_reads_the_event_id_when_an_error_names_the_event() -> None:
    def reads(on_collision: str) -> tuple[str, ...]:
        step = {"type": "flatten", "on_collision": on_collision}
        return compiled(spec(processors=[step])).plan.passes[0].steps[0].reads

    assert reads("last") == ("before", "after")
    assert reads("error") == ("before", "after", "event_id")


def test_scripts_and_outboxes_may_route_and_filters_may_not() -> None:
    def routed(*steps: Json) -> tuple[bool, bool]:
        plan = compiled(spec(KAFKA, source=OUTBOX_SOURCE, processors=list(steps))).plan
        return plan.sinks[0].delivery.routed, plan.sinks[0].delivery.raw

    assert routed() == (False, False)
    assert routed(FILTER) == (False, False)
    assert routed(SCRIPT) == (True, True)
    assert routed({"type": "outbox"}) == (True, False)
    assert routed({"type": "outbox", "raw_payload": True}) == (True, True)


def test_lineage_leads_from_tables_through_processors_to_destinations() -> None:
    plan = compiled(
        spec(
            having(KAFKA, topic="cdc.${source.table}"),
            CONSOLE,
            having(FILE, path="${OUT}", name="a"),
            source=MYSQL,
            processors=[SCRIPT, FILTER],
        )
    ).plan
    assert plan.lineage.destinations == (
        ("events", "kafka topic cdc.${source.table}"),
        ("screen", "console"),
        ("archive", "files ${OUT}/a"),
    )
    assert plan.lineage.tables == ("shop.orders", "shop.outbox")
    assert plan.lineage.processors == ("derive", "filter")


def test_lineage_of_a_source_without_tables_is_every_table() -> None:
    assert compiled(spec(source=POSTGRES)).plan.lineage.tables == ("*",)


def test_a_plan_grows_with_tables_and_sinks_and_not_with_their_product() -> None:
    sinks = [having(CONSOLE, id=f"s{n}") for n in range(40)]
    source = having(MYSQL, tables=[f"shop.table_{n:04}" for n in range(500)])
    text = plan_json(compiled(spec(*sinks, source=source)).plan)
    assert text.count("shop.table_0007") == 2  # what to capture, and where it goes


def test_environment_is_collected_in_order_of_use_each_once() -> None:
    plan = compiled(
        spec(
            having(KAFKA, brokers="${KAFKA}", topic="${STAGE}.x", client_conf={"a": "${CONF}"}),
            having(NATS, url="${NATS}", username="${USER_NAME}", password="${PW}"),
            having(FILE, path="${KAFKA}/${OUT:-x}"),
            source=having(MYSQL, dsn="${DSN}"),
            storage={"path": "${STATE}/x.db"},
        )
    ).plan
    assert plan.env == ("DSN", "KAFKA", "STAGE", "CONF", "NATS", "USER_NAME", "PW", "STATE")


def test_a_variable_with_and_without_default_is_needed() -> None:
    plan = compiled(spec(having(KAFKA, brokers="${A:-x}", topic="${A}"))).plan
    assert plan.env == ("A",)


def test_all_rules_are_reported_together() -> None:
    given = spec(
        having(CONSOLE, required=False),
        having(CONSOLE, required=False, filter={"producers": ["nobody"]}),
        commit_policy={"quorum": 9},
        storage={"backend": "postgres"},
        processors=[{"type": "filter"}, {**SCRIPT, "on_error": "dlq"}],
    )
    assert sorted(compiled(given).codes) == [
        *("DFC402", "DFC403", "DFC405", "DFC409", "DFC410", "DFC415", "DFC420")
    ]


# --- rules between fields beside errors of shape ---------------------------------------------

BEYOND = {"mode": "quorum", "quorum": 5}


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (spec(having(CONSOLE, frobnicate=1), commit_policy=BEYOND), "DFC201"),
        (spec(having(CONSOLE, prety=True), commit_policy=BEYOND), "DFC201"),
        (spec(having(REDIS, uri="redis://:x@h"), commit_policy=BEYOND), "DFC120"),
        (spec(having(KAFKA, topic="${source.tabel}"), commit_policy=BEYOND), "DFC310"),
        (spec(having(KAFKA, topic="a b"), commit_policy=BEYOND), "DFC212"),
        (spec(batch={"max_ms": -1}, commit_policy=BEYOND), "DFC210"),
        (spec(having(CONSOLE, encoding="avro"), commit_policy=BEYOND), "DFC204"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_rules_are_held_against_a_spec_with_other_errors(given: Json, code: str) -> None:
    result = compiled(given)
    assert sorted(result.codes) == sorted([code, "DFC401"])
    assert result.maybe_plan is None


@pytest.mark.parametrize(
    ("given", "code"),
    [
        # A key that was misspelt counts as the one that was meant.
        (spec(commit_policy={"mode": "quorum", "quorom": 1}), "DFC201"),
        (spec(processors=[{"type": "filter", "opps": ["create"]}]), "DFC201"),
        (spec(storage={"backend": "postgres", "dns": "${D}"}), "DFC201"),
        (spec(having(NATS, usernam="a", password="${P}")), "DFC201"),
        (spec(processors=[{**SCRIPT, "on_error": "dlq"}], journal={"enable": True}), "DFC201"),
        # Behind a key that nobody knows may be what seems to be missing.
        (spec(processors=[{"type": "filter", "config": {"ops": ["create"]}}]), "DFC201"),
        (spec(commit_policy={"mode": "quorum", "sinks_needed": 1}), "DFC201"),
        # What is refused as text is not looked into.
        (spec(having(FILE, name="../x")), "DFC212"),
        (spec(having(FILE, name="a/${Bad}/b")), "DFC306"),
        (spec(having(FILE, id="a b")), "DFC212"),
        (spec(source=having(OUTBOX_SOURCE, tables=["shop..outbox"])), "DFC212"),
        (
            {
                **spec(having(KAFKA, topic="${source.name}")),
                "metadata": {"name": "a b", "tenant": "x"},
            },
            "DFC212",
        ),
        # Nothing can be said where values are missing or of the wrong kind.
        (spec(having(CONSOLE, required="no"), commit_policy=BEYOND), "DFC206"),
        (spec(having(KAFKA, brokers=None), commit_policy=BEYOND), "DFC206"),
        ({**spec(commit_policy=BEYOND), "metadata": {"name": "a"}}, "DFC203"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_no_rule_speaks_of_what_another_error_explains(given: Json, code: str) -> None:
    assert compiled(given).codes == [code]
