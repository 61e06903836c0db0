"""A record whose header name is no text: Python's client cannot write one, others can."""

import ctypes

from confluent_kafka import cimpl

_END, _TOPIC, _PARTITION, _VALUE, _KEY, _COPY, _HEADER = 0, 1, 3, 4, 5, 7, 9
_COPY_VALUE = 2
_PRODUCER = 0
_FLUSH_MS = 10_000


def send_with_header_name(bootstrap_servers: str, topic: str, value: bytes, name: bytes, key: bytes = b"user") -> None:
    """Write one record to partition 0 and wait until it is there."""
    library = ctypes.CDLL(cimpl.__file__)
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    library.rd_kafka_new.restype = ctypes.c_void_p
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    conf = pointer(library.rd_kafka_conf_new())
    error = ctypes.create_string_buffer(512)
    library.rd_kafka_conf_set(conf, b"bootstrap.servers", bootstrap_servers.encode(), error, size(512))
    handle = pointer(library.rd_kafka_new(_PRODUCER, conf, error, size(512)))
    failed = library.rd_kafka_producev(
        handle,
        *(number(_TOPIC), topic.encode()),
        *(number(_PARTITION), number(0)),
        *(number(_VALUE), value, size(len(value))),
        *(number(_KEY), key, size(len(key))),
        *(number(_HEADER), name, b"1", ctypes.c_ssize_t(1)),
        *(number(_COPY), number(_COPY_VALUE)),
        number(_END),
    )
    left = library.rd_kafka_flush(handle, _FLUSH_MS)
    library.rd_kafka_destroy(handle)
    assert (failed, left) == (0, 0)
