# Written by libs/python/stubs from the tables of the crate roce-packet.
"""Headers of RoCE packets, in the style of scapy."""

from typing import Any, ClassVar, Iterable, Iterator

from . import _roce

OPCODES: dict[str, int]

class Layer:
    header: ClassVar[_roce.Header]
    raw: bytearray
    is_outer: bool
    def __init__(self, raw: bytes | None = None, /, **values: Any) -> None: ...
    @classmethod
    def names(cls) -> list[str]: ...
    def fields(self) -> dict[str, Any]: ...
    def note(self, name: str) -> str: ...
    def copy(self) -> Layer: ...
    def __truediv__(self, other: Layer | Packet | bytes) -> Packet: ...
    def __rtruediv__(self, other: bytes) -> Packet: ...
    def __bytes__(self) -> bytes: ...
    def __len__(self) -> int: ...

class Packet:
    layers: list[Layer]
    link: str
    def __init__(self, layers: Iterable[Layer] = (), link: str | None = None) -> None: ...
    def __truediv__(self, other: Layer | Packet | bytes) -> Packet: ...
    def __getitem__(self, key: int | type[Layer]) -> Any: ...
    def get(self, key: type[Layer]) -> Any: ...
    def __contains__(self, key: object) -> bool: ...
    def __iter__(self) -> Iterator[Layer]: ...
    def __len__(self) -> int: ...
    def names(self) -> list[str]: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def error(self) -> str | None: ...
    @property
    def protocol(self) -> str: ...
    @property
    def computed_icrc(self) -> int | None: ...
    @property
    def icrc_ok(self) -> bool | None: ...
    @property
    def unchecked(self) -> str | None: ...
    def refresh(self) -> Packet: ...
    def __bytes__(self) -> bytes: ...
    def show(self) -> None: ...
    def text(self) -> str: ...
    def to_scapy(self) -> Any: ...

def parse(raw: bytes, *, link: str = "ethernet", wire_length: int | None = None, port: int = 4791) -> Packet: ...
def icrc(packet: Packet | bytes, *, link: str | None = None) -> int: ...
def from_scapy(packet: Any) -> Packet: ...
def to_scapy(packet: Packet | Layer) -> Any: ...

class Ethernet(Layer):
    """frame header: Carries the frame over one link; routers replace it and the ICRC does not cover it."""

    destination: str
    source: str
    type: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        destination: str = ...,
        source: str = ...,
        type: int = ...,
    ) -> None: ...

class VLAN(Layer):
    """802.1Q tag: Says which virtual network the frame belongs to, and its priority."""

    pcp: int
    dei: bool
    vid: int
    type: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        pcp: int = ...,
        dei: bool = ...,
        vid: int = ...,
        type: int = ...,
    ) -> None: ...

class ServiceVLAN(Layer):
    """802.1ad service tag: Carries the VLANs of a customer in a VLAN of the provider."""

    pcp: int
    dei: bool
    vid: int
    type: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        pcp: int = ...,
        dei: bool = ...,
        vid: int = ...,
        type: int = ...,
    ) -> None: ...

class MPLS(Layer):
    """label stack entry: Says on which label-switched path the packet travels."""

    label: int
    traffic_class: int
    s: bool
    ttl: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        label: int = ...,
        traffic_class: int = ...,
        s: bool = ...,
        ttl: int = ...,
    ) -> None: ...

class ControlWord(Layer):
    """pseudowire control word: Numbers the Ethernet frames of a pseudowire."""

    reserved: int
    sequence: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        reserved: int = ...,
        sequence: int = ...,
    ) -> None: ...

class IPv4(Layer):
    """Internet Protocol version 4: Carries the packet from host to host; an address is the end of an IPv4-mapped GID."""

    version: int
    ihl: int
    dscp: int
    ecn: int
    total_length: int
    identification: int
    reserved: bool
    df: bool
    mf: bool
    fragment_offset: int
    ttl: int
    protocol: int
    header_checksum: int
    source: str
    destination: str
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        version: int = ...,
        ihl: int = ...,
        dscp: int = ...,
        ecn: int = ...,
        total_length: int = ...,
        identification: int = ...,
        reserved: bool = ...,
        df: bool = ...,
        mf: bool = ...,
        fragment_offset: int = ...,
        ttl: int = ...,
        protocol: int = ...,
        header_checksum: int = ...,
        source: str = ...,
        destination: str = ...,
    ) -> None: ...

