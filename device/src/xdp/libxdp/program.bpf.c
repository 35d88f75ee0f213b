// The program of the backend libxdp: RoCE for this host goes to the socket, everything else to the programs behind it
// and to the kernel. What it takes is what `../program.rs` takes; libxdp can put only programs with type information
// (BTF) beside others, which takes a compiler. Nothing is included, so that building needs no headers.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define VALUE(name, value) int (*name)[value]

struct xdp_md {
    u32 data;
    u32 data_end;
    u32 data_meta;
    u32 ingress_ifindex;
    u32 rx_queue_index;
    u32 egress_ifindex;
};

enum { MAP_TYPE_ARRAY = 2, MAP_TYPE_XSKMAP = 17 };

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const redirect_map)(void *map, u64 key, u64 otherwise) = (void *)51;

enum { XDP_PASS = 2 };

// From queues to sockets; as long as libxdp's own program allows.
struct {
    VALUE(type, MAP_TYPE_XSKMAP);
    VALUE(key_size, 4);
    VALUE(value_size, 4);
    VALUE(max_entries, 64);
} sockets SEC(".maps");

// The address of the interface.
struct {
    VALUE(type, MAP_TYPE_ARRAY);
    VALUE(key_size, 4);
    VALUE(value_size, 8);
    VALUE(max_entries, 1);
} own_address SEC(".maps");

static inline u16 number(const u8 *at) { return at[0] << 8 | at[1]; }

static inline int is_for_us(const u8 *destination)
{
    u32 first = 0;
    const u8 *own = map_lookup(&own_address, &first);
    if (destination[0] & 1)
        return 1;
    return own && destination[0] == own[0] && destination[1] == own[1] && destination[2] == own[2] &&
           destination[3] == own[3] && destination[4] == own[4] && destination[5] == own[5];
}

static inline int is_roce(const u8 *at, const u8 *end)
{
    if (at + 14 > end || !is_for_us(at))
        return 0;
    if (number(at + 12) == 0x8100)
        at += 4;
    if (at + 14 > end)
        return 0;
    switch (number(at + 12)) {
    case 0x8915:
    case 0x8808:
        return 1;
    case 0x0800:
        return at + 14 + 20 + 8 <= end && at[14] == 0x45 && !(number(at + 20) & 0x3fff) && at[23] == 17 &&
               number(at + 14 + 20 + 2) == 4791;
    case 0x86dd:
        return at + 14 + 40 + 8 <= end && at[20] == 17 && number(at + 14 + 40 + 2) == 4791;
    }
    return 0;
}

SEC("xdp.frags")
int roce_frames(struct xdp_md *context)
{
    const u8 *start = (const u8 *)(long)context->data, *end = (const u8 *)(long)context->data_end;
    return is_roce(start, end) ? redirect_map(&sockets, context->rx_queue_index, XDP_PASS) : XDP_PASS;
}

char licence[] SEC("license") = "Dual MIT/GPL";
