"""A producer by librdkafka's own C interface: columns of messages go over in one call.

The Python client makes objects of every message, and for every report of a delivery it takes the
interpreter's lock; both cost more than the sending. The library is the one that this client brings,
and errors are the client's own objects.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, cimpl

Column: TypeAlias = pa.Array | str | None  # a text for each message, one for all, or none

_PRODUCER, _COPY, _ANY_PARTITION = 0, 2, -1
_QUEUED_AND_SENT, _AT_ONCE = 3, 4  # what a purge throws out, and whether it waits for it
_CONF_TAKEN = 0
# rd_kafka_message_t and rd_kafka_vu_t on a machine of 64 bits
_MESSAGE = np.dtype(
    {
        "names": ["err", "rkt", "payload", "len", "key", "key_len"],
        "formats": ["<i4", "<u8", "<u8", "<u8", "<u8", "<u8"],
        "offsets": [0, 8, 24, 32, 40, 48],
        "itemsize": 72,
    }
)
_FIELD = np.dtype(
    {
        "names": ["kind", "at", "size", "number", "value", "value_size"],
        "formats": ["<i4", "<u8", "<u8", "<i4", "<u8", "<i8"],
        "offsets": [0, 8, 16, 8, 16, 24],
        "itemsize": 72,
    }
)
_RKT, _PARTITION, _VALUE, _KEY, _FLAGS, _HEADER = 2, 3, 4, 5, 7, 9


class _Message(ctypes.Structure):
    _fields_ = (
        ("err", ctypes.c_int),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
    )


class _TopicFound(ctypes.Structure):
    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition_cnt", ctypes.c_int),
        ("partitions", ctypes.c_void_p),
        ("err", ctypes.c_int),
    )


class _Found(ctypes.Structure):
    _fields_ = (
        ("broker_cnt", ctypes.c_int),
        ("brokers", ctypes.c_void_p),
        ("topic_cnt", ctypes.c_int),
        ("topics", ctypes.POINTER(_TopicFound)),
    )


_ON_DELIVERY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_Message), ctypes.c_void_p)
_ON_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_P, _I, _S = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_FUNCTIONS: dict[str, tuple[Any, ...]] = {  # what each returns, then what it takes
    "conf_new": (_P,),
    "conf_destroy": (None, _P),
    "conf_set": (_I, _P, _S, _S, _S, ctypes.c_size_t),
    "conf_set_dr_msg_cb": (None, _P, _ON_DELIVERY),
    "conf_set_error_cb": (None, _P, _ON_ERROR),
    "conf_set_log_cb": (None, _P, _P),
    "new": (_P, _I, _P, _S, ctypes.c_size_t),
    "destroy": (None, _P),
    "poll": (_I, _P, _I),
    "flush": (_I, _P, _I),
    "purge": (_I, _P, _I),
    "outq_len": (_I, _P),
    "clusterid": (_P, _P, _I),
    "mem_free": (None, _P, _P),
    "fatal_error": (_I, _P, _S, ctypes.c_size_t),
    "topic_new": (_P, _P, _S, _P),
    "topic_destroy": (None, _P),
    "topic_name": (_S, _P),
    "metadata": (_I, _P, _I, _P, ctypes.POINTER(ctypes.POINTER(_Found)), _I),
    "metadata_destroy": (None, ctypes.POINTER(_Found)),
    "produce_batch": (_I, _P, ctypes.c_int32, _I, _P, _I),
    "produceva": (_P, _P, _P, ctypes.c_size_t),
    "init_transactions": (_P, _P, _I),
    "begin_transaction": (_P, _P),
    "commit_transaction": (_P, _P, _I),
    "abort_transaction": (_P, _P, _I),
    "error_code": (_I, _P),
    "error_string": (_S, _P),
    "error_is_fatal": (_I, _P),
    "error_is_retriable": (_I, _P),
    "error_txn_requires_abort": (_I, _P),
    "error_destroy": (None, _P),
}


def _library() -> Any:
    # Names are looked up in what the client's module is linked to as well.
    found = ctypes.CDLL(cimpl.__file__)
    for name, (result, *takes) in _FUNCTIONS.items():
        function = getattr(found, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, takes
    return found


_lib = _library()


Sent = Callable[[], tuple[bytes, bytes]]  # key and value, while the report lasts


class Listener(Protocol):
    """Hears what goes wrong, from whatever call of the producer's comes next."""

    def on_failed(self, error: KafkaError, topic: str, size: int, message: Sent) -> None: ...

    def on_error(self, error: KafkaError) -> None: ...