class IPv4Options(Layer):
    """IPv4 options: Extends the IPv4 header; RoCE packets have no options."""

    def __init__(
        self,
        raw: bytes | None = None,
        /,
    ) -> None: ...

class IPv6(Layer):
    """Internet Protocol version 6: Carries the packet from host to host; its addresses are the GIDs themselves."""

    version: int
    dscp: int
    ecn: int
    flow_label: int
    payload_length: int
    next_header: int
    hop_limit: int
    source: str
    destination: str
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        version: int = ...,
        dscp: int = ...,
        ecn: int = ...,
        flow_label: int = ...,
        payload_length: int = ...,
        next_header: int = ...,
        hop_limit: int = ...,
        source: str = ...,
        destination: str = ...,
    ) -> None: ...

class HopByHop(Layer):
    """hop-by-hop options: Has options for every router on the way."""

    next_header: int
    length: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        next_header: int = ...,
        length: int = ...,
    ) -> None: ...

class Routing(Layer):
    """routing header: Names routers that the packet has to visit."""

    next_header: int
    length: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        next_header: int = ...,
        length: int = ...,
    ) -> None: ...

class Fragment(Layer):
    """fragment header: Says which part of a fragmented packet this is."""

    next_header: int
    reserved: int
    offset: int
    reserved_2: int
    m: bool
    identification: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        next_header: int = ...,
        reserved: int = ...,
        offset: int = ...,
        reserved_2: int = ...,
        m: bool = ...,
        identification: int = ...,
    ) -> None: ...

class DestinationOptions(Layer):
    """destination options: Has options for the receiver."""

    next_header: int
    length: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        next_header: int = ...,
        length: int = ...,
    ) -> None: ...

class Authentication(Layer):
    """IP authentication header: Authenticates the packet between two hosts or gateways."""

    next_header: int
    length: int
    reserved: int
    spi: int
    sequence: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        next_header: int = ...,
        length: int = ...,
        reserved: int = ...,
        spi: int = ...,
        sequence: int = ...,
    ) -> None: ...

class GRE(Layer):
    """generic routing encapsulation: Carries a packet of any protocol through an IP network."""

    c: bool
    r: bool
    k: bool
    s: bool
    reserved: int
    version: int
    protocol: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        c: bool = ...,
        r: bool = ...,
        k: bool = ...,
        s: bool = ...,
        reserved: int = ...,
        version: int = ...,
        protocol: int = ...,
    ) -> None: ...

class GREChecksum(Layer):
    """GRE checksum: Protects the GRE header and the packet in it."""

    checksum: int
    reserved: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        checksum: int = ...,
        reserved: int = ...,
    ) -> None: ...

class GREKey(Layer):
    """GRE key: Tells the tunnels between two hosts apart."""

    key: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        key: int = ...,
    ) -> None: ...

class GRESequence(Layer):
    """GRE sequence number: Numbers the packets of a tunnel."""

    sequence: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        sequence: int = ...,
    ) -> None: ...

class ERSPAN2(Layer):
    """mirrored frame: Carries a frame that a switch mirrored to a collector."""

    version: int
    vlan: int
    cos: int
    en: int
    t: bool
    session: int
    reserved: int
    index: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        version: int = ...,
        vlan: int = ...,
        cos: int = ...,
        en: int = ...,
        t: bool = ...,
        session: int = ...,
        reserved: int = ...,
        index: int = ...,
    ) -> None: ...

class ERSPAN3(Layer):
    """mirrored frame: Carries a frame that a switch mirrored to a collector, with the time."""

    version: int
    vlan: int
    cos: int
    bso: int
    t: bool
    session: int
    timestamp: int
    sgt: int
    p: bool
    ft: int
    hw_id: int
    d: bool
    gra: int
    o: bool
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        version: int = ...,
        vlan: int = ...,
        cos: int = ...,
        bso: int = ...,
        t: bool = ...,
        session: int = ...,
        timestamp: int = ...,
        sgt: int = ...,
        p: bool = ...,
        ft: int = ...,
        hw_id: int = ...,
        d: bool = ...,
        gra: int = ...,
        o: bool = ...,
    ) -> None: ...

