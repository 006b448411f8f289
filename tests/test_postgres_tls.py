"""PostgreSQL over TLS: who the server is, and who we are, by certificates."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from urllib.parse import quote

import pytest
from dfc_runtime.sources.log import SourceError

from .postgres_logs import Shop, read
from .services import Postgres
from .services.base import HOST, USER
from .services.certificates import Certificates
from .services.fixtures import Services


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def db(services: Services, certificates: Certificates) -> Shop:
    """In a server that asks for a certificate, and takes no password, unless it is for `plain`."""
    server = services.start(Postgres)
    plain = Shop(server, "postgres")
    owner = server.data.stat()
    for name in ("server.pem", "server.key", "ca.pem"):
        copy = Path(shutil.copy(certificates.folder / name, server.data / f"tls-{name}"))
        os.chown(copy, owner.st_uid, owner.st_gid)
        copy.chmod(stat.S_IRUSR)
    settings = {
        "ssl_cert_file": "server.pem",
        "ssl_key_file": "server.key",
        "ssl_ca_file": "ca.pem",
    }
    plain.execute(
        *(f"ALTER SYSTEM SET {name} = 'tls-{file}'" for name, file in settings.items()),
        "ALTER SYSTEM SET ssl = on",
    )
    shop = Shop(server, "shop")
    rules = [f"hostssl {what} {USER} {HOST}/32 cert\n" for what in ("shop", "replication")]
    hba = server.data / "pg_hba.conf"
    hba.write_text("".join(rules) + hba.read_text().replace(" all all ", " postgres all "))
    plain.execute("SELECT pg_reload_conf()")
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)", "CREATE PUBLICATION shop FOR TABLE orders"
    )
    return shop


def address(db: Shop, mode: str, **files: Path) -> str:
    options = "".join(f"&{name}={quote(str(path))}" for name, path in files.items())
    return f"postgres://{USER}@{db.server.address}/shop?sslmode={mode}{options}"


def test_changes_come_over_tls_with_a_certificate_for_a_password(
    db: Shop, certificates: Certificates
) -> None:
    ours = {
        "sslrootcert": certificates.ca,
        "sslcert": certificates.certificate("client"),
        "sslkey": certificates.key("client"),
    }
    with db.opened(dsn=address(db, "verify-full", **ours)) as log:
        db.execute("INSERT INTO orders VALUES (1), (2)")
        assert [event["after"] for event in read(log)] == [{"id": 1}, {"id": 2}]
        used = "SELECT bool_and(s.ssl AND s.client_dn = %s) FROM pg_stat_replication r JOIN pg_stat_ssl s USING (pid)"
        assert db.execute(used.replace("%s", f"'/CN={USER}'")) == [(True,)]


def test_what_is_refused_is_said_and_not_tried_again(
    db: Shop, certificates: Certificates, services: Services
) -> None:
    other = Certificates.make(services.folder / "others")
    ours = {"sslcert": certificates.certificate("client"), "sslkey": certificates.key("client")}
    strangers = {"sslcert": other.certificate("client"), "sslkey": other.key("client")}
    for dsn, why in (
        (address(db, "verify-full", sslrootcert=other.ca, **ours), "certificate verify failed"),
        (address(db, "verify-ca", sslrootcert=certificates.ca, **strangers), "unknown ca"),
        (address(db, "require"), "certificate"),
        (address(db, "disable"), "no encryption"),
        (address(db, "verify-full", sslrootcert=Path("/no/such/file"), **ours), "does not exist"),
    ):
        with pytest.raises(SourceError, match=why) as caught, db.opened(dsn=dsn):
            pass
        assert type(caught.value) is SourceError, f"{dsn} would be tried again: {caught.value}"
