"""Apache Kafka: one broker that is its own controller, from the jars on Maven Central."""

from __future__ import annotations

import base64
import os
import uuid
from pathlib import Path
from typing import Any

from . import jars
from .base import HOST, PASSWORD, ROOT, USER, Server, which
from .certificates import Certificates

_SCRAM = "SCRAM-SHA-512"

# A broker for a handful of topics starts sooner without the better compiler and the better collector.
_JVM = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_LOGGING = {
    "defaultLogLevel": "warn",
    "log.kafka.server.KafkaRaftServer": "info",  # says when it has started
    "showDateTime": "true",
    "dateTimeFormat": "HH:mm:ss.SSS",
    "showThreadName": "false",
}


def _java() -> str | None:
    """The Java that dev.sh has found, or the one there is."""
    recorded = ROOT / ".dev" / "java"
    homes = [os.environ.get("JAVA_HOME", "")]
    if recorded.is_file():
        homes.append(recorded.read_text(encoding="utf-8").strip())
    for home in filter(None, homes):
        if os.access(java := Path(home) / "bin" / "java", os.X_OK):
            return str(java)
    return which("java")


class Kafka(Server):
    name = "kafka"
    usual_port = 9092
    commands = ("java",)
    packages = ("default-jre-headless",)

    def __init__(self, home: Path, *, secure: bool = False, **settings: Any) -> None:
        """With `secure` there are also listeners SSL and SASL_SSL: `client` says how to reach them."""
        super().__init__(home, **settings)
        self.secure = secure

    @classmethod
    def missing(cls) -> list[str]:
        java = [] if _java() else ["java"]
        return java if jars.complete() else [*java, f"the jars of {jars.LIST.name}"]

    def initialise(self) -> None:
        self.prepare()
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes)[:21].decode()
        options = ["--cluster-id", "d" + cluster, "--config", str(self._properties)]
        if self.secure:
            options += ["--add-scram", f"{_SCRAM}=[name={USER},password={PASSWORD}]"]
        self._run(*self._main("kafka.tools.StorageTool", "format", *options))

    def prepare(self) -> None:
        controller = f"{HOST}:{self._port('controller')}"
        listeners = [f"{protocol}://{self.listener(protocol)}" for protocol in self._protocols]
        protocols = [f"{protocol}:{protocol}" for protocol in self._protocols]
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join([*listeners, f"CONTROLLER://{controller}"]),
            "advertised.listeners": ",".join(listeners),
            "listener.security.protocol.map": ",".join([*protocols, "CONTROLLER:PLAINTEXT"]),
            "log.dirs": self.data,
            "auto.create.topics.enable": "false",
            # There is one broker.
            "default.replication.factor": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            # Little to make at the first use of groups and transactions, nothing to wait for.
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            # A broker that was killed may come back only when it is given up for dead, after 9 s usually.
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            "num.network.threads": 2,
            "num.io.threads": 4,
            "background.threads": 2,
            **(self._security() if self.secure else {}),
            **self.config,
        }
        # A backslash begins an escape in this format.
        lines = [f"{key}={value}\n".replace("\\", "\\\\") for key, value in settings.items()]
        self._properties.write_text("".join(lines), encoding="utf-8")

    def command(self) -> list[str]:
        return self._main("kafka.Kafka", str(self._properties))

    def ready(self) -> bool:
        return "Kafka Server started" in self.log.read_text(encoding="utf-8", errors="replace")

    def env(self) -> dict[str, str]:
        return {"KAFKA_BROKERS": self.address}

    def listener(self, protocol: str) -> str:
        """The address for a security protocol."""
        return self.address if protocol == "PLAINTEXT" else f"{HOST}:{self._port(protocol)}"

    def client(self, protocol: str = "PLAINTEXT") -> dict[str, str]:
        """What a client has to set, in librdkafka's words."""
        settings = {"bootstrap.servers": self.listener(protocol), "security.protocol": protocol}
        if protocol.endswith("SSL"):
            settings["ssl.ca.location"] = str(self.certificates.ca)
        if protocol.startswith("SASL"):
            login = {"sasl.username": USER, "sasl.password": PASSWORD}
            settings |= {"sasl.mechanism": _SCRAM, **login}
        return settings

    @property
    def certificates(self) -> Certificates:
        return Certificates.make(self.home / "certificates")

    @property
    def _protocols(self) -> tuple[str, ...]:
        return ("PLAINTEXT", "SSL", "SASL_SSL") if self.secure else ("PLAINTEXT",)

    def _security(self) -> dict[str, str]:
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates.both("server")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.ca),
            "listener.name.ssl.ssl.client.auth": "requested",
            "sasl.enabled.mechanisms": _SCRAM,
            f"listener.name.sasl_ssl.{_SCRAM.lower()}.sasl.jaas.config": login,
        }

    @property
    def _properties(self) -> Path:
        return self.home / "server.properties"

    def _main(self, *arguments: str) -> list[str]:
        logging = [f"-Dorg.slf4j.simpleLogger.{key}={value}" for key, value in _LOGGING.items()]
        path = os.pathsep.join(str(jars.folder() / jar.file) for jar in jars.listed())
        return [str(_java()), *_JVM, *logging, "-cp", path, *arguments]
