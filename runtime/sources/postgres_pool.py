"""Connections that threads borrow, and that all end when the copy does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
from psycopg.pq import TransactionStatus

from .log import TransientError
from .postgres_address import Address, Connection


class Pool:
    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._closed = False

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        """Errors of the database come as ours."""
        connection = self.take()
        try:
            with self._address.guarded():
                yield connection
        finally:
            self.give(connection)

    def take(self) -> Connection:
        with self._lock:
            if self._closed:
                raise TransientError("the snapshot was ended")
            if self._idle:
                return self._idle.pop()
        made = self._address.connect()
        with self._lock:
            self._open.add(made)
            closed = self._closed
        if closed:
            self.give(made)
            raise TransientError("the snapshot was ended")
        return made

    def give(self, connection: Connection) -> None:
        """Back for the next one, outside of any transaction; unless it broke or is in the middle."""
        with suppress(psycopg.Error):
            if not connection.closed:
                status = connection.info.transaction_status
                if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
                    connection.rollback()
        usable = (
            not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE
        )
        with self._lock:
            if usable and not self._closed:
                self._idle.append(connection)
                return
            self._open.discard(connection)
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._open.difference_update(idle)
            busy = list(self._open)
        for connection in idle:
            connection.close()
        for connection in busy:
            # Whoever waits for it in another thread finds it broken; he closes it himself.
            with (
                suppress(psycopg.Error, OSError),
                socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as its,
            ):
                its.shutdown(socket.SHUT_RDWR)
