"""Headers of RoCE packets, in the style of scapy.

Each header is a class, such as `BTH`. `/` puts headers and payload into a `Packet`, `bytes` writes it, and
`parse` reads it back. Lengths, checksums, types of the next header, padding and the ICRC are computed by
`bytes` unless they were given. A parsed packet keeps the values that it had; `Packet.refresh` lets them be
computed again.

    >>> from roce.layers import *
    >>> frame = IPv4(source="10.0.0.1", destination="10.0.0.2") / UDP() / BTH(opcode="RC_SEND_ONLY") / b"hi"
    >>> parse(bytes(frame), link="ip")[BTH].pad_count
    2

Values are numbers, truth values, texts for addresses, and bytes. The names are those of the specification in
lower case. The tables of all fields come from the Rust crate `roce-packet`, which the command `roce` uses.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Iterable, Iterator

from . import _roce

OPCODES: dict[str, int] = {name: number for number, name in _roce.opcodes()}
"""The numbers of all opcodes by name, such as `RC_SEND_ONLY`."""

# Names of one or two letters in the specification, and names that Python or other headers would not have.
_NAMES = {
    "infiniband.bth.se": "solicited",
    "infiniband.bth.m": "mig_req",
    "infiniband.bth.padcnt": "pad_count",
    "infiniband.bth.tver": "version",
    "roce.bth.fecn": "fecn",
    "roce.bth.becn": "becn",
    "infiniband.bth.a": "ack_req",
    "infiniband.bth.opcode": "opcode",
    "infiniband.atomiceth.swapdt": "swap_or_add",
    "infiniband.atomiceth.cmpdt": "compare",
    "infiniband.atomicacketh.origremdt": "original",
    "roce.feth.selectivity": "selectivity",
    "roce.feth.persistence": "persistence",
    "roce.feth.global_visibility": "global_visibility",
    "infiniband.reth.dmalen": "dma_len",
    "infiniband.grh.ipver": "version",
    "infiniband.grh.tclass": "traffic_class",
    "infiniband.grh.paylen": "payload_length",
    "infiniband.grh.nxthdr": "next_header",
    "infiniband.grh.hoplmt": "hop_limit",
    "infiniband.immdt": "data",
    "infiniband.ieth": "r_key",
    "infiniband.invariant.crc": "value",
    "infiniband.variant.crc": "value",
    "roce.cm.rep.vendorid.high": "vendor_id_high",
    "roce.cm.rep.vendorid.middle": "vendor_id_middle",
    "roce.cm.rep.vendorid.low": "vendor_id_low",
    "infiniband.aeth.syndrome.reserved_value": "reserved_value",
    **{f"macc.cbfc.enbv.c{priority}": f"enabled_{priority}" for priority in range(8)},
}


def _attribute(field: _roce.Field) -> str:
    """Returns the name of a field in Python."""
    if field.key in _NAMES:
        return _NAMES[field.key]
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", field.name)
    name = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return name if not name[0].isdigit() else f"field_{name}"


def _attributes(header: _roce.Header) -> dict[str, list[int]]:
    """Returns the fields of each name. Several fields share a name if other bits decide which is present."""
    found: dict[str, list[int]] = {}
    for index, field in enumerate(header.fields):
        name = _attribute(field)
        if name in found and not field.conditional:
            name = next(f"{name}_{number}" for number in range(2, 99) if f"{name}_{number}" not in found)
        found.setdefault(name, []).append(index)
    return found


class Layer:
    """A header, or another part of a packet."""

    header: ClassVar[_roce.Header]
    """The table of the header."""
    _indexes: ClassVar[dict[str, list[int]]] = {}
    # Values of new headers other than 0.
    _defaults: ClassVar[dict[str, Any]] = {}
    # Fields that `bytes` computes unless they were set.
    _computed: ClassVar[tuple[str, ...]] = ()

    __slots__ = ("raw", "_fixed", "is_outer")

    raw: bytearray
    """The bytes of the header, without what `bytes` of a packet computes."""
    is_outer: bool
    """Whether the header belongs to a tunnel around the packet."""

    def __init__(self, raw: bytes | None = None, /, **values: Any) -> None:
        """Creates a header of its bytes, or of default values, and sets fields."""
        self.is_outer = False
        self._fixed: set[str] = set()
        if raw is not None:
            self.raw = bytearray(raw)
            self._fixed.update(self._computed)
        else:
            self.raw = bytearray(self.header.length)
            for name, value in self._defaults.items():
                self._set(name, value)
        for name, value in values.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        indexes = type(self)._indexes.get(name)
        if indexes is None:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}; it has {', '.join(self.names())}")
        raw = bytes(self.raw)
        return next((value for value in (self.header.get(i, raw) for i in indexes) if value is not None), None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in Layer.__slots__:
            object.__setattr__(self, name, value)
        else:
            self._set(name, value)
            self._fixed.add(name)

    def __delattr__(self, name: str) -> None:
        """Sets a field to its default. `bytes` computes it again if it can be computed."""
        self._set(name, self._defaults.get(name, 0))
        self._fixed.discard(name)

    def _set(self, name: str, value: Any) -> None:
        indexes = type(self)._indexes.get(name)
        if indexes is None:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}; it has {', '.join(self.names())}")
        raw = bytes(self.raw)
        present = (index for index in indexes if self.header.get(index, raw) is not None)
        self.header.set(next(present, indexes[0]), self.raw, value)

    @classmethod
    def names(cls) -> list[str]:
        """Returns the names of all fields."""
        return list(cls._indexes)

    def fields(self) -> dict[str, Any]:
        """Returns the values of all fields that are present."""
        found = ((name, getattr(self, name)) for name in self._indexes)
        return {name: value for name, value in found if value is not None}

    def note(self, name: str) -> str:
        """Returns the name or the meaning of the value of a field, or an empty text."""
        raw = bytes(self.raw)
        for index in self._indexes[name]:
            if self.header.get(index, raw) is not None:
                return self.header.note(index, raw)
        return ""

    def copy(self) -> Layer:
        """Returns a copy, which can be changed by itself."""
        other = type(self)(bytes(self.raw))
        other._fixed = set(self._fixed)
        other.is_outer = self.is_outer
        return other

    def __truediv__(self, other: Layer | Packet | bytes) -> Packet:
        return Packet([self]) / other

    def __rtruediv__(self, other: bytes) -> Packet:
        return Packet([Payload(other)]) / self

    def __bytes__(self) -> bytes:
        return bytes(Packet([self]))

    def __len__(self) -> int:
        return len(self.raw)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.raw == other.raw  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if not self._indexes:
            return f"{type(self).__name__}({bytes(self.raw)!r})"
        default = type(self)()
        # The bytes of a header with another length than that of its fields are not those of a default.
        values = self.fields().items()
        shown = [f"{name}={value!r}" for name, value in values if value != getattr(default, name)]
        return f"{type(self).__name__}({', '.join(shown)})"


def _link_of(layer: Layer) -> str:
    """Returns the link whose packets begin with this header."""
    if isinstance(layer, (IPv4, IPv6, GRH)):
        return "ip"
    return {BTH: "bth", LRH: "infiniband", ERF: "erf"}.get(type(layer), "ethernet")


class Packet:
    """Headers and payload, from the first byte to the last."""

    __slots__ = ("layers", "link", "_is_parsed", "_wire_length", "_port")

    def __init__(self, layers: Iterable[Layer] = (), link: str | None = None) -> None:
        """Creates a packet of its layers. `link` names the first header, if it cannot be seen."""
        self.layers: list[Layer] = list(layers)
        self.link = link or (_link_of(self.layers[0]) if self.layers else "ethernet")
        # A parsed packet may lack its end, so `bytes` adds nothing to it.
        self._is_parsed = False
        self._wire_length: int | None = None
        self._port = 4791

    def __truediv__(self, other: Layer | Packet | bytes) -> Packet:
        if isinstance(other, (bytes, bytearray, memoryview)):
            more: list[Layer] = [Payload(bytes(other))]
        elif isinstance(other, Layer):
            more = [other]
        elif isinstance(other, Packet):
            more = other.layers
        else:
            return NotImplemented
        layers = [layer.copy() for layer in [*self.layers, *more]]
        return Packet(layers, self.link if self.layers else None)

    def __getitem__(self, key: int | type[Layer]) -> Any:
        """Returns the layer at a position, or the innermost one of a class."""
        if isinstance(key, int):
            return self.layers[key]
        found = self.get(key)
        if found is None:
            raise KeyError(f"the packet has no {key.__name__}; it has {', '.join(self.names())}")
        return found

    def get(self, key: type[Layer]) -> Any:
        """Returns the innermost layer of a class, or `None`."""
        return next((layer for layer in reversed(self.layers) if isinstance(layer, key)), None)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, type) and any(isinstance(layer, key) for layer in self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(bytes(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Packet):
            return NotImplemented
        return self.names() == other.names() and bytes(self) == bytes(other)

    __hash__ = None  # type: ignore[assignment]

    def names(self) -> list[str]:
        """Returns the names of the classes of all layers."""
        return [type(layer).__name__ for layer in self.layers]

    @property
    def payload(self) -> bytes:
        """The bytes of the application."""
        return b"".join(bytes(layer.raw) for layer in self.layers if isinstance(layer, Payload))

    def _decoded(self) -> _roce.Decoded:
        return _roce.decode(bytes(self), self.link, self._wire_length, self._port)

    @property
    def error(self) -> str | None:
        """The first error in the headers."""
        return self._decoded().error

    @property
    def protocol(self) -> str:
        """`RoCE v2`, `RoCE v1`, `InfiniBand`, `pause`, or the name of another protocol."""
        return self._decoded().protocol

    @property
    def computed_icrc(self) -> int | None:
        """The right ICRC; `None` if it cannot be computed, for a reason in `unchecked`."""
        found = self._decoded().icrc
        return None if found is None else found[1]

    @property
    def icrc_ok(self) -> bool | None:
        """Whether the ICRC is right; `None` if it cannot be checked, for a reason in `unchecked`."""
        found = self._decoded().icrc
        return None if found is None else found[0] == found[1]

    @property
    def unchecked(self) -> str | None:
        """Why the ICRC cannot be checked."""
        return self._decoded().unchecked

    def refresh(self) -> Packet:
        """Returns a copy whose lengths, checksums, types, padding and ICRC `bytes` computes again."""
        kept = [layer.copy() for layer in self.layers if not isinstance(layer, (ICRC, Padding))]
        for layer in kept:
            for name in layer._computed:
                delattr(layer, name)
        return Packet(kept, self.link)

    def __bytes__(self) -> bytes:
        return _build(self)

    def show(self) -> None:
        """Prints all layers and fields."""
        print(self.text())

    def text(self) -> str:
        """Returns all layers and fields as text."""
        packet = parse(bytes(self), link=self.link, wire_length=self._wire_length, port=self._port)
        lines = []
        for layer in packet.layers:
            lines.append(f"{type(layer).__name__}: {layer.header.title}, {len(layer.raw)} bytes")
            if not layer._indexes:
                lines.append(f"    {layer.raw.hex() if len(layer.raw) <= 32 else layer.raw[:32].hex() + '...'}")
            formats = {field.key: field for field in layer.header.fields}
            for name, value in layer.fields().items():
                field = layer.header.fields[layer._indexes[name][0]]
                note = layer.note(name)
                lines.append(f"    {name:<26} {_shown(formats[field.key], value)}{'  ' + note if note else ''}")
        decoded = packet._decoded()
        if decoded.icrc is not None and decoded.icrc[0] != decoded.icrc[1]:
            lines.append(f"the ICRC is wrong; 0x{decoded.icrc[1]:08x} is right")
        if decoded.error:
            lines.append(f"error: {decoded.error}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return " / ".join(map(repr, self.layers)) or "Packet()"

    def to_scapy(self) -> Any:
        """Returns the packet as a packet of scapy, with the layers that scapy has."""
        return to_scapy(self)


def _shown(field: _roce.Field, value: Any) -> str:
    """Returns the value of a field as text."""
    if isinstance(value, bytes):
        return value.hex()
    is_hex = field.width >= 16 and isinstance(value, int) and not isinstance(value, bool)
    return f"{value} (0x{value:x})" if is_hex and value > 9 else str(value)


def parse(raw: bytes, *, link: str = "ethernet", wire_length: int | None = None, port: int = 4791) -> Packet:
    """Parses a packet.

    `link` is the first header: `ethernet`, `ip` (also for a GRH), `bth`, `infiniband`, `erf`, `null`, `sll`
    or `sll2`. `wire_length` is the length of a packet whose end was not captured, and `port` the UDP port of
    RoCE v2. A broken packet is parsed as far as possible; `Packet.error` says what is wrong.
    """
    raw = bytes(raw)
    decoded = _roce.decode(raw, link, wire_length, port)
    layers: list[Layer] = []
    at = 0

    def gap(until: int) -> None:
        if until > at:
            layers.append(Payload(raw[at:until]))

    for name, start, length, is_outer in decoded.parts:
        gap(start)
        layer = _CLASSES[name](raw[start : start + length])
        layer.is_outer = is_outer
        layers.append(layer)
        at = start + length
    gap(len(raw))
    packet = Packet(layers, link)
    packet._is_parsed, packet._wire_length, packet._port = True, wire_length, port
    return packet


def icrc(packet: Packet | bytes, *, link: str | None = None) -> int:
    """Returns the ICRC that a packet should have, as a number of its four bytes on the wire.

    Raises `ValueError` if the packet is not RoCE, or has no room for an ICRC.
    """
    if isinstance(packet, Packet):
        return _roce.icrc(bytes(packet), link or packet.link)
    return _roce.icrc(bytes(packet), link or "ethernet")


def from_scapy(packet: Any) -> Packet:
    """Returns a packet of scapy with all layers of this module."""
    names = {"Ethernet": "ethernet", "IP": "ip", "IPv6": "ip", "GRH": "ip", "BTH": "bth"}
    names.update({"cooked linux": "sll", "cooked linux v2": "sll2", "Loopback": "null"})
    if packet.name not in names:
        raise ValueError(f"a packet that begins with {packet.name} cannot be converted")
    return parse(bytes(packet), link=names[packet.name])


def to_scapy(packet: Packet | Layer) -> Any:
    """Returns a packet as a packet of scapy. Headers that scapy does not have are its `Raw`."""
    # Importing binds the layers of RoCE to UDP and Ethernet.
    import scapy.contrib.roce as scapy_roce
    import scapy.layers.inet as inet
    import scapy.layers.inet6 as inet6
    import scapy.layers.l2 as l2
    import scapy.packet

    packet = Packet([packet]) if isinstance(packet, Layer) else packet
    raw = bytes(packet)
    if packet.link == "ip":
        is_grh = bool(packet.layers) and isinstance(packet.layers[0], GRH)
        version = raw[0] >> 4 if raw else 0
        return (scapy_roce.GRH if is_grh else inet.IP if version == 4 else inet6.IPv6)(raw)
    classes = {"ethernet": l2.Ether, "bth": scapy_roce.BTH, "sll": l2.CookedLinux, "sll2": l2.CookedLinuxV2}
    classes["null"] = l2.Loopback
    return classes.get(packet.link, scapy.packet.Raw)(raw)


_ETHER_TYPES = {
    "VLAN": 0x8100,
    "ServiceVLAN": 0x88A8,
    "IPv4": 0x0800,
    "IPv6": 0x86DD,
    "GRH": 0x8915,
    "MPLS": 0x8847,
    "Pause": 0x8808,
    "PFC": 0x8808,
}
_PROTOCOLS = {"UDP": 17, "GRE": 47, "IPv4": 4, "IPv6": 41, "Authentication": 51}
_PROTOCOLS.update({"HopByHop": 0, "Routing": 43, "Fragment": 44, "DestinationOptions": 60})
_CM_ATTRIBUTES = {
    "CmReq": 0x10, "CmMra": 0x11, "CmRej": 0x12, "CmRep": 0x13, "CmRtu": 0x14, "CmDreq": 0x15, "CmDrep": 0x16,
    "CmSidrReq": 0x17, "CmSidrRep": 0x18, "CmLap": 0x19, "CmApr": 0x1A,
}  # fmt: skip


def _build(packet: Packet) -> bytes:
    """Returns the bytes of a packet, with everything computed that was not given."""
    layers = [layer.copy() for layer in packet.layers]
    if not packet._is_parsed:
        _complete(layers)
    # From the end, because a length counts what follows.
    behind = 0
    for index in range(len(layers) - 1, -1, -1):
        layer = layers[index]
        following = layers[index + 1] if index + 1 < len(layers) else None
        for name in layer._computed:
            if name not in layer._fixed:
                value = _value(name, layer, following, layers[index + 1 :], behind)
                if value is not None:
                    layer._set(name, value)
        if not isinstance(layer, (Trailer, VCRC)):
            behind += len(layer.raw)
    raw = b"".join(bytes(layer.raw) for layer in layers)
    at = len(raw)
    for layer in reversed(layers):
        at -= len(layer.raw)
        if isinstance(layer, ICRC) and "value" not in layer._fixed and packet.link != "bth":
            layer._set("value", _roce.icrc(raw, packet.link))
            return raw[:at] + bytes(layer.raw) + raw[at + len(layer.raw) :]
    return raw


def _complete(layers: list[Layer]) -> None:
    """Adds padding and an ICRC to a packet with a BTH, unless the packet has an ICRC."""
    if not any(isinstance(layer, BTH) for layer in layers) or any(isinstance(layer, ICRC) for layer in layers):
        return
    end = next((i for i, layer in enumerate(layers) if isinstance(layer, (Trailer, VCRC, Telemetry))), len(layers))
    base = max(i for i, layer in enumerate(layers) if isinstance(layer, BTH))
    bth = layers[base]
    padding = -sum(len(layer.raw) for layer in layers[base:end]) % 4
    if "pad_count" in bth._fixed:
        padding = bth.pad_count
    elif not any(isinstance(layer, Padding) for layer in layers):
        bth._set("pad_count", padding)
    if padding and not any(isinstance(layer, Padding) for layer in layers):
        layers.insert(end, Padding(bytes(padding)))
        end += 1
    layers.insert(end, ICRC())


def _value(name: str, layer: Layer, following: Layer | None, rest: list[Layer], behind: int) -> Any:
    """Returns a computed value of a header, or `None` if it stays as it is."""
    next_name = type(following).__name__
    length = len(layer.raw) + behind
    if isinstance(layer, (Ethernet, VLAN, ServiceVLAN)):
        return _ETHER_TYPES.get(next_name)
    if isinstance(layer, IPv4):
        options = len(following.raw) if isinstance(following, IPv4Options) else 0
        if name == "ihl":
            return len(layer.raw) + options
        if name == "total_length":
            return length
        if name == "protocol":
            return next((_PROTOCOLS[n] for n in (type(l).__name__ for l in rest[:2]) if n in _PROTOCOLS), None)
        return _roce.ipv4_checksum(bytes(layer.raw) + (bytes(following.raw) if options and following else b""))
    if isinstance(layer, IPv6):
        return behind if name == "payload_length" else _PROTOCOLS.get(next_name)
    if isinstance(layer, MAD):
        return _CM_ATTRIBUTES.get(next_name)
    if isinstance(layer, LRH):
        return {"pkt_len": length, "lnh": 3 if isinstance(following, GRH) else 2}[name]
    return {"length": length, "payload_length": behind}.get(name)


_DEFAULTS: dict[str, dict[str, Any]] = {
    "IPv4": {"version": 4, "ihl": 20, "ttl": 64, "df": True},
    "IPv6": {"version": 6, "hop_limit": 64},
    "GRH": {"version": 6, "next_header": 0x1B, "hop_limit": 64},
    "UDP": {"source_port": 0xC000, "destination_port": 4791},
    "BTH": {"p_key": 0xFFFF, "mig_req": True},
    "MAD": {"base_version": 1, "mgmt_class": 7, "class_version": 2, "method": 3},
    "IpCm": {"ip_version": 4},
    "Pause": {"opcode": 0x0001},
    "PFC": {"opcode": 0x0101},
}

_COMPUTED: dict[str, tuple[str, ...]] = {
    "Ethernet": ("type",),
    "VLAN": ("type",),
    "ServiceVLAN": ("type",),
    # The checksum is the last, because it covers the others.
    "IPv4": ("ihl", "total_length", "protocol", "header_checksum"),
    "IPv6": ("payload_length", "next_header"),
    "GRH": ("payload_length",),
    "LRH": ("pkt_len", "lnh"),
    "UDP": ("length",),
    "BTH": ("pad_count",),
    "MAD": ("attribute_id",),
    "ICRC": ("value",),
}


def _layer_class(header: _roce.Header) -> type[Layer]:
    """Creates the class of a header."""
    name = header.class_name
    rows = [f"    {attribute}: {header.fields[indexes[0]].meaning}" for attribute, indexes in _attributes(header).items()]
    body = {
        "__doc__": f"{header.title[:1].upper()}{header.title[1:]} ({header.rule}).\n\n{header.purpose}\n\n" + "\n".join(rows),
        "__module__": __name__,
        "__slots__": (),
        "header": header,
        "_indexes": _attributes(header),
        "_defaults": _DEFAULTS.get(name, {}),
        "_computed": _COMPUTED.get(name, ()),
    }
    return type(name, (_Opcode if name == "BTH" else Layer,), body)


class _Opcode(Layer):
    """A header whose field `opcode` may be given as a name of `OPCODES`."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "opcode" and isinstance(value, str):
            if value not in OPCODES:
                raise ValueError(f"{value!r} is not an opcode; roce.layers.OPCODES has all names")
            value = OPCODES[value]
        super().__setattr__(name, value)

    @property
    def opcode_name(self) -> str | None:
        """The name of the opcode in `OPCODES`; `None` if it is not assigned."""
        return next((name for name, number in OPCODES.items() if number == self.opcode), None)


_CLASSES: dict[str, type[Layer]] = {header.class_name: _layer_class(header) for header in _roce.headers()}
globals().update(_CLASSES)

__all__ = ["OPCODES", "Layer", "Packet", "from_scapy", "icrc", "parse", "to_scapy", *_CLASSES]
