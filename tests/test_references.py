"""`${...}` by shape and place, and the secrets rule: no password in a file goes on, or is shown."""

from __future__ import annotations

import pytest
from dfc.compiler.diagnostics import Diagnostics
from dfc.compiler.env import Written, is_secret_setting, read_text
from dfc.compiler.parse import Scalar
from dfc.compiler.plan import EnvRef, Field, Literal, Text, spelled
from dfc.compiler.span import Span

from .specs import (
    CONSOLE,
    FILE,
    KAFKA,
    MYSQL,
    NATS,
    POSTGRES,
    REDIS,
    TURSO,
    Json,
    compiled,
    having,
    spec,
)

SECRET = "hunter2"


def read(text: str, kind: str | None) -> tuple[Written, Diagnostics]:
    diagnostics = Diagnostics()
    scalar = Scalar(text, Span("p.yaml", 1, 1), text, exact=True)
    return read_text(scalar, kind, "the field", diagnostics), diagnostics


# --- shape -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", [Literal("")]),
        ("plain", [Literal("plain")]),
        ("$", [Literal("$")]),
        ("a$", [Literal("a$")]),
        ("$$", [Literal("$")]),
        ("$$$", [Literal("$$")]),
        ("$x {y} $(z)", [Literal("$x {y} $(z)")]),
        ("$${NAME}", [Literal("${NAME}")]),
        ("$$${NAME}", [Literal("$"), EnvRef("NAME")]),
        ("${NAME}", [EnvRef("NAME")]),
        ("${_A1}", [EnvRef("_A1")]),
        ("${A}${B}", [EnvRef("A"), EnvRef("B")]),
        ("${A:-}", [EnvRef("A", "")]),
        ("${A:-b c:d/$$e}", [EnvRef("A", "b c:d/$$e")]),
        ("x-${A:-${B}-y", [Literal("x-"), EnvRef("A", "${B"), Literal("-y")]),
        ("${op}", [Field(("op",))]),
        ("${after.a_B.c1}", [Field(("after", "a_B", "c1"))]),
        ("a.${source.table}.b", [Literal("a."), Field(("source", "table")), Literal(".b")]),
    ],
)
def test_a_text_is_cut_into_literals_references_and_fields(
    text: str, parts: list[Literal | EnvRef | Field]
) -> None:
    written, diagnostics = read(text, "route")
    assert not diagnostics.found, diagnostics.text()
    assert list(written.parts) == parts
    assert len(written.places) == len(parts)


def test_every_part_knows_its_column() -> None:
    written, _ = read("ab${A}$$c${op}d", "route")
    assert [p.col for p in written.places] == [1, 3, 7, 10, 15]


@pytest.mark.parametrize(
    ("text", "code", "col"),
    [
        ("a${", "DFC303", 2),
        ("a${B", "DFC303", 2),
        ("a${}", "DFC305", 2),
        ("ab${Mixed}", "DFC306", 3),
        ("${NAme:-x}", "DFC306", 1),
        ("${ A }", "DFC307", 1),
        ("${A-b}", "DFC307", 1),
        ("${A:=b}", "DFC307", 1),
        ("${a..b}", "DFC307", 1),
        ("${.a}", "DFC307", 1),
        ("${a.}", "DFC307", 1),
        ("${9}", "DFC307", 1),
        ("${ä}", "DFC307", 1),
        ("${op:-x}", "DFC306", 1),
        ("${after.a.b.c}", "DFC304", 1),
        ("$$${x.y}", "DFC310", 3),
    ],
)
def test_what_is_wrong_inside_braces_is_said_at_its_column(text: str, code: str, col: int) -> None:
    _, diagnostics = read(text, "route")
    assert [(d.code, d.span.col) for d in diagnostics] == [(code, col)]


