"""Redis."""

from __future__ import annotations

from .base import Server, talk, which


class Redis(Server):
    name = "redis"
    usual_port = 6379
    commands = ("redis-server", "redis-cli")
    packages = ("redis-server",)

    def prepare(self) -> None:
        settings = {
            "bind": "127.0.0.1",
            "dir": f'"{self.data}"',
            "appendonly": "yes",
            "appendfsync": "everysec" if self.durable else "no",
            "save": '""',
            "daemonize": "no",
            **self.config,
            "port": self.port,
        }
        lines = [f"{key} {value}\n" for key, value in settings.items()]
        (self.home / "redis.conf").write_text("".join(lines), encoding="utf-8")

    def command(self) -> list[str]:
        return [str(which("redis-server")), str(self.home / "redis.conf")]

    def ready(self) -> bool:
        # With a password set: -NOAUTH. While it reads its file: -LOADING.
        said = talk(self.port, b"PING\r\n", lambda heard: heard.endswith(b"\r\n"))
        return said.startswith((b"+PONG", b"-NOAUTH"))

    def env(self) -> dict[str, str]:
        return {"REDIS_URI": f"redis://{self.address}"}
