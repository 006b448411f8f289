"""NATS with JetStream."""

from __future__ import annotations

import json

from .base import Server, talk, which


class Nats(Server):
    name = "nats"
    usual_port = 4222
    commands = ("nats-server",)
    packages = ("nats-server",)

    def prepare(self) -> None:
        settings = {
            "server_name": "dfc",
            "jetstream": f"{{ store_dir: {json.dumps(str(self.data))} }}",
            **self.config,
            "listen": f'"{self.address}"',
        }
        lines = [f"{key}: {value}\n" for key, value in settings.items()]
        (self.home / "nats.conf").write_text("".join(lines), encoding="utf-8")

    def command(self) -> list[str]:
        return [str(which("nats-server")), "-c", str(self.home / "nats.conf")]

    def ready(self) -> bool:
        # The first line comes unasked, before any login.
        said = talk(self.port, b"", lambda heard: b"\r\n" in heard)
        return said.startswith(b"INFO ") and json.loads(said[5:].split(b"\r\n")[0]).get("jetstream")

    def env(self) -> dict[str, str]:
        return {"NATS_URL": f"nats://{self.address}"}