# --- place -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [
        ("env", "x${NAME}y", None),
        ("env", "${NAME:-d}", None),
        ("env", "${op}", "DFC301"),
        ("env", "${source.table}", "DFC301"),
        ("url", "${NAME}", None),
        ("url", "${name}", "DFC301"),
        ("secret", "${NAME}", None),
        ("secret", "${NAME:-d}", "DFC121"),
        ("secret", "${NAME:-}", "DFC121"),
        ("secret", "x${NAME}", "DFC120"),
        ("secret", "${A}${B}", "DFC120"),
        ("secret", "${name}", "DFC120"),
        ("secret", "x", "DFC120"),
        ("secret", "", "DFC120"),
        ("route", "${NAME}.${op}", None),
        ("route", "${after.any.thing}", None),
        ("route", "${after}", None),
        ("route", "${transaction.id}", None),
        ("route", "${ddl.x}", None),
        ("route", "${source.tabel}", "DFC310"),
        ("route", "${op.x}", "DFC310"),
        ("route", "${customer}", "DFC310"),
        ("row_route", "${NAME}.${any_column}", None),
        ("row_route", "${payload.nested.id}", None),
        ("row_route", "${after.id}", "DFC312"),
        ("row_route", "${source.table}", "DFC312"),
        (None, "a$b$$c", None),
        (None, "${NAME}", "DFC302"),
        (None, "${op}", "DFC302"),
        (None, "x${", "DFC302"),
    ],
)
def test_what_may_stand_where(kind: str | None, text: str, code: str | None) -> None:
    _, diagnostics = read(text, kind)
    assert [d.code for d in diagnostics] == ([code] if code else [])


def test_a_script_is_never_touched() -> None:
    script = "(event) => `${event.op} $$ ${NAME}` && event // ${"
    processor = {"type": "javascript", "id": "s", "inline": script}
    (step,) = compiled(spec(processors=[processor])).plan.passes[0].steps
    assert getattr(step, "script") == script  # noqa: B009


def test_fixed_text_keeps_its_dollars() -> None:
    query = "DO $$ BEGIN PERFORM 1; END $$"
    source = having(POSTGRES, heartbeat={"query": query}, tables=["a$$b.c$"])
    plan = compiled(spec(source=source)).plan
    assert plan.source.heartbeat_query == query  # type: ignore[union-attr]
    assert plan.source.tables == ("a$$b.c$",)


def test_spelling_is_the_inverse_of_reading() -> None:
    for text in ("a$$b", "${A:-x$y}", "$${A}", "a.${op}.$$$$", "${A}${B:-}"):
        written, _ = read(text, "route")
        assert spelled(Text(written.parts)) == text  # type: ignore[arg-type]


def test_defaults_of_references_are_text_and_ask_for_no_variable() -> None:
    plan = compiled(spec(having(KAFKA, brokers="${A:-k:1}"), having(FILE, path="${B}/x"))).plan
    assert plan.env == ("B",)


# --- secrets ---------------------------------------------------------------------------------