class VXLAN(Layer):
    """virtual extensible LAN: Carries an Ethernet frame of a virtual network through an IP network."""

    flags: int
    group_policy: int
    vni: int
    reserved: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        flags: int = ...,
        group_policy: int = ...,
        vni: int = ...,
        reserved: int = ...,
    ) -> None: ...

class VXLANGPE(Layer):
    """generic protocol extension for VXLAN: Carries a packet of a virtual network through an IP network."""

    flags: int
    reserved: int
    next_protocol: int
    vni: int
    reserved_2: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        flags: int = ...,
        reserved: int = ...,
        next_protocol: int = ...,
        vni: int = ...,
        reserved_2: int = ...,
    ) -> None: ...

class Geneve(Layer):
    """generic network virtualization encapsulation: Carries a frame of a virtual network, with options, through an IP network."""

    version: int
    option_length: int
    o: bool
    c: bool
    reserved: int
    protocol: int
    vni: int
    reserved_2: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        version: int = ...,
        option_length: int = ...,
        o: bool = ...,
        c: bool = ...,
        reserved: int = ...,
        protocol: int = ...,
        vni: int = ...,
        reserved_2: int = ...,
    ) -> None: ...

class UDP(Layer):
    """User Datagram Protocol: Lets routers forward RoCE v2 and balance it over several paths."""

    source_port: int
    destination_port: int
    length: int
    checksum: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        source_port: int = ...,
        destination_port: int = ...,
        length: int = ...,
        checksum: int = ...,
    ) -> None: ...

class LRH(Layer):
    """local route header: Is layer 2 of native InfiniBand: switches forward by it within a subnet."""

    vl: int
    lver: int
    sl: int
    reserved: int
    lnh: int
    dlid: int
    reserved_2: int
    pkt_len: int
    slid: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        vl: int = ...,
        lver: int = ...,
        sl: int = ...,
        reserved: int = ...,
        lnh: int = ...,
        dlid: int = ...,
        reserved_2: int = ...,
        pkt_len: int = ...,
        slid: int = ...,
    ) -> None: ...

class GRH(Layer):
    """global route header: Is layer 3 of RoCE v1: it has the layout of IPv6, but routers do not forward it."""

    version: int
    traffic_class: int
    flow_label: int
    payload_length: int
    next_header: int
    hop_limit: int
    sgid: str
    dgid: str
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        version: int = ...,
        traffic_class: int = ...,
        flow_label: int = ...,
        payload_length: int = ...,
        next_header: int = ...,
        hop_limit: int = ...,
        sgid: str = ...,
        dgid: str = ...,
    ) -> None: ...

class BTH(Layer):
    """base transport header: Begins every packet: names the operation, the receiving queue pair and the sequence number."""

    opcode: int
    solicited: bool
    mig_req: bool
    pad_count: int
    version: int
    p_key: int
    fecn: bool
    becn: bool
    reserved: int
    dest_qp: int
    ack_req: bool
    reserved_2: int
    psn: int
    @property
    def opcode_name(self) -> str | None: ...
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        opcode: int | str = ...,
        solicited: bool = ...,
        mig_req: bool = ...,
        pad_count: int = ...,
        version: int = ...,
        p_key: int = ...,
        fecn: bool = ...,
        becn: bool = ...,
        reserved: int = ...,
        dest_qp: int = ...,
        ack_req: bool = ...,
        reserved_2: int = ...,
        psn: int = ...,
    ) -> None: ...

class RDETH(Layer):
    """reliable datagram header: Names the end-to-end context that reliable datagrams between two nodes share."""

    reserved: int
    ee_context: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        reserved: int = ...,
        ee_context: int = ...,
    ) -> None: ...

class DETH(Layer):
    """datagram header: Names the queue pair that sent the datagram, and carries the key of the receiving one."""

    q_key: int
    reserved: int
    src_qp: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        q_key: int = ...,
        reserved: int = ...,
        src_qp: int = ...,
    ) -> None: ...

class XRCETH(Layer):
    """extended reliable connection header: Names the receive queue of the peer; many processes share the connection."""

    reserved: int
    xrcsrq: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        reserved: int = ...,
        xrcsrq: int = ...,
    ) -> None: ...

