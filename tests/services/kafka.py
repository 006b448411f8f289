"""Apache Kafka: one broker that is its own controller, from the jars on Maven Central."""

from __future__ import annotations

import base64
import os
import uuid
from pathlib import Path

from . import jars
from .base import HOST, ROOT, Server, which

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

    @classmethod
    def missing(cls) -> list[str]:
        java = [] if _java() else ["java"]
        return java if jars.complete() else [*java, f"the jars of {jars.LIST.name}"]

    def initialise(self) -> None:
        self.prepare()
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes)[:21].decode()
        options = ["--cluster-id", "d" + cluster, "--config", str(self._properties)]
        self._run(*self._main("kafka.tools.StorageTool", "format", *options))

    def prepare(self) -> None:
        controller = f"{HOST}:{self._port('controller')}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
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
            "controlled.shutdown.enable": "false",
            "num.network.threads": 2,
            "num.io.threads": 4,
            "background.threads": 2,
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

    @property
    def _properties(self) -> Path:
        return self.home / "server.properties"

    def _main(self, *arguments: str) -> list[str]:
        logging = [f"-Dorg.slf4j.simpleLogger.{key}={value}" for key, value in _LOGGING.items()]
        path = os.pathsep.join(str(jars.folder() / jar.file) for jar in jars.listed())
        return [str(_java()), *_JVM, *logging, "-cp", path, *arguments]
