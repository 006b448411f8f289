"""An authority of one's own, and certificates it has signed for a server on loopback and its client."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from .base import HOST, USER, ServiceError


@dataclass(frozen=True)
class Certificates:
    """PEM files in a folder: `ca`, and certificate and key of `server` and `client`."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def certificate(self, owner: str) -> Path:
        return self.folder / f"{owner}.pem"

    def key(self, owner: str) -> Path:
        return self.folder / f"{owner}.key"

    def both(self, owner: str) -> Path:
        """Key and certificate in one file, as Kafka wants them."""
        return self.folder / f"{owner}-both.pem"

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        """Those in `folder`; new ones when there are none."""
        made = cls(folder)
        if made.both("client").exists():
            return made
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority = ["-x509", "-days", "3650", "-subj", "/CN=dfc test authority"]
        made._openssl("req", *authority, *made._new("ca"), "-out", "ca.pem")
        for owner, subject in (("server", HOST), ("client", USER)):
            request, names = f"{owner}.csr", folder / f"{owner}.names"
            names.write_text(f"subjectAltName=IP:{HOST},DNS:localhost\n", encoding="utf-8")
            made._openssl("req", "-subj", f"/CN={subject}", *made._new(owner), "-out", request)
            signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "3650"]
            files = ["-in", request, "-extfile", names.name, "-out", f"{owner}.pem"]
            made._openssl("x509", "-req", *signed, *files)
            key, certificate = made.key(owner).read_bytes(), made.certificate(owner).read_bytes()
            made.both(owner).write_bytes(key + certificate)
        return made

    @staticmethod
    def _new(owner: str) -> list[str]:
        return ["-newkey", "rsa:2048", "-nodes", "-keyout", f"{owner}.key"]

    def _openssl(self, *arguments: str) -> None:
        command = ["openssl", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder)
        if done.returncode != 0:
            raise ServiceError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