class FETH(Layer):
    """flush header: Says what must have happened to earlier writes before the responder answers."""

    reserved: int
    selectivity: int
    reserved_2: int
    persistence: bool
    global_visibility: bool
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        reserved: int = ...,
        selectivity: int = ...,
        reserved_2: int = ...,
        persistence: bool = ...,
        global_visibility: bool = ...,
    ) -> None: ...

class RETH(Layer):
    """RDMA header: Says which memory of the responder is read or written, and with which key."""

    va: int
    r_key: int
    dma_len: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        va: int = ...,
        r_key: int = ...,
        dma_len: int = ...,
    ) -> None: ...

class AtomicETH(Layer):
    """atomic header: Says which 64-bit value of the responder changes, and how."""

    va: int
    r_key: int
    swap_or_add: int
    compare: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        va: int = ...,
        r_key: int = ...,
        swap_or_add: int = ...,
        compare: int = ...,
    ) -> None: ...

class AETH(Layer):
    """acknowledge header: Says whether a request succeeded, and how many messages the responder has completed."""

    syndrome: int
    reserved: bool
    kind: int
    credits: int | None
    timer: int | None
    nak_code: int | None
    reserved_value: int | None
    msn: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        syndrome: int = ...,
        reserved: bool = ...,
        kind: int = ...,
        credits: int = ...,
        timer: int = ...,
        nak_code: int = ...,
        reserved_value: int = ...,
        msn: int = ...,
    ) -> None: ...

class AtomicAckETH(Layer):
    """atomic acknowledge header: Returns the value that an atomic operation found."""

    original: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        original: int = ...,
    ) -> None: ...

class ImmDt(Layer):
    """immediate data: Carries four bytes to the receiving application, in its completion."""

    data: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        data: int = ...,
    ) -> None: ...

class IETH(Layer):
    """invalidate header: Invalidates a key of the receiver's memory together with a SEND."""

    r_key: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        r_key: int = ...,
    ) -> None: ...

class CNP(Layer):
    """congestion notification: Fills the packet: the arrival of a CNP alone tells the sender of a flow to slow down."""

    reserved: bytes
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        reserved: bytes = ...,
    ) -> None: ...

class MAD(Layer):
    """management datagram header: Begins every management message; RoCE uses them to open and close connections."""

    base_version: int
    mgmt_class: int
    class_version: int
    method: int
    status: int
    class_specific: int
    transaction_id: int
    attribute_id: int
    reserved: int
    attribute_modifier: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        base_version: int = ...,
        mgmt_class: int = ...,
        class_version: int = ...,
        method: int = ...,
        status: int = ...,
        class_specific: int = ...,
        transaction_id: int = ...,
        attribute_id: int = ...,
        reserved: int = ...,
        attribute_modifier: int = ...,
    ) -> None: ...

class MADData(Layer):
    """content of the management datagram: Depends on the class and the attribute."""

    def __init__(
        self,
        raw: bytes | None = None,
        /,
    ) -> None: ...