class Producer:
    """Raises KafkaException; a fatal error comes out of the next call, whichever that is."""

    def __init__(self, conf: Mapping[str, str], listener: Listener) -> None:
        self._rk = 0
        self._topics: dict[str, int] = {}
        self._fatal: list[int] = []  # reports of it that nobody has heard yet
        self._callbacks = _callbacks(listener, self._fatal)  # as long as the library may call them
        reason = ctypes.create_string_buffer(512)
        made = _lib.rd_kafka_conf_new()
        # Only failures are told, or each message would cost a call.
        for name, value in {**conf, "delivery.report.only.error": "true"}.items():
            taken = _lib.rd_kafka_conf_set(made, name.encode(), value.encode(), reason, 512)
            if taken != _CONF_TAKEN:
                _lib.rd_kafka_conf_destroy(made)
                raise _exception(KafkaError._INVALID_ARG, reason.value)
        _lib.rd_kafka_conf_set_log_cb(made, None)
        _lib.rd_kafka_conf_set_dr_msg_cb(made, self._callbacks[0])
        _lib.rd_kafka_conf_set_error_cb(made, self._callbacks[1])
        self._rk = _lib.rd_kafka_new(_PRODUCER, made, reason, 512)
        if not self._rk:
            _lib.rd_kafka_conf_destroy(made)
            raise _exception(KafkaError._INVALID_ARG, reason.value)

    def __del__(self) -> None:
        if self._rk and not sys.is_finalizing():
            for topic in self._topics.values():
                _lib.rd_kafka_topic_destroy(topic)
            _lib.rd_kafka_destroy(self._rk)

    def __len__(self) -> int:
        """Messages that are not acknowledged yet."""
        return int(_lib.rd_kafka_outq_len(self._rk))

    # --- messages ----------------------------------------------------------------------------

    def produce_columns(self, topic: str, value: Column, key: Column, count: int) -> None:
        rows = np.zeros(count, _MESSAGE)
        rows["payload"], rows["len"], held = _places(value, count)
        rows["key"], rows["key_len"], also_held = _places(key, count)
        taken = _lib.rd_kafka_produce_batch(
            self._topic(topic), _ANY_PARTITION, _COPY, rows.ctypes.data, count
        )
        del held, also_held  # copied by now
        if taken < count:
            self._raise(int(rows["err"][rows["err"] != 0][0]))

    def produce_with_headers(
        self,
        topic: str,
        value: Column,
        key: Column,
        headers: Sequence[Sequence[tuple[str, bytes]] | None],
        partition: int = _ANY_PARTITION,
    ) -> None:
        """One call for each message, as headers need; all that it is given is laid out before."""
        count = len(headers)
        pairs = [(name.encode(), text) for each in headers for name, text in each or ()]
        numbers = np.array([len(each or ()) for each in headers], np.int64)
        fields = np.zeros(5 * count + len(pairs), _FIELD)
        first = 5 * np.arange(count) + np.cumsum(numbers) - numbers
        fields["kind"] = _HEADER
        for place, kind in enumerate((_RKT, _PARTITION, _FLAGS, _VALUE, _KEY)):
            fields["kind"][first + place] = kind
        fields["at"][first] = self._topic(topic)
        fields["number"][first + 1] = partition
        fields["number"][first + 2] = _COPY
        fields["at"][first + 3], fields["size"][first + 3], held = _places(value, count)
        fields["at"][first + 4], fields["size"][first + 4], also_held = _places(key, count)
        text = b"".join(name + b"\0" + content for name, content in pairs)
        sizes = np.array([(len(n) + 1, len(c)) for n, c in pairs], np.int64).reshape(-1, 2)
        buffer = np.frombuffer(text or b"\0", np.uint8)
        begin = buffer.ctypes.data + np.cumsum(sizes.sum(axis=1)) - sizes.sum(axis=1)
        which = np.flatnonzero(fields["kind"] == _HEADER)
        fields["at"][which] = begin
        fields["value"][which] = begin + sizes[:, 0]
        fields["value_size"][which] = sizes[:, 1]
        start, produce = fields.ctypes.data, _lib.rd_kafka_produceva
        for at, many in zip((start + 72 * first).tolist(), (5 + numbers).tolist(), strict=True):
            if error := produce(self._rk, at, many):
                self._raise_taken(error)
        del held, also_held

    def poll(self, seconds: float = 0) -> None:
        _lib.rd_kafka_poll(self._rk, int(seconds * 1000))
        self._heard()

    def flush(self, seconds: float) -> int:
        """Returns how many messages are still not acknowledged."""
        _lib.rd_kafka_flush(self._rk, int(seconds * 1000))
        self._heard()
        return len(self)

    def purge(self, wait: bool = True) -> None:
        _lib.rd_kafka_purge(self._rk, _QUEUED_AND_SENT | (0 if wait else _AT_ONCE))

    # --- brokers -----------------------------------------------------------------------------

    def cluster_id(self, timeout: float) -> str:
        found = _lib.rd_kafka_clusterid(self._rk, int(timeout * 1000))
        if not found:
            raise _exception(KafkaError._TIMED_OUT)
        try:
            return ctypes.string_at(found).decode()
        finally:
            _lib.rd_kafka_mem_free(self._rk, found)

    def partitions(self, topic: str, timeout: float) -> tuple[int, KafkaError | None]:
        """How many a topic has, and what is wrong with it."""
        found = ctypes.POINTER(_Found)()
        error = _lib.rd_kafka_metadata(
            self._rk, 0, self._topic(topic), ctypes.byref(found), int(timeout * 1000)
        )
        if error:
            self._raise(error)
        try:
            for at in range(found.contents.topic_cnt):
                one = found.contents.topics[at]
                if one.topic == topic.encode():
                    return one.partition_cnt, KafkaError(one.err) if one.err else None
        finally:
            _lib.rd_kafka_metadata_destroy(found)
        return 0, None

    # --- transactions ------------------------------------------------------------------------

    def init_transactions(self, timeout: float) -> None:
        self._raise_taken(_lib.rd_kafka_init_transactions(self._rk, int(timeout * 1000)))

    def begin_transaction(self) -> None:
        self._raise_taken(_lib.rd_kafka_begin_transaction(self._rk))

    def commit_transaction(self, timeout: float) -> None:
        self._raise_taken(_lib.rd_kafka_commit_transaction(self._rk, int(timeout * 1000)))

    def abort_transaction(self, timeout: float) -> None:
        self._raise_taken(_lib.rd_kafka_abort_transaction(self._rk, int(timeout * 1000)))

    # --- errors ------------------------------------------------------------------------------

    def fatal_error(self) -> KafkaError | None:
        """After which this producer is of no more use."""
        reason = ctypes.create_string_buffer(512)
        code = _lib.rd_kafka_fatal_error(self._rk, reason, 512)
        return KafkaError(code, reason.value.decode(errors="replace"), fatal=True) if code else None

    def _heard(self) -> None:
        if self._fatal:
            self._fatal.clear()
            self._raise(KafkaError._FATAL)

    def _raise(self, code: int) -> None:
        fatal = self.fatal_error() if code == KafkaError._FATAL else None
        raise KafkaException(fatal or KafkaError(code))

    def _raise_taken(self, error: int | None) -> None:
        """An error that is ours to destroy, or none."""
        if not error:
            return
        code = _lib.rd_kafka_error_code(error)
        made = KafkaError(
            code,
            (_lib.rd_kafka_error_string(error) or b"").decode(errors="replace"),
            fatal=bool(_lib.rd_kafka_error_is_fatal(error)),
            retriable=bool(_lib.rd_kafka_error_is_retriable(error)),
            txn_requires_abort=bool(_lib.rd_kafka_error_txn_requires_abort(error)),
        )
        _lib.rd_kafka_error_destroy(error)
        if code == KafkaError._FATAL:
            made = self.fatal_error() or made
        raise KafkaException(made)

    def _topic(self, name: str) -> int:
        if name not in self._topics:
            made = _lib.rd_kafka_topic_new(self._rk, name.encode(), None)
            if not made:
                raise _exception(KafkaError._INVALID_ARG, f"not a topic: {name}".encode())
            self._topics[name] = made
        return self._topics[name]