MYSQL_URLS = [
    "mysql://root:hunter2@db:3306/shop",
    "mysql://:hunter2@db",
    "mysql://root:hunter2%40%2F@db",
    "mysql://root:hunter2/x@db:3306/shop",
    "mysql://root:hunter2?x@db:3306/shop",
    "mysql://root:hunter2#x@db:3306/shop",
    "mysql://root:12/hunter2@db:3306/shop",
    "mysql://root:hun,ter2hunter2@db",
    "mysql://root:hunter2@x@db",
    "mysql://root:${PW:-hunter2}@db",
    "mysql://root:hunter2${PW}@db",
    "mysql://root:${Pw hunter2}@db",
    "mysql://root:${PW-hunter2}@db",
    "mysql://root:${Db_Pw:-hunter2}@db",
    "mysql://root:hunter2@${HOST",
    "mysql://root:pa$$hunter2@db",
    "mysql://db/shop?user=root&password=hunter2",
    "mysql://db/shop?PASSWORD=hunter2",
    "mysql://db/shop?passwd=hunter2&x=y",
    "${DSN:-mysql://root:hunter2@db/shop}",
    "${SCHEME}://root:hunter2@db",
    "${Dsn:-mysql://root:hunter2@db}",
]
POSTGRES_DSNS = [
    "postgres://app:hunter2@a:5432,b:5432/shop",
    "postgresql://app@db/shop?sslpassword=hunter2",
    "host=db user=app password=hunter2",
    "password=hunter2 host=db",
    "host=db password = 'hunter2'",
    "host=db password='${PW:-hunter2}'",
    "host=db PASSWORD=hunter2",
    "host=a,b password=,hunter2",
    "host=db sslpassword=hunter2",
    "host=db\npassword=hunter2",
]
REDIS_URIS = [
    "redis://:hunter2@cache:6379/0",
    "rediss://default:hunter2@cache",
    "redis://cache?password=hunter2",
]
NATS_URLS = [
    "nats://app:hunter2@bus:4222",
    "nats://hunter2@bus:4222",
    "tls://hunter2@bus:4222",
    "nats://bus1:4222,nats://app:hunter2@bus2:4222",
    "nats://bus1:4222, nats://hunter2@bus2:4222",
    "nats://bus1:4222,app:hunter2@bus2:4222",
    "app:hunter2@bus:4222",
    "nats://bus?token=hunter2",
]
TURSO_URLS = [
    "libsql://shop.turso.io?authToken=hunter2",
    "libsql://shop.turso.io?auth_token=hunter2&tls=1",
    "https://app:hunter2@shop.turso.io",
    "libsql://hunter2@shop.turso.io",
    "libsql://shop.turso.io?apiKey=hunter2",
    "libsql://shop.turso.io?api_key=hunter2",
    "libsql://shop.turso.io?tls=1&auth=hunter2",
    "libsql://shop.turso.io?credential=hunter2",
]
LEAKS: list[Json] = [
    *(spec(source=having(MYSQL, dsn=url)) for url in MYSQL_URLS),
    *(spec(source=having(POSTGRES, dsn=dsn)) for dsn in POSTGRES_DSNS),
    *(spec(source=having(TURSO, url=url)) for url in TURSO_URLS),
    *(spec(having(REDIS, uri=uri)) for uri in REDIS_URIS),
    *(spec(having(NATS, url=url)) for url in NATS_URLS),
    spec(storage={"backend": "postgres", "dsn": "postgres://app:hunter2@db/state"}),
    spec(having(KAFKA, brokers="sasl://app:hunter2@k:9092")),
    spec(having(KAFKA, brokers="app:hunter2@k:9092")),
    spec(having(KAFKA, brokers="k1:9092,app:hunter2@k2:9092")),
    spec(having(KAFKA, brokers="${BROKERS:-app:hunter2@k:9092}")),
    spec(connection_policy={"preferred_replica": "mysql://app:hunter2@db"}),
    spec(connection_policy={"preferred_replica": "app:hunter2@db"}),
    *(
        spec(having(NATS, username="app", password=value))
        for value in (
            *("hunter2", "${PW:-hunter2}", "x${PW}hunter2", "${hunter2}", "${Hunter2 hunter2}"),
            *("${hunter2", "${a.b.hunter2.d}", "${PW-hunter2}", ["hunter2"], {"hunter2": 1}),
        )
    ),
    spec(having(NATS, token="hunter2")),
    spec(source=having(TURSO, auth_token="hunter2")),
    *(
        spec(having(KAFKA, client_conf={key: "hunter2"}))
        for key in (
            *("sasl.password", "ssl.key.password", "ssl.keystore.password", "SASL.PASSWORD"),
            *("sasl.oauthbearer.client.secret", "ssl.key.pem", "sasl.jaas.config"),
            *("schema.registry.basic.auth.user.info", "ssl.keystore.key", "my.passphrase"),
            *("api.key", "api_key", "apiKey", "aws.access.key", "private.key", "auth"),
            *("basic.auth", "credential", "my.credentials", "sasl.kerberos.kinit.cmd"),
        )
    ),
    *(
        spec(having(KAFKA, client_conf={"sasl.oauthbearer.config": value}))
        for value in (
            *("principal=a password=hunter2", "principal=a secret='hunter2'", "apiKey=hunter2"),
            *("principal=a password=${PW:-hunter2}", "auth=hunter2", "app:hunter2@idp:443"),
        )
    ),
    spec(having(KAFKA, client_conf={"some.servers": "a:1,app:hunter2@b:2"})),
    spec(having(KAFKA, client_conf={"http.proxy": "http://app:hunter2@proxy"})),
    spec(having(KAFKA, client_conf={"sasl.password": ["hunter2"]})),
    spec(having(KAFKA, client_conf="sasl.password=hunter2")),
    # A secret in the wrong place altogether.
    spec(source="mysql://root:hunter2@db"),
    spec(source={"type": "mysql", "config": "mysql://root:hunter2@db"}),
    spec(source=having(MYSQL, tables="mysql://root:hunter2@db")),
    {**spec(CONSOLE), "spec": "mysql://root:hunter2@db"},
]


@pytest.mark.parametrize("given", LEAKS, ids=range(len(LEAKS)))
def test_a_secret_in_the_file_is_refused_and_never_shown(given: Json) -> None:
    result = compiled(given)
    assert result.diagnostics.failed
    assert SECRET not in result.said.lower()