class CmReq(Layer):
    """request for a connection: Asks a listener for a connection and gives the attributes of the sender's end."""

    local_comm_id: int
    reserved: int
    vendor_id: int
    service_id: int
    local_ca_guid: int
    reserved_2: int
    local_q_key: int
    local_qpn: int
    responder_resources: int
    local_eecn: int
    initiator_depth: int
    remote_eecn: int
    remote_response_timeout: int
    transport_service: int
    flow_control: bool
    starting_psn: int
    local_response_timeout: int
    retry_count: int
    p_key: int
    path_mtu: int
    rdc_exists: bool
    rnr_retry_count: int
    max_cm_retries: int
    srq: bool
    extended_transport: int
    primary_local_lid: int
    primary_remote_lid: int
    primary_local_gid: str
    primary_remote_gid: str
    primary_flow_label: int
    reserved_3: int
    primary_packet_rate: int
    primary_traffic_class: int
    primary_hop_limit: int
    primary_sl: int
    primary_subnet_local: bool
    reserved_4: int
    primary_local_ack_timeout: int
    reserved_5: int
    alternate_path: bytes
    private_data: bytes
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        local_comm_id: int = ...,
        reserved: int = ...,
        vendor_id: int = ...,
        service_id: int = ...,
        local_ca_guid: int = ...,
        reserved_2: int = ...,
        local_q_key: int = ...,
        local_qpn: int = ...,
        responder_resources: int = ...,
        local_eecn: int = ...,
        initiator_depth: int = ...,
        remote_eecn: int = ...,
        remote_response_timeout: int = ...,
        transport_service: int = ...,
        flow_control: bool = ...,
        starting_psn: int = ...,
        local_response_timeout: int = ...,
        retry_count: int = ...,
        p_key: int = ...,
        path_mtu: int = ...,
        rdc_exists: bool = ...,
        rnr_retry_count: int = ...,
        max_cm_retries: int = ...,
        srq: bool = ...,
        extended_transport: int = ...,
        primary_local_lid: int = ...,
        primary_remote_lid: int = ...,
        primary_local_gid: str = ...,
        primary_remote_gid: str = ...,
        primary_flow_label: int = ...,
        reserved_3: int = ...,
        primary_packet_rate: int = ...,
        primary_traffic_class: int = ...,
        primary_hop_limit: int = ...,
        primary_sl: int = ...,
        primary_subnet_local: bool = ...,
        reserved_4: int = ...,
        primary_local_ack_timeout: int = ...,
        reserved_5: int = ...,
        alternate_path: bytes = ...,
        private_data: bytes = ...,
    ) -> None: ...

class IpCm(Layer):
    """rdma_cm header in the private data: Tells the listener the IP addresses and the port of the active side."""

    major_version: int
    minor_version: int
    ip_version: int
    reserved: int
    source_port: int
    source_address: str
    destination_address: str
    private_data: bytes
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        major_version: int = ...,
        minor_version: int = ...,
        ip_version: int = ...,
        reserved: int = ...,
        source_port: int = ...,
        source_address: str = ...,
        destination_address: str = ...,
        private_data: bytes = ...,
    ) -> None: ...

class CmRep(Layer):
    """reply to a request: Accepts the connection and gives the attributes of the sender's end."""

    local_comm_id: int
    remote_comm_id: int
    local_q_key: int
    local_qpn: int
    vendor_id_high: int
    local_eecn: int
    vendor_id_middle: int
    starting_psn: int
    vendor_id_low: int
    responder_resources: int
    initiator_depth: int
    target_ack_delay: int
    failover_accepted: int
    flow_control: bool
    rnr_retry_count: int
    srq: bool
    reserved: int
    local_ca_guid: int
    private_data: bytes
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        local_comm_id: int = ...,
        remote_comm_id: int = ...,
        local_q_key: int = ...,
        local_qpn: int = ...,
        vendor_id_high: int = ...,
        local_eecn: int = ...,
        vendor_id_middle: int = ...,
        starting_psn: int = ...,
        vendor_id_low: int = ...,
        responder_resources: int = ...,
        initiator_depth: int = ...,
        target_ack_delay: int = ...,
        failover_accepted: int = ...,
        flow_control: bool = ...,
        rnr_retry_count: int = ...,
        srq: bool = ...,
        reserved: int = ...,
        local_ca_guid: int = ...,
        private_data: bytes = ...,
    ) -> None: ...

class CmRtu(Layer):
    """ready to use: Completes the handshake: the active side is ready to receive."""

    local_comm_id: int
    remote_comm_id: int
    private_data: bytes
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        local_comm_id: int = ...,
        remote_comm_id: int = ...,
        private_data: bytes = ...,
    ) -> None: ...

class CmRej(Layer):
    """rejection: Refuses a connection, or abandons a handshake."""

    local_comm_id: int
    remote_comm_id: int
    message_rejected: int
    reserved: int
    reject_info_length: int
    reserved_2: int
    reason: int
    additional_information: bytes
    private_data: bytes
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        local_comm_id: int = ...,
        remote_comm_id: int = ...,
        message_rejected: int = ...,
        reserved: int = ...,
        reject_info_length: int = ...,
        reserved_2: int = ...,
        reason: int = ...,
        additional_information: bytes = ...,
        private_data: bytes = ...,
    ) -> None: ...