def _callbacks(listener: Listener, fatal: list[int]) -> tuple[Any, Callable[..., None]]:
    """They hold the listener and not the producer, which would then never be let go."""

    def on_delivery(_rk: Any, message: Any, _opaque: Any) -> None:
        one = message.contents
        if one.err:
            topic = (_lib.rd_kafka_topic_name(one.rkt) or b"").decode()
            error = KafkaError(one.err)
            listener.on_failed(
                error,
                topic,
                one.len,
                lambda: (_bytes(one.key, one.key_len), _bytes(one.payload, one.len)),
            )

    def on_error(_rk: Any, code: int, reason: bytes | None, _opaque: Any) -> None:
        if code == KafkaError._FATAL:
            fatal.append(code)
        else:
            listener.on_error(KafkaError(code, (reason or b"").decode(errors="replace")))

    return _ON_DELIVERY(on_delivery), _ON_ERROR(on_error)


def _bytes(address: int | None, size: int) -> bytes:
    return ctypes.string_at(address, size) if address else b""


def _places(column: Column, count: int) -> tuple[Any, Any, Any]:
    """Addresses and sizes of texts, 0 for those that are not there; and what must live meanwhile."""
    if column is None:
        return 0, 0, None
    if isinstance(column, str):
        # With a byte behind it, so that a text without letters has a place too.
        text = np.frombuffer(column.encode() + b"\0", np.uint8)
        return text.ctypes.data, len(text) - 1, text
    assert len(column) == count
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    valid, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64 if large else np.int32)
    ends = ends[column.offset : column.offset + count + 1].astype(np.int64)
    base = data.address if data is not None and data.size else ends.ctypes.data - int(ends[0])
    places, sizes = base + ends[:-1], np.diff(ends)
    if valid is not None and column.null_count:
        there = column.is_valid().to_numpy(zero_copy_only=False)
        places, sizes = places * there, sizes * there
    return places, sizes, (column, ends)


def _exception(code: int, reason: bytes = b"") -> KafkaException:
    text = reason.decode(errors="replace")
    return KafkaException(KafkaError(code, text) if text else KafkaError(code))
