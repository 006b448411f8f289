"""A connection to NATS, for one thread that publishes much and asks little.

The protocol is lines and bytes on a socket, so a whole column of messages goes out as one piece of
memory, and the acknowledgements of thousands come back in one read. A client that makes an object
and a future for each message reaches a tenth of that.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import Barred, SinkError
from .nats_login import Address, Login, addresses, login_for, read_credentials, sign

# Messages and bytes that may be on their way without an acknowledgement.
WINDOW, WINDOW_BYTES = 4096, 4 * 1024 * 1024
_PIECE = 256 * 1024


@dataclass
class Outcome:
    """What became of messages that want acknowledgements."""

    answered: int = 0
    last: int = 0  # sequence number of the last one stored
    refused: dict[int, tuple[int, str]] = field(default_factory=dict)  # row: code and text


@dataclass(frozen=True)
class Reply:
    """An answer of the server: its JSON, or an error code and text."""

    value: dict[str, Any]
    code: int = 0
    text: str = ""


NO_RESPONDERS = 503
FORBIDDEN = -1


class Connection:
    """One server, logged in. Any exception leaves it unusable."""

    def __init__(self, socket_: socket.socket, where: str) -> None:
        self._socket = socket_
        self.where = where
        self.info: dict[str, Any] = {}
        self._heard = b""
        self._to_say = b""  # answers to the server's own questions
        self._pongs = 0
        self._asked = 0
        self._keys: dict[bytes, bytes] = {}  # of the questions under way, by subject
        self._replies: dict[bytes, Reply] = {}
        self._outcome = Outcome()
        self._stream, self._stream_mark = "", b""  # whose acknowledgements are waited for
        self.inbox = "_INBOX." + secrets.token_hex(6)
        inbox = re.escape(self.inbox).encode()
        # Acknowledgements of rows; everything else is looked at line by line.
        self._acks = re.compile(rb"(?:MSG " + inbox + rb"\.\d+ 1 +\d+\r\n\{[^\r\n]*\}\r\n)+")
        self._ack = re.compile(rb"MSG " + inbox + rb"\.(\d+) 1 +\d+\r\n(\{[^\r\n]*\})\r\n")

    # --- beginning and end -------------------------------------------------------------------

    @classmethod
    def open(cls, url: str, login: Login, name: str, timeout: float) -> Connection:
        """The first server of the list that answers and takes the login."""
        servers = addresses(url)
        failed: list[SinkError] = []
        for address in servers:
            try:
                return cls._open(address, login, name, timeout)
            except SinkError as error:
                failed.append(error)
        kind = Barred if all(isinstance(error, Barred) for error in failed) else SinkError
        raise kind("; ".join(dict.fromkeys(map(str, failed))))

    @classmethod
    def _open(cls, address: Address, login: Login, name: str, timeout: float) -> Connection:
        host, port, tls, user, password = address
        where = f"nats server {host}:{port}"
        end = time.monotonic() + timeout
        try:
            raw = socket.create_connection((host, port), timeout)
        except OSError as error:
            raise SinkError(f"{where}: {_why(error)}") from None
        connection = cls(raw, where)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection._greet(host, tls, end)
            connection._log_in(login_for(login, user, password), name, end)
        except BaseException as error:
            connection.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise Barred(f"{where}: {_why(error)}") from None
            if isinstance(error, OSError):
                raise SinkError(f"{where}: {_why(error)}") from None
            raise
        return connection

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _greet(self, host: str, tls: bool, end: float) -> None:
        # Nothing but the first line may be read before TLS begins.
        line = b""
        while not line.endswith(b"\r\n"):
            self._socket.settimeout(max(end - time.monotonic(), 0.01))
            piece = self._socket.recv(1)
            if not piece:
                raise SinkError(f"{self.where} closed the connection")
            line += piece
            if len(line) > 65536:
                break
        if not line.startswith(b"INFO "):
            raise SinkError(f"{self.where} does not speak the NATS protocol")
        self.info = json.loads(line[5:])
        if tls or self.info.get("tls_required"):
            self._socket.settimeout(max(end - time.monotonic(), 0.01))
            context = ssl.create_default_context()
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        self._socket.setblocking(False)
        if not self.info.get("headers"):
            raise SinkError(f"{self.where} is too old: it knows no headers")

    def _log_in(self, login: Login, name: str, end: float) -> None:
        hello: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "tls_required": isinstance(self._socket, ssl.SSLSocket),
            "lang": "python",
            "version": "dfc",
            "name": name,
            "headers": True,
            "no_responders": True,
        }
        if login.credentials_file is not None:
            hello["jwt"], seed = read_credentials(login.credentials_file)
            hello["sig"] = sign(seed, str(self.info.get("nonce", "")))
        elif login.token is not None:
            hello["auth_token"] = login.token
        elif login.username is not None:
            hello |= {"user": login.username, "pass": login.password or ""}
        self._say(
            f"CONNECT {json.dumps(hello)}\r\nSUB {self.inbox}.* 1\r\nPING\r\n".encode(),
            lambda: self._pongs > 0,
            end,
            end - time.monotonic(),
        )

    def idle(self) -> bool:
        """After a pause: answers what the server has asked; false when the connection is gone."""
        try:
            while self._exchange(True):
                pass
            return True
        except (SinkError, OSError):
            return False

    # --- asking ------------------------------------------------------------------------------

    def ask(
        self, questions: Sequence[tuple[str, bytes]], patience: float, headers: bytes = b""
    ) -> list[Reply]:
        """The answers to requests (subject and content), which are all sent at once."""
        keys, out = [], []
        for subject, content in questions:
            self._asked += 1
            key = f"{self.inbox}.r{self._asked}"
            keys.append(key.encode())
            if headers:
                sizes = f"{len(headers)} {len(headers) + len(content)}"
                out.append(f"HPUB {subject} {key} {sizes}\r\n".encode() + headers + content)
            else:
                out.append(f"PUB {subject} {key} {len(content)}\r\n".encode() + content)
        self._replies = {}
        self._keys = {s.encode(): k for (s, _), k in zip(questions, keys, strict=True)}
        self._say(
            b"".join(part + b"\r\n" for part in out),
            lambda: len(self._replies) >= len(keys),
            time.monotonic() + max(patience, 1) * 10,
            patience,
        )
        return [self._replies[key] for key in keys]

    # --- publishing --------------------------------------------------------------------------

    def publish(
        self, data: memoryview, ends: np.ndarray, stream: str, patience: float, end: float
    ) -> Outcome:
        """Sends frames whose replies go to `<inbox>.<row>`, and waits for an answer to each.

        `ends` is where each frame begins, and where the last one ends. After a refusal nothing
        more is begun; what is on its way is still waited for, so the outcome is complete.
        """
        outcome = self._outcome = Outcome()
        self._stream, self._stream_mark = stream, f'"stream":"{stream}"'.encode()
        rows, sent, moved = len(ends) - 1, 0, time.monotonic()
        batch_secs = end - moved
        while outcome.answered < rows:
            if outcome.refused:
                rows = int(np.searchsorted(ends, sent, "left"))
                allowed = int(ends[rows])
            else:
                begun = outcome.answered
                full = int(np.searchsorted(ends, ends[begun] + WINDOW_BYTES, "right")) - 1
                allowed = int(ends[min(max(full, begun + 1), begun + WINDOW, rows)])
            if self._to_say:
                # Between two frames, and no later than that, or the server takes us for dead.
                allowed = int(ends[np.searchsorted(ends, sent, "left")])
            count = self._send(data[sent : min(allowed, sent + _PIECE)]) if sent < allowed else 0
            sent += count
            progress = self._exchange(sent == allowed) or count > 0
            now = time.monotonic()
            moved = now if progress else moved
            until = min(end, moved + patience)
            if now >= until:
                missing, late = rows - outcome.answered, now - moved if now < end else batch_secs
                raise SinkError(
                    f"{self.where}: {missing} messages are not acknowledged within {late:.0f} s"
                )
            if not progress:
                self._wait(sent < allowed or len(self._to_say) > 0, until)
        return outcome

    def publish_and_flush(self, data: memoryview, patience: float, end: float) -> Outcome:
        """Sends frames and waits until the server has read them all; nobody acknowledges them."""
        outcome = self._outcome = Outcome()
        self._stream = ""
        before = self._pongs
        self._say(data, lambda: True, end, patience)
        self._say(b"PING\r\n", lambda: self._pongs > before, end, patience)
        return outcome

    # --- the socket --------------------------------------------------------------------------

    def _say(
        self, data: bytes | memoryview, done: Callable[[], bool], end: float, patience: float
    ) -> None:
        """Sends, and reads until `done`."""
        rest = memoryview(data)
        moved = time.monotonic()
        while len(rest) or not done():
            count = self._send(rest[:_PIECE]) if len(rest) else 0
            rest = rest[count:]
            progress = self._exchange(len(rest) == 0) or count > 0
            now = time.monotonic()
            moved = now if progress else moved
            until = min(end, moved + patience)
            if now >= until and not (done() and len(rest) == 0):
                raise SinkError(f"{self.where}: no answer within {now - moved:.0f} s")
            if not progress:
                self._wait(len(rest) > 0 or len(self._to_say) > 0, until)

    def _exchange(self, between: bool) -> bool:
        """Reads, and answers if what was sent before is whole; false when nothing has moved."""
        progress = self._read()
        if between and self._to_say:
            count = self._send(self._to_say)
            self._to_say = self._to_say[count:]
            progress = progress or count > 0
        return progress

    def _wait(self, writing: bool, until: float) -> None:
        # Not select(), which cannot watch a file number above 1023.
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if writing else 0))
        poll.poll(max(until - time.monotonic(), 0) * 1000 + 1)

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            # The server may have said why before it hung up.
            with contextlib.suppress(OSError):
                while self._read():
                    pass
            raise SinkError(f"{self.where}: {_why(error)}") from None

    def _read(self) -> bool:
        try:
            piece = self._socket.recv(_PIECE)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError as error:
            raise SinkError(f"{self.where}: {_why(error)}") from None
        if not piece:
            raise SinkError(f"{self.where} closed the connection")
        self._heard = self._understand(self._heard + piece if self._heard else piece)
        return True

    # --- what the server says ----------------------------------------------------------------

    def _understand(self, heard: bytes) -> bytes:
        """Takes what is complete, and gives back the rest."""
        at = 0
        while at < len(heard):
            acks = self._acks.match(heard, at)
            if acks is not None:
                self._take_acks(acks.group())
                at = acks.end()
                continue
            stop = heard.find(b"\r\n", at)
            if stop < 0:
                break
            line = heard[at:stop]
            if line.startswith((b"MSG ", b"HMSG ")):
                words = line.split()
                begin, size = stop + 2, int(words[-1])
                if len(heard) < begin + size + 2:
                    break
                head = int(words[-2]) if words[0] == b"HMSG" else 0
                content = heard[begin : begin + size]
                self._take_message(words[1], content[:head], content[head:])
                at = begin + size + 2
                continue
            at = stop + 2
            if line.startswith(b"PING"):
                self._to_say += b"PONG\r\n"
            elif line.startswith(b"PONG"):
                self._pongs += 1
            elif line.startswith(b"INFO "):
                self.info |= json.loads(line[5:])
            elif line.startswith(b"-ERR"):
                self._take_error(line[4:].decode(errors="replace").strip(" '"))
        return heard[at:]

    def _take_acks(self, acks: bytes) -> None:
        if not self._stream:
            return  # a stream keeps what is published to core NATS
        outcome = self._outcome
        count = acks.count(b"\r\nMSG ") + 1
        if b'"error"' not in acks and acks.count(self._stream_mark) >= count:
            outcome.answered += count
            outcome.last = _number(acks, acks.rfind(b'"seq":') + 6)
            return
        for row, content in self._ack.findall(acks):
            self._take_ack(int(row), content)

    def _take_ack(self, row: int, content: bytes) -> None:
        outcome = self._outcome
        outcome.answered += 1
        said = json.loads(content)
        if "error" in said:
            error = said["error"]
            outcome.refused[row] = (int(error.get("err_code", 0)), str(error.get("description")))
        elif said.get("stream") != self._stream:
            outcome.refused[row] = (0, f"it went to stream {said.get('stream')}")
        else:
            outcome.last = int(said.get("seq", 0))

    def _take_message(self, subject: bytes, head: bytes, content: bytes) -> None:
        status = head[8:].split(b"\r\n", 1)[0].strip()
        key = subject[len(self.inbox) + 1 :]
        if key.startswith(b"r"):
            self._replies[subject] = _reply(status, content)
        elif key.isdigit():
            if status:
                self._outcome.answered += 1
                self._outcome.refused[int(key)] = (int(status[:3]), "no responders")
            elif self._stream:
                self._take_ack(int(key), content)

    def _take_error(self, text: str) -> None:
        """Only a forbidden question leaves the connection as it is."""
        denied = re.match(r"Permissions Violation for Publish to \"(.*)\"", text, re.IGNORECASE)
        if denied is not None:
            key = self._keys.get(denied.group(1).encode())
            if key is not None and key not in self._replies:
                self._replies[key] = Reply({}, FORBIDDEN, f"not allowed: {denied.group(1)}")
                return
            raise Barred(f"{self.where}: the login may not publish to {denied.group(1)}")
        if "authorization" in text.lower() or "authentication" in text.lower():
            raise Barred(f"{self.where} refuses the login: {text}")
        raise SinkError(f"{self.where}: {text}")


def _reply(status: bytes, content: bytes) -> Reply:
    if status:
        return Reply({}, int(status[:3]), "no responders")
    try:
        value = json.loads(content)
    except ValueError:
        return Reply({}, 500, "not an answer in JSON")
    error = value.get("error")
    if error:
        return Reply(value, int(error.get("err_code", 0)), str(error.get("description")))
    return Reply(value)


def _number(text: bytes, at: int) -> int:
    end = at
    while text[end : end + 1].isdigit():
        end += 1
    return int(text[at:end])


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return error.strerror or str(error) or type(error).__name__