class CmMra(Layer):
    """message receipt acknowledgement: Says that a message arrived and that the answer takes longer."""

    local_comm_id: int
    remote_comm_id: int
    message: int
    reserved: int
    service_timeout: int
    reserved_2: int
    private_data: bytes
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        local_comm_id: int = ...,
        remote_comm_id: int = ...,
        message: int = ...,
        reserved: int = ...,
        service_timeout: int = ...,
        reserved_2: int = ...,
        private_data: bytes = ...,
    ) -> None: ...

class CmDreq(Layer):
    """request to disconnect: Ends a connection; either side may send it."""

    local_comm_id: int
    remote_comm_id: int
    remote_qpn: int
    reserved: int
    private_data: bytes
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        local_comm_id: int = ...,
        remote_comm_id: int = ...,
        remote_qpn: int = ...,
        reserved: int = ...,
        private_data: bytes = ...,
    ) -> None: ...

class CmDrep(Layer):
    """reply to a disconnect: Confirms that the connection has ended."""

    local_comm_id: int
    remote_comm_id: int
    private_data: bytes
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        local_comm_id: int = ...,
        remote_comm_id: int = ...,
        private_data: bytes = ...,
    ) -> None: ...

class CmLap(Layer):
    """load alternate path: Offers a path to migrate to."""

    local_comm_id: int
    remote_comm_id: int
    reserved: int
    remote_qpn: int
    response_timeout: int
    reserved_2: int
    reserved_3: int
    local_lid: int
    remote_lid: int
    local_gid: str
    remote_gid: str
    flow_label: int
    reserved_4: int
    traffic_class: int
    hop_limit: int
    reserved_5: int
    packet_rate: int
    sl: int
    subnet_local: bool
    reserved_6: int
    local_ack_timeout: int
    reserved_7: int
    private_data: bytes
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        local_comm_id: int = ...,
        remote_comm_id: int = ...,
        reserved: int = ...,
        remote_qpn: int = ...,
        response_timeout: int = ...,
        reserved_2: int = ...,
        reserved_3: int = ...,
        local_lid: int = ...,
        remote_lid: int = ...,
        local_gid: str = ...,
        remote_gid: str = ...,
        flow_label: int = ...,
        reserved_4: int = ...,
        traffic_class: int = ...,
        hop_limit: int = ...,
        reserved_5: int = ...,
        packet_rate: int = ...,
        sl: int = ...,
        subnet_local: bool = ...,
        reserved_6: int = ...,
        local_ack_timeout: int = ...,
        reserved_7: int = ...,
        private_data: bytes = ...,
    ) -> None: ...

class CmApr(Layer):
    """alternate path response: Accepts or refuses the offered path."""

    local_comm_id: int
    remote_comm_id: int
    info_length: int
    status: int
    reserved: int
    additional_information: bytes
    private_data: bytes
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        local_comm_id: int = ...,
        remote_comm_id: int = ...,
        info_length: int = ...,
        status: int = ...,
        reserved: int = ...,
        additional_information: bytes = ...,
        private_data: bytes = ...,
    ) -> None: ...

class CmSidrReq(Layer):
    """request to resolve a service ID: Asks which queue pair receives the datagrams of a service."""

    request_id: int
    p_key: int
    reserved: int
    service_id: int
    private_data: bytes
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        request_id: int = ...,
        p_key: int = ...,
        reserved: int = ...,
        service_id: int = ...,
        private_data: bytes = ...,
    ) -> None: ...

class CmSidrRep(Layer):
    """reply with the queue pair of a service: Gives the queue pair and the Q_Key for datagrams to a service."""

    request_id: int
    status: int
    info_length: int
    reserved: int
    qpn: int
    reserved_2: int
    service_id: int
    q_key: int
    additional_information: bytes
    private_data: bytes
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        request_id: int = ...,
        status: int = ...,
        info_length: int = ...,
        reserved: int = ...,
        qpn: int = ...,
        reserved_2: int = ...,
        service_id: int = ...,
        q_key: int = ...,
        additional_information: bytes = ...,
        private_data: bytes = ...,
    ) -> None: ...

class Payload(Layer):
    """payload: Carries the bytes of the application."""

    def __init__(
        self,
        raw: bytes | None = None,
        /,
    ) -> None: ...