@pytest.mark.parametrize("number", ["1234567", "0x75bcd15", "12345.67"])
@pytest.mark.parametrize("field", ["password", "token"])
def test_a_secret_that_looks_like_a_number_is_not_shown_either(field: str, number: str) -> None:
    text = f"""
metadata: {{name: a, tenant: b}}
spec:
  source: {{type: turso, config: {{id: a, url: x, tables: [y]}}}}
  sinks:
    - {{type: nats, config: {{id: n, url: nats://h, subject: s, username: u, {field}: {number}}}}}
    - {{type: kafka, config: {{id: k, brokers: b, topic: t, client_conf: {{sasl.password: {number}}}}}}}
"""
    result = compiled(text)
    assert result.codes.count("DFC206") == 2
    assert number not in result.said


@pytest.mark.parametrize(
    "given",
    [
        *(
            spec(source=having(MYSQL, dsn=dsn))
            for dsn in (
                *("${DSN}", "${DSN:-mysql://app@db/shop}", "mysql://app@db:3306/shop"),
                *("mysql://app:${PW}@db", "mysql://${USER}:${PW}@${HOST}:3306/shop"),
                *("mysql://db:3306/shop?mail=a@b", "mysql://db/shop?password=${PW}"),
            )
        ),
        *(
            spec(source=having(POSTGRES, dsn=dsn))
            for dsn in (
                *("host=db user=app", "host=db password=${PW}", "host=db password='${PW}'"),
                *(
                    "host=db passfile=/x",
                    "host=db require_auth=md5",
                    "host=db password=''",
                    "postgres://app@a:1,b:2/shop",
                ),
            )
        ),
        *(
            spec(having(NATS, url=url))
            for url in ("nats://a:4222,nats://b:4222", "a:4222", "nats://${TOKEN}@a", "${U}")
        ),
        *(spec(source=having(TURSO, url=url)) for url in ("./a@b.db", "file:x.db", "C:\\a@b.db")),
        spec(having(REDIS, uri="redis://app@cache/0")),
        spec(having(FILE, path="./password=x/a:b@c")),
        spec(having(KAFKA, client_conf={"ssl.ca.pem": "-----BEGIN", "ssl.key.location": "/k"})),
        spec(having(KAFKA, client_conf={"sasl.oauthbearer.token.endpoint.url": "https://x/y"})),
        *(
            spec(having(KAFKA, client_conf={key: value}))
            for key, value in (
                ("ssl.cipher.suites", "ALL:!ADH@STRENGTH"),
                ("ssl.ca.pem", "-----BEGIN\nabcpwd=\n-----END"),
                ("sasl.oauthbearer.config", "principal=a password=${PW}"),
                ("sasl.oauthbearer.config", "principal=a scope=b"),
                ("sasl.kerberos.principal", "kafka/host@REALM"),
                ("sasl.kerberos.kinit.cmd", "${KINIT}"),
                ("bearer.auth.credentials.source", "URL"),
                ("sasl.oauthbearer.client.credentials.client.id", "app"),
                ("sasl.oauthbearer.assertion.private.key.file", "/k"),
            )
        ),
        *(spec(having(KAFKA, brokers=hosts)) for hosts in ("a:1,b:2", "SSL://a:1,SSL://b:2")),
        spec(having(NATS, username="app", password="${PW}")),
    ],
)
def test_what_holds_no_secret_passes(given: Json) -> None:
    result = compiled(given)
    assert not result.found, result.diagnostics.text()


def test_client_settings_that_hold_secrets_are_known_by_name() -> None:
    assert is_secret_setting("sasl.password")
    assert not is_secret_setting("sasl.oauthbearer.token.endpoint.url")
    assert not is_secret_setting("enable.sasl.oauthbearer.unsecure.jwt")


def test_demos_may_hold_secrets_when_asked() -> None:
    given = spec(
        having(NATS, username="app", password=SECRET),
        having(REDIS, uri="redis://:hunter2@cache"),
        having(KAFKA, client_conf={"sasl.password": SECRET}),
        source=having(TURSO, url="${DB}", auth_token="${TOKEN:-hunter2}"),
    )
    result = compiled(given, allow_literal_secrets=True)
    assert result.job.count(SECRET) == 4
