"""TFRecord files (TensorFlow's event files and data sets), read without TensorFlow.

A file is a sequence of `uint64 length, uint32 crc(length), data, uint32 crc(data)`, little-endian. In data sets a
record is usually an `Example`: names, each with a list of bytes, floats or integers. Sources:
tensorflow/core/lib/io/record_writer.h, core/example/feature.proto and example.proto.
"""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Bytes of a record before and after its data.
HEAD, TAIL = 12, 4


def frames(data: bytes) -> tuple[list[tuple[int, int]], int, bool]:
    """Where the data of the complete records at the start of `data` begin and end, the total bytes of these records, and whether
    what follows is damaged. Only the checksum of the length is verified, because everything else depends on it."""
    found: list[tuple[int, int]] = []
    position = 0
    while position + HEAD <= len(data):
        length, crc = struct.unpack_from("<QI", data, position)
        if masked_crc32c(data[position : position + 8]) != crc:
            return found, position, True
        end = position + HEAD + length + TAIL
        if end > len(data):
            break
        found.append((position + HEAD, end - TAIL))
        position = end
    return found, position, False


def split_records(data: bytes, longest: int) -> tuple[list[bytes], int, bool]:
    """The same with the data themselves, without records longer than `longest`."""
    found, used, damaged = frames(data)
    return [data[start:end] for start, end in found if end - start <= longest], used, damaged


def masked_crc32c(data: bytes) -> int:
    """The checksum of record files. Source: tensorflow/core/lib/hash/crc32c.h."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_CRC_TABLE = _crc_table()


def _example() -> Any:
    """The class of TensorFlow's Example, which the tensorboard package lacks among its messages."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")

    def message(name: str, **fields: tuple[int, int, str]) -> descriptor_pb2.DescriptorProto:
        made = file.message_type.add(name=name)
        for number, (key, (label, kind, type_name)) in enumerate(fields.items(), 1):
            made.field.add(name=key, number=number, label=label, type=kind, type_name=type_name or None)
        return made

    one, many, part = field.LABEL_OPTIONAL, field.LABEL_REPEATED, field.TYPE_MESSAGE
    message("BytesList", value=(many, field.TYPE_BYTES, ""))
    message("FloatList", value=(many, field.TYPE_FLOAT, ""))
    message("Int64List", value=(many, field.TYPE_INT64, ""))
    lists = {f"{kind}_list": (one, part, f".tensorflow.{kind.title()}List") for kind in ("bytes", "float", "int64")}
    feature = message("Feature", **lists)
    feature.oneof_decl.add(name="kind")
    for each in feature.field:
        each.oneof_index = 0
    features = message("Features", feature=(many, part, ".tensorflow.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=one, type=field.TYPE_STRING)
    entry.field.add(name="value", number=2, label=one, type=part, type_name=".tensorflow.Feature")
    message("Example", features=(one, part, ".tensorflow.Features"))
    # A separate pool: if TensorFlow is imported, it registers the same names.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


Example = _example()