class Padding(Layer):
    """padding: Extends the payload to a multiple of 4 bytes; the ICRC covers it."""

    def __init__(
        self,
        raw: bytes | None = None,
        /,
    ) -> None: ...

class ICRC(Layer):
    """invariant CRC: Protects every field that does not change between the two ends."""

    value: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        value: int = ...,
    ) -> None: ...

class VCRC(Layer):
    """variant CRC: Protects the packet on one link; every switch computes it again."""

    value: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        value: int = ...,
    ) -> None: ...

class Telemetry(Layer):
    """in-band telemetry: Brings the queues of the switches on the way to a congestion control, which keeps them short."""

    echo: bool
    hops: int
    path: int
    hop_1_rate: int
    hop_1_time: int
    hop_1_sent: int
    hop_1_queue: int
    hop_2_rate: int
    hop_2_time: int
    hop_2_sent: int
    hop_2_queue: int
    hop_3_rate: int
    hop_3_time: int
    hop_3_sent: int
    hop_3_queue: int
    hop_4_rate: int
    hop_4_time: int
    hop_4_sent: int
    hop_4_queue: int
    hop_5_rate: int
    hop_5_time: int
    hop_5_sent: int
    hop_5_queue: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        echo: bool = ...,
        hops: int = ...,
        path: int = ...,
        hop_1_rate: int = ...,
        hop_1_time: int = ...,
        hop_1_sent: int = ...,
        hop_1_queue: int = ...,
        hop_2_rate: int = ...,
        hop_2_time: int = ...,
        hop_2_sent: int = ...,
        hop_2_queue: int = ...,
        hop_3_rate: int = ...,
        hop_3_time: int = ...,
        hop_3_sent: int = ...,
        hop_3_queue: int = ...,
        hop_4_rate: int = ...,
        hop_4_time: int = ...,
        hop_4_sent: int = ...,
        hop_4_queue: int = ...,
        hop_5_rate: int = ...,
        hop_5_time: int = ...,
        hop_5_sent: int = ...,
        hop_5_queue: int = ...,
    ) -> None: ...

class Trailer(Layer):
    """bytes behind the packet: Extends short frames to 60 bytes; the ICRC does not cover it."""

    def __init__(
        self,
        raw: bytes | None = None,
        /,
    ) -> None: ...

class Pause(Layer):
    """802.3x pause: Asks the other end of the link to send no frames for a time."""

    opcode: int
    pause_time: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        opcode: int = ...,
        pause_time: int = ...,
    ) -> None: ...

class PFC(Layer):
    """priority flow control: Asks the other end of the link to pause some priorities, so that their frames are not lost."""

    opcode: int
    reserved: int
    enabled_7: bool
    enabled_6: bool
    enabled_5: bool
    enabled_4: bool
    enabled_3: bool
    enabled_2: bool
    enabled_1: bool
    enabled_0: bool
    time_0: int
    time_1: int
    time_2: int
    time_3: int
    time_4: int
    time_5: int
    time_6: int
    time_7: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        opcode: int = ...,
        reserved: int = ...,
        enabled_7: bool = ...,
        enabled_6: bool = ...,
        enabled_5: bool = ...,
        enabled_4: bool = ...,
        enabled_3: bool = ...,
        enabled_2: bool = ...,
        enabled_1: bool = ...,
        enabled_0: bool = ...,
        time_0: int = ...,
        time_1: int = ...,
        time_2: int = ...,
        time_3: int = ...,
        time_4: int = ...,
        time_5: int = ...,
        time_6: int = ...,
        time_7: int = ...,
    ) -> None: ...

class ERF(Layer):
    """extensible record format: Precedes each packet in the files of some capture cards."""

    timestamp: bytes
    extension: bool
    type: int
    flags: int
    record_length: int
    loss_counter: int
    wire_length: int
    def __init__(
        self,
        raw: bytes | None = None,
        /,
        *,
        timestamp: bytes = ...,
        extension: bool = ...,
        type: int = ...,
        flags: int = ...,
        record_length: int = ...,
        loss_counter: int = ...,
        wire_length: int = ...,
    ) -> None: ...

class ERFExtensions(Layer):
    """extension headers and padding: Extends the header of the record; two bytes align the addresses behind an Ethernet header."""

    def __init__(
        self,
        raw: bytes | None = None,
        /,
    ) -> None: ...
