"""The servers that tests and people use: they start, do what the sinks and sources need, and stop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .services import SERVERS, Kafka, MariaDB, Nats, Postgres, Redis, ServiceError, jars, processes
from .services import install as installing
from .services.certificates import Certificates
from .services.fixtures import Services

ROOT = Path(__file__).resolve().parents[1]


def until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not (true := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return true


# --- each of them, through a client ---------------------------------------------------


def test_kafka_hides_what_an_aborted_transaction_wrote(kafka_server: Kafka) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    brokers = {"bootstrap.servers": kafka_server.env()["KAFKA_BROKERS"]}
    admin = AdminClient(brokers)
    admin.create_topics([NewTopic("aborted", 1, 1)])["aborted"].result(20)
    producer = Producer({**brokers, "transactional.id": "t", "compression.type": "zstd"})
    producer.init_transactions(20)
    for value, end in (
        (b"lost", producer.abort_transaction),
        (b"kept", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce("aborted", key=b"k", value=value, headers={"h": b"1"})
        producer.flush(20)
        end(20)
    group = {"group.id": "g", "enable.auto.commit": False}
    consumer = Consumer({**brokers, **group, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition("aborted", 0, OFFSET_BEGINNING)])
    message = consumer.poll(20)
    assert message is not None and message.error() is None
    assert (message.key(), message.value(), message.headers()) == (b"k", b"kept", [("h", b"1")])
    consumer.close()


def test_kafka_makes_no_topics_by_itself(kafka_server: Kafka) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka_server.address})
    assert admin.list_topics("never.made", timeout=10).topics["never.made"].error is not None


def test_kafka_serves_consumer_groups_of_both_protocols(kafka_server: Kafka) -> None:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    brokers = {"bootstrap.servers": kafka_server.address}
    admin = AdminClient(brokers)
    admin.create_topics([NewTopic("groups", 2, 1)])["groups"].result(20)
    producer = Producer(brokers)
    producer.produce("groups", b"v")
    assert producer.flush(20) == 0
    for protocol in ("classic", "consumer"):
        group = {"group.id": protocol, "group.protocol": protocol, "auto.offset.reset": "earliest"}
        consumer = Consumer({**brokers, **group})
        consumer.subscribe(["groups"])
        message = consumer.poll(20)
        assert message is not None and message.value() == b"v"
        consumer.close()


def test_kafka_has_listeners_with_tls_and_passwords(services: Services) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    server = services.start(Kafka, secure=True)

    def reached(**settings: str) -> bool:
        """Whether the broker answers; as soon as it has refused, it has not."""
        refused: list[Any] = []
        final = (KafkaError._AUTHENTICATION, KafkaError._SSL)
        on_error = {"error_cb": lambda error: error.code() in final and refused.append(error)}
        client = AdminClient({"log_level": 0, **on_error, **settings})
        deadline = time.monotonic() + 20
        while not refused and time.monotonic() < deadline:
            client.poll(0.05)
            with contextlib.suppress(KafkaException):
                return len(client.list_topics(timeout=0.3).brokers) == 1
        return False

    for protocol in ("PLAINTEXT", "SSL", "SASL_SSL"):
        assert reached(**server.client(protocol)), protocol
    sasl = server.client("SASL_SSL")
    assert not reached(**{**sasl, "sasl.password": "wrong"})
    # The authority of another server.
    other = Certificates.make(services.folder / "other")
    assert not reached(**{**sasl, "ssl.ca.location": str(other.ca)})
    server.stop()


def test_redis_keeps_a_stream(redis_server: Redis) -> None:
    import redis

    with redis.Redis.from_url(redis_server.env()["REDIS_URI"]) as client:
        entry = client.xadd("kept", {"op": "c"})
        assert client.xrange("kept") == [(entry, {b"op": b"c"})]


def test_nats_drops_a_message_whose_id_it_has_seen(nats_server: Nats) -> None:
    import nats

    async def publish_twice() -> tuple[Any, Any, int]:
        client = await nats.connect(nats_server.env()["NATS_URL"])
        stream = client.jetstream()
        await stream.add_stream(name="TWICE", subjects=["twice.>"])
        acks = [
            await stream.publish("twice.new", b"{}", headers={"Nats-Msg-Id": "1"}) for _ in range(2)
        ]
        held = (await stream.stream_info("TWICE")).state.messages
        await client.close()
        return acks[0].duplicate, acks[1].duplicate, held

    assert asyncio.run(publish_twice()) == (None, True, 1)


def test_postgres_hands_out_its_log(postgres_server: Postgres) -> None:
    def sql(statement: str) -> str:
        command = [postgres_server.program("psql"), "-qAtX", postgres_server.dsn, "-c", statement]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert sql("SELECT count(*) FROM pg_create_logical_replication_slot('s', 'pgoutput')") == "1"
    sql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    sql("INSERT INTO t VALUES (1)")
    options = "'proto_version', '1', 'publication_names', 'p'"
    peek = f"SELECT data FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL, {options})"
    assert [line[:4] for line in sql(peek).splitlines()][-3:] == [r"\x52", r"\x49", r"\x43"]
    sql("SELECT pg_drop_replication_slot('s'); DROP PUBLICATION p; DROP TABLE t")


def test_mariadb_writes_whole_rows_to_its_log(mariadb_server: MariaDB) -> None:
    wanted = {
        "binlog_format": "ROW",
        "binlog_row_image": "FULL",
        "binlog_row_metadata": "FULL",
        "log_bin": "1",
    }
    asked = ", ".join(f"@@{name}" for name in wanted)
    assert mariadb_server.query(f"SELECT {asked}") == [list(wanted.values())]
    mariadb_server.query("CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1)")
    ((log, size),) = mariadb_server.query("SHOW BINARY LOGS")
    assert log == "binlog.000001" and int(size) > 500
    assert mariadb_server.query("SELECT @@gtid_binlog_pos") != [[""]]
    mariadb_server.query("DROP TABLE t")


# --- their lives ----------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVERS)
def test_servers_are_on_loopback_alone(name: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(f"{name}_server")
    assert server.running and server.port != server.usual_port
    outside = {
        info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    }
    for address in outside - {"127.0.0.1"}:
        with socket.socket() as probe:
            probe.settimeout(1)
            assert address.startswith("127.") or probe.connect_ex((address, server.port)) != 0


@pytest.mark.parametrize("server", [Redis, Postgres], ids=["redis", "postgres"])
def test_a_frozen_server_answers_nothing_until_it_resumes(
    services: Services, server: type[Redis] | type[Postgres]
) -> None:
    each = services.start(server)
    with each.paused(), socket.create_connection(("127.0.0.1", each.port)) as connection:
        assert each.running
        connection.settimeout(0.3)
        # An inline command to Redis; to PostgreSQL the question whether it speaks TLS.
        connection.sendall(b"PING\r\n" if server is Redis else struct.pack(">II", 8, 80877103))
        with pytest.raises(TimeoutError):
            connection.recv(1)
        each.resume()
        connection.settimeout(10)
        assert connection.recv(1) in (b"+", b"N")
    each.pause()
    each.stop()  # also from there
    assert not each.running


@pytest.mark.parametrize("server", [Redis, Postgres, MariaDB], ids=["redis", "postgres", "mariadb"])
def test_stop_leaves_no_process_and_start_finds_port_and_data_again(
    services: Services, server: type[Redis] | type[Postgres] | type[MariaDB]
) -> None:
    each = services.start(server)
    family, port = processes.family(each.pid or 0), each.port
    inode = each.data.stat().st_ino
    each.stop()
    assert not each.running and not processes.answers(port)
    assert [member for member in family if processes.born(member)] == []
    each.start()
    assert each.port == port and each.data.stat().st_ino == inode
    each.kill()
    assert until(lambda: not processes.answers(port))
    each.start()
    assert each.port == port
    each.stop()


def test_start_takes_another_port_when_the_wanted_one_is_taken(services: Services) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        each = Redis(services.folder / "other-port", guard=services.guard)
        each.start(ports=[taken.getsockname()[1]])
        assert each.ready() and each.port != taken.getsockname()[1]
        each.wipe()
    assert not each.home.exists()


def test_a_server_that_cannot_start_says_what_it_said(services: Services) -> None:
    with pytest.raises(ServiceError, match=r"(?s)redis did not start:.*maxmemory"):
        services.start(Redis, config={"maxmemory": "plenty"})


def test_a_process_is_not_taken_for_one_that_had_its_id_before(services: Services) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    home = services.folder / "stale"
    home.mkdir()
    state = f'{{"ports": {{"port": 1}}, "pid": {bystander.pid}, "born": "earlier"}}'
    (home / "state.json").write_text(state, encoding="utf-8")
    stale = Redis(home)
    assert not stale.running
    stale.stop()
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_servers_of_tests_do_not_outlive_a_killed_session(tmp_path: Path) -> None:
    session = """
        import time
        from tests.services import Redis
        from tests.services.fixtures import Services

        services = Services()
        server = services.start(Redis)
        print(server.pid, services.folder, flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(session)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        pid, folder = process.stdout.readline().split()
        assert processes.born(int(pid)) is not None
        process.send_signal(signal.SIGKILL)
    assert until(lambda: processes.born(int(pid)) is None)
    assert until(lambda: not Path(folder).exists())


def test_data_goes_elsewhere_when_the_servers_user_cannot_reach_the_project(
    tmp_path: Path, services: Services
) -> None:
    tmp_path.chmod(0o700)
    each = Postgres(tmp_path / "postgres", durable=False, guard=services.guard)
    each.start()
    # Only root runs servers as somebody else.
    assert (each.home / "data").is_symlink() == (os.geteuid() == 0)
    elsewhere = each.data
    again = Postgres(tmp_path / "postgres")
    assert again.running and again.data == elsewhere
    again.wipe()
    assert not elsewhere.exists() and not each.home.exists()


# --- installing -----------------------------------------------------------------------


def test_without_root_or_debian_the_commands_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(Redis, "commands", ("redis-server", "no-such-command"))
    with pytest.raises(ServiceError) as problem:
        installing.install([Redis])
    assert "redis needs no-such-command" in str(problem.value)
    assert "apt-get install --no-install-recommends redis-server" in str(problem.value)


def test_jars_come_from_the_named_repository_and_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = jars.Jar("a.b", "good", "1", hashlib.sha256(b"jar").hexdigest())
    bad = jars.Jar("a.b", "bad", "1", hashlib.sha256(b"another").hexdigest())
    for jar in (good, bad):
        (tmp_path / "repo" / jar.path).parent.mkdir(parents=True)
        (tmp_path / "repo" / jar.path).write_bytes(b"jar")
    monkeypatch.setenv("MAVEN_REPO", (tmp_path / "repo").as_uri())
    monkeypatch.setattr(jars, "folder", lambda: tmp_path / "cache" / "kafka")
    monkeypatch.setattr(jars, "listed", lambda: [good])
    jars.fetch()
    assert jars.complete()
    monkeypatch.setattr(jars, "listed", lambda: [good, bad])
    with pytest.raises(ServiceError, match=r"bad-1\.jar has checksum"):
        jars.fetch()
    assert not jars.complete()


def test_mavens_mirror_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAVEN_REPO", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert jars.repository() == jars.CENTRAL
    (tmp_path / ".m2").mkdir()
    mirror = "<mirror><mirrorOf>*</mirrorOf><url>https://maven.example/all/</url></mirror>"
    settings = (
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>{}</mirrors></settings>'
    )
    (tmp_path / ".m2" / "settings.xml").write_text(settings.format(mirror), encoding="utf-8")
    assert jars.repository() == "https://maven.example/all"


# --- as ./dev.sh has it ---------------------------------------------------------------


def services_command(
    home: Path, *arguments: str, usual_port: int = 0
) -> subprocess.CompletedProcess[str]:
    """`./dev.sh ARGUMENTS`, with a folder and a port for Redis that are not the user's."""
    code = (
        "import pathlib, sys\n"
        "from tests.services import Redis, __main__, stack\n"
        f"stack.HOME = pathlib.Path({str(home)!r}); stack.ENV = stack.HOME / 'env'\n"
        f"Redis.usual_port = {usual_port}\n"
        "sys.exit(__main__.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_up_status_and_down(tmp_path: Path) -> None:
    import redis

    port = processes.free_port()
    try:
        up = services_command(tmp_path, "up", "redis", usual_port=port)
        assert up.returncode == 0, up.stdout + up.stderr
        assert re.search(rf"^redis +127\.0\.0\.1:{port} +ready after", up.stdout, re.MULTILINE)
        env = (tmp_path / "env").read_text(encoding="utf-8")
        assert env in up.stdout
        assert env == f"export REDIS_URI=redis://127.0.0.1:{port}\n"
        assert "was running" in services_command(tmp_path, "up", "redis").stdout

        status = services_command(tmp_path, "status").stdout.splitlines()
        assert len(status) == len(SERVERS)
        assert [line.split()[0] for line in status if "running" in line] == ["redis"]

        with redis.Redis(port=port) as client:
            client.xadd("orders", {"op": "c"}, id="1-1")
        assert services_command(tmp_path, "redis-read", "orders").stdout == "1-1\n  op: c\n"
    finally:
        down = services_command(tmp_path, "down")
    assert down.returncode == 0 and re.search("redis +stopped", down.stdout)
    assert not (tmp_path / "env").exists()
    assert "running" not in services_command(tmp_path, "status").stdout
    assert (tmp_path / "redis" / "data").exists()
    assert "data removed" in services_command(tmp_path, "down", "--wipe").stdout
    assert not (tmp_path / "redis").exists()


def test_helpers_say_what_to_start(tmp_path: Path) -> None:
    for command in (["k-list"], ["k-consume", "t"], ["mysql-sh"], ["nats-sub", "s"]):
        done = services_command(tmp_path, *command)
        assert done.returncode == 1
        assert re.fullmatch(r"dev\.sh: (\w+) is not running: \./dev\.sh up \1\n", done.stderr)


def test_unknown_services_are_named(tmp_path: Path) -> None:
    done = services_command(tmp_path, "up", "oracle")
    assert done.returncode == 2
    assert "no service oracle; there are: mariadb, postgres, kafka, redis, nats" in done.stderr
