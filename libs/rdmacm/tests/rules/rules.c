/* Prints what rdma_cm answers for every kind of address, one line for each case: `network.sh` makes the network, `table` holds what a
 * kernel answers. A device is named by the interface that has its address, a port that was not asked for is `chosen`.
 *
 *   rules            every case
 *   rules PART       only the cases whose line contains PART
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROOM = 160, LONGEST_LINE = 1024, GIVEN_PORT = 7400, TIMEOUT_MS = 700, PATIENCE_MS = 10000 };

static const char *part = "";


/* Lines are printed whole, so that two runs can be compared by their lines. */
static char line[LONGEST_LINE];

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    size_t used = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + used, sizeof(line) - used, format, arguments);
    va_end(arguments);
}

static void end_line(void) {
    puts(line);
    fflush(stdout);
    line[0] = 0;
}

static const char *error_name(int number) {
    const char *name = strerrorname_np(number);
    return name ? name : "?";
}

/* The answer of a call: `ok`, or the name of the error. */
static const char *answer(int returned) {
    return returned ? error_name(errno) : "ok";
}

/* `text` is ADDRESS, ADDRESS%INTERFACE, each with `;PORT` behind it if the port is not 0; `null` is a null pointer, `none` no family, `unix`
 * another one. */
static struct sockaddr *parse(const char *text, struct sockaddr_storage *room) {
    char copy[ROOM];
    memset(room, 0, sizeof(*room));
    snprintf(copy, sizeof(copy), "%s", text);
    if (!strcmp(copy, "null"))
        return NULL;
    char *port = strchr(copy, ';');
    if (port)
        *port++ = 0;
    char *scope = strchr(copy, '%');
    if (scope)
        *scope++ = 0;
    struct sockaddr_in *v4 = (void *)room;
    struct sockaddr_in6 *v6 = (void *)room;
    if (inet_pton(AF_INET, copy, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port ? atoi(port) : 0);
    } else if (inet_pton(AF_INET6, copy, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port ? atoi(port) : 0);
        if (scope)
            v6->sin6_scope_id = atoi(scope) ? (unsigned)atoi(scope) : if_nametoindex(scope);
    } else {
        room->ss_family = strcmp(copy, "unix") ? AF_UNSPEC : AF_UNIX;
    }
    return (void *)room;
}

/* The interface that has an address of a device. */
static const char *interface_of(struct ibv_context *device) {
    static char name[IF_NAMESIZE];
    struct ifaddrs *all, *each;
    if (!device)
        return "-";
    if (getifaddrs(&all))
        return "?";
    snprintf(name, sizeof(name), "?");
    for (int index = 0; index < 8 && !strcmp(name, "?"); index++) {
        union ibv_gid gid;
        if (ibv_query_gid(device, 1, index, &gid))
            break;
        for (each = all; each; each = each->ifa_next) {
            union ibv_gid own = {.raw = {[10] = 0xff, [11] = 0xff}};
            if (!each->ifa_addr)
                continue;
            if (each->ifa_addr->sa_family == AF_INET)
                memcpy(own.raw + 12, &((struct sockaddr_in *)each->ifa_addr)->sin_addr, 4);
            else if (each->ifa_addr->sa_family == AF_INET6)
                memcpy(own.raw, &((struct sockaddr_in6 *)each->ifa_addr)->sin6_addr, 16);
            else
                continue;
            if (!memcmp(&own, &gid, sizeof(gid)))
                snprintf(name, sizeof(name), "%s", each->ifa_name);
        }
    }
    freeifaddrs(all);
    return name;
}

static void say_address(const struct sockaddr *address) {
    char text[INET6_ADDRSTRLEN] = "";
    int port = 0;
    unsigned scope = 0;
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)address;
        inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
        port = ntohs(v4->sin_port);
    } else if (address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)address;
        inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
        port = ntohs(v6->sin6_port);
        scope = v6->sin6_scope_id;
    } else {
        say("-");
        return;
    }
    char name[IF_NAMESIZE] = "?";
    say("%s", text);
    if (scope)
        say("%%%s", if_indextoname(scope, name) ? name : "?");
    if (port == 0 || port == GIVEN_PORT)
        say(";%d", port);
    else
        say(";chosen");
}

/* What an identifier shows. */
static void say_id(const struct rdma_cm_id *id) {
    say(" dev=%s port=%d src=", interface_of(id->verbs), id->port_num);
    say_address(&id->route.addr.src_addr);
    say(" dst=");
    say_address(&id->route.addr.dst_addr);
}

static struct rdma_event_channel *new_channel(void) {
    struct rdma_event_channel *channel = rdma_create_event_channel();
    if (!channel) {
        perror("rdma_create_event_channel");
        exit(2);
    }
    return channel;
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *channel, enum rdma_port_space space) {
    struct rdma_cm_id *id;
    if (rdma_create_id(channel, &id, NULL, space)) {
        perror("rdma_create_id");
        exit(2);
    }
    return id;
}

/* The next event of a channel, or a null pointer if none comes. */
static struct rdma_cm_event *next_event(struct rdma_event_channel *channel, int patience) {
    struct pollfd wait = {.fd = channel->fd, .events = POLLIN};
    struct rdma_cm_event *event;
    if (poll(&wait, 1, patience) != 1 || rdma_get_cm_event(channel, &event))
        return NULL;
    return event;
}

static bool is_wanted(void) {
    if (strstr(line, part))
        return true;
    line[0] = 0;
    return false;
}

static const char *space_name(enum rdma_port_space space) {
    return space == RDMA_PS_TCP ? "tcp" : space == RDMA_PS_UDP ? "udp" : space == RDMA_PS_IB ? "ib" : "ipoib";
}

/* rdma_bind_addr, and rdma_listen on what is bound. */
static void bind_case(enum rdma_port_space space, const char *text) {
    struct sockaddr_storage room;
    say("bind %s %s ->", space_name(space), text);
    if (!is_wanted())
        return;
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *id = new_id(channel, space);
    int bound = rdma_bind_addr(id, parse(text, &room));
    say(" %s", answer(bound));
    say_id(id);
    say(" pd=%s", id->pd ? "yes" : "no");
    if (!bound) {
        say(", again %s", answer(rdma_bind_addr(id, parse(text, &room))));
        int listening = rdma_listen(id, 4);
        say(", listen %s", answer(listening));
        say_id(id);
    }
    end_line();
    rdma_destroy_id(id);
    rdma_destroy_event_channel(channel);
}

/* rdma_listen on an identifier that is not bound, and twice. */
static void listen_case(enum rdma_port_space space) {
    say("listen %s without an address ->", space_name(space));
    if (!is_wanted())
        return;
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *id = new_id(channel, space);
    say(" %s", answer(rdma_listen(id, 4)));
    say_id(id);
    say(", again %s", answer(rdma_listen(id, 4)));
    end_line();
    rdma_destroy_id(id);
    rdma_destroy_event_channel(channel);
}

/* `bound`: what the identifier is bound to before, or `no`. Resolves the address, then the route. */
static void resolve_case(enum rdma_port_space space, const char *bound, const char *from, const char *to) {
    struct sockaddr_storage own, peer;
    say("resolve %s bound=%s from=%s to=%s ->", space_name(space), bound, from, to);
    if (!is_wanted())
        return;
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *id = new_id(channel, space);
    if (strcmp(bound, "no"))
        say(" bind %s,", answer(rdma_bind_addr(id, parse(bound, &own))));
    int resolved = rdma_resolve_addr(id, parse(from, &own), parse(to, &peer), TIMEOUT_MS);
    say(" %s", answer(resolved));
    bool goes_on = false;
    if (!resolved) {
        struct rdma_cm_event *event = next_event(channel, PATIENCE_MS);
        if (event) {
            say(" %s %s", rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_"), event->status ? error_name(-event->status) : "ok");
            goes_on = event->event == RDMA_CM_EVENT_ADDR_RESOLVED;
            rdma_ack_cm_event(event);
        } else {
            say(" no event");
        }
    }
    say_id(id);
    if (goes_on) {
        char gid[INET6_ADDRSTRLEN];
        say(" sgid=%s", inet_ntop(AF_INET6, &id->route.addr.addr.ibaddr.sgid, gid, sizeof(gid)));
        say(" dgid=%s", inet_ntop(AF_INET6, &id->route.addr.addr.ibaddr.dgid, gid, sizeof(gid)));
        int routed = rdma_resolve_route(id, TIMEOUT_MS);
        say(", route %s", answer(routed));
        struct rdma_cm_event *event = routed ? NULL : next_event(channel, PATIENCE_MS);
        if (event) {
            say(" %s %s", rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_"), event->status ? error_name(-event->status) : "ok");
            rdma_ack_cm_event(event);
        }
        say(" paths=%d", id->route.num_paths);
        if (id->route.num_paths) {
            say(" %s", inet_ntop(AF_INET6, &id->route.path_rec->sgid, gid, sizeof(gid)));
            say(" %s", inet_ntop(AF_INET6, &id->route.path_rec->dgid, gid, sizeof(gid)));
        }
        say_id(id);
    }
    end_line();
    rdma_destroy_id(id);
    rdma_destroy_event_channel(channel);
}

/* Options of an identifier: r for a port that is shared, o for one family only, l for one that listens. */
static void set_options(struct rdma_cm_id *id, const char *options) {
    int yes = 1;
    if (strchr(options, 'r') && rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof(yes)))
        say(" reuse %s", error_name(errno));
    if (strchr(options, 'o') && rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &yes, sizeof(yes)))
        say(" only %s", error_name(errno));
}

/* Two identifiers and one port. */
static void conflict_case(const char *first, const char *first_options, const char *second, const char *second_options) {
    struct sockaddr_storage room;
    char text[ROOM];
    say("port of %s/%s then %s/%s ->", first, first_options, second, second_options);
    if (!is_wanted())
        return;
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *ids[2] = {new_id(channel, RDMA_PS_TCP), new_id(channel, RDMA_PS_TCP)};
    const char *addresses[2] = {first, second}, *options[2] = {first_options, second_options};
    for (int index = 0; index < 2; index++) {
        snprintf(text, sizeof(text), "%s;%d", addresses[index], GIVEN_PORT);
        set_options(ids[index], options[index]);
        int bound = rdma_bind_addr(ids[index], parse(text, &room));
        say("%s %s", index ? "," : "", answer(bound));
        if (!bound && strchr(options[index], 'l'))
            say(" listen %s", answer(rdma_listen(ids[index], 4)));
    }
    end_line();
    rdma_destroy_id(ids[0]);
    rdma_destroy_id(ids[1]);
    rdma_destroy_event_channel(channel);
}

/* What a listener at one address gets of a client that connects to another one. */
static void connect_case(const char *listener_address, const char *options, const char *from, const char *to) {
    struct sockaddr_storage room, own, peer;
    char text[ROOM], target[ROOM];
    say("connect listener=%s/%s from=%s to=%s ->", listener_address, options, from, to);
    if (!is_wanted())
        return;
    struct rdma_event_channel *channel = new_channel(), *client_channel = new_channel();
    struct rdma_cm_id *listener = new_id(channel, RDMA_PS_TCP), *client = new_id(client_channel, RDMA_PS_TCP);
    struct rdma_cm_event *event;
    struct rdma_conn_param parameters = {.retry_count = 7, .rnr_retry_count = 7, .qp_num = 0x17};
    snprintf(text, sizeof(text), "%s;%d", listener_address, GIVEN_PORT);
    snprintf(target, sizeof(target), "%s;%d", to, GIVEN_PORT);
    set_options(listener, options);
    if (rdma_bind_addr(listener, parse(text, &room)) || rdma_listen(listener, 4)) {
        say(" no listener %s", error_name(errno));
        goto out;
    }
    if (rdma_resolve_addr(client, parse(from, &own), parse(target, &peer), TIMEOUT_MS) || !(event = next_event(client_channel, PATIENCE_MS))) {
        say(" not resolved %s", error_name(errno));
        goto out;
    }
    bool goes_on = event->event == RDMA_CM_EVENT_ADDR_RESOLVED;
    say(" %s", goes_on ? "resolved" : error_name(-event->status));
    rdma_ack_cm_event(event);
    if (!goes_on || rdma_resolve_route(client, TIMEOUT_MS) || !(event = next_event(client_channel, PATIENCE_MS)))
        goto out;
    rdma_ack_cm_event(event);
    if (rdma_connect(client, &parameters)) {
        say(" connect %s", error_name(errno));
        goto out;
    }
    struct pollfd wait[2] = {{.fd = channel->fd, .events = POLLIN}, {.fd = client_channel->fd, .events = POLLIN}};
    if (poll(wait, 2, PATIENCE_MS) <= 0) {
        say(" no event");
    } else if (wait[0].revents && (event = next_event(channel, 0))) {
        struct rdma_cm_id *request = event->id;
        say(" request");
        say_id(request);
        say(" client");
        say_id(client);
        rdma_ack_cm_event(event);
        rdma_reject(request, NULL, 0);
        rdma_destroy_id(request);
    } else if ((event = next_event(client_channel, 0))) {
        say(" client %s %d", rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_"), event->status);
        rdma_ack_cm_event(event);
    }
out:
    end_line();
    rdma_destroy_id(client);
    rdma_destroy_id(listener);
    rdma_destroy_event_channel(client_channel);
    rdma_destroy_event_channel(channel);
}

/* rdma_getaddrinfo, and rdma_create_ep with what it gives. `hint` is an address in the hints, on the side that `passive` says. */
static void endpoint_case(const char *node, const char *service, int flags, int family, int qp_type, int space, const char *hint) {
    struct sockaddr_storage room;
    struct rdma_addrinfo hints = {.ai_flags = flags, .ai_family = family, .ai_qp_type = qp_type, .ai_port_space = space}, *found;
    struct rdma_cm_id *id;
    say("endpoint node=%s service=%s flags=%d family=%d type=%d space=%x hint=%s ->", node ? node : "null", service ? service : "null", flags,
        family, qp_type, space, hint ? hint : "null");
    if (!is_wanted())
        return;
    struct sockaddr *address = hint ? parse(hint, &room) : NULL;
    socklen_t length = !hint ? 0 : room.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    if (flags & RAI_PASSIVE)
        hints.ai_src_addr = address, hints.ai_src_len = length;
    else
        hints.ai_dst_addr = address, hints.ai_dst_len = length;
    int looked_up = rdma_getaddrinfo(node, service, &hints, &found);
    if (looked_up) {
        say(" %s", looked_up == -1 ? error_name(errno) : gai_strerror(looked_up));
        end_line();
        return;
    }
    say(" flags=%d family=%d type=%d space=%x src=", found->ai_flags, found->ai_family, found->ai_qp_type, found->ai_port_space);
    if (found->ai_src_addr)
        say_address(found->ai_src_addr);
    say(" dst=");
    if (found->ai_dst_addr)
        say_address(found->ai_dst_addr);
    int made = rdma_create_ep(&id, found, NULL, NULL);
    say(", ep %s", answer(made));
    if (!made) {
        say_id(id);
        if (flags & RAI_PASSIVE) {
            say(", listen %s", answer(rdma_listen(id, 4)));
            say_id(id);
        }
        rdma_destroy_ep(id);
    }
    end_line();
    rdma_freeaddrinfo(found);
}

static const char *const ADDRESSES[] = {
    "0.0.0.0", "0.0.0.0;7400", "::", "::;7400", "127.0.0.1", "127.0.0.1;7400", "127.0.0.2", "127.83.0.9", "::1", "::1;7400",
    "::ffff:0.0.0.0", "::ffff:127.0.0.1", "::ffff:198.18.1.1", "::ffff:198.18.3.1", "::198.18.1.1",
    "198.18.1.1", "198.18.1.1;7400", "198.18.1.2", "198.18.2.1", "198.18.3.1", "198.18.4.1", "198.18.1.9", "198.18.9.9",
    "2001:db8:1::1", "2001:db8:1::1;7400", "2001:db8:2::1", "2001:db8:3::1", "2001:db8:9::9",
    "fe80::1:1", "fe80::1:1%a0", "fe80::1:1%b0", "fe80::1:1%999", "fe80::2:1%b0", "fe80::3:1%c0", "2001:db8:1::1%a0", "2001:db8:1::1%b0",
    "239.1.1.1", "255.255.255.255", "198.18.1.255", "198.18.1.0", "ff02::1", "ff02::1%a0", "ff15::1", "0.0.0.1", "240.0.0.1",
    "null", "none", "unix",
};

static const char *const PEERS[] = {
    "198.18.1.9;7400", "198.18.2.9;7400", "198.18.3.9;7400", "198.18.9.9;7400", "198.18.1.9", "198.18.1.1;7400", "198.18.1.2;7400",
    "198.18.2.1;7400", "198.18.3.1;7400", "198.18.4.1;7400", "127.0.0.1;7400", "127.0.0.2;7400", "0.0.0.0;7400",
    "2001:db8:1::9;7400", "2001:db8:2::9;7400", "2001:db8:3::9;7400", "2001:db8:9::9;7400", "2001:db8:1::1;7400", "2001:db8:2::1;7400",
    "2001:db8:3::1;7400", "::1;7400", "::;7400", "::ffff:198.18.1.9;7400", "::ffff:198.18.1.1;7400", "::ffff:127.0.0.1;7400",
    "fe80::1:9;7400", "fe80::1:9%a0;7400", "fe80::2:9%b0;7400", "fe80::3:9%c0;7400", "fe80::1:1%a0;7400", "fe80::1:9%999;7400",
    "239.1.1.1;7400", "255.255.255.255;7400", "198.18.1.255;7400", "ff02::1;7400", "ff02::1%a0;7400", "ff15::1;7400", "none", "unix", "null",
};

/* Sources for each of the destinations below. */
static const char *const SOURCES[] = {
    "0.0.0.0", "0.0.0.0;7400", "127.0.0.1", "198.18.1.1", "198.18.1.1;7400", "198.18.1.2", "198.18.2.1", "198.18.3.1", "198.18.9.9",
    "::", "::1", "2001:db8:1::1", "2001:db8:2::1", "2001:db8:3::1", "fe80::1:1%a0", "::ffff:198.18.1.1", "none",
};
static const char *const DESTINATIONS[] = {"198.18.1.9;7400", "198.18.2.9;7400", "127.0.0.1;7400", "198.18.1.1;7400", "2001:db8:1::9;7400", "::1;7400"};

/* Addresses and options for two that want one port. */
static const char *const ENDS[] = {"0.0.0.0", "::", "127.0.0.1", "::1", "198.18.1.1", "198.18.2.1", "2001:db8:1::1"};

#define COUNT(list) (int)(sizeof(list) / sizeof((list)[0]))

static void conflict_cases(void) {
    static const char *const OPTIONS[][2] = {{"", ""}, {"r", "r"}, {"", "r"}, {"r", ""}, {"l", "l"}, {"rl", "rl"}, {"l", "rl"}, {"rl", "r"}};
    for (int options = 0; options < COUNT(OPTIONS); options++)
        for (int first = 0; first < COUNT(ENDS); first++)
            for (int second = 0; second < COUNT(ENDS); second++)
                conflict_case(ENDS[first], OPTIONS[options][0], ENDS[second], OPTIONS[options][1]);
    /* One family only. */
    static const char *const ONLY[][4] = {
        {"::", "o", "0.0.0.0", ""},      {"::", "ol", "0.0.0.0", "l"},      {"0.0.0.0", "", "::", "o"},     {"0.0.0.0", "l", "::", "ol"},
        {"0.0.0.0", "ol", "::", "l"},    {"::", "l", "0.0.0.0", "ol"},      {"::", "o", "198.18.1.1", ""},  {"198.18.1.1", "", "::", "o"},
        {"::", "ol", "198.18.1.1", "l"}, {"::", "ol", "2001:db8:1::1", ""}, {"2001:db8:1::1", "", "::", "o"},
    };
    for (int index = 0; index < COUNT(ONLY); index++)
        conflict_case(ONLY[index][0], ONLY[index][1], ONLY[index][2], ONLY[index][3]);
}

static void connect_cases(void) {
    static const char *const LISTENERS[][2] = {
        {"0.0.0.0", ""}, {"::", ""}, {"::", "o"}, {"127.0.0.1", ""}, {"::1", ""}, {"198.18.1.1", ""}, {"198.18.2.1", ""}, {"2001:db8:1::1", ""},
    };
    static const char *const TARGETS[] = {"127.0.0.1", "::1", "198.18.1.1", "198.18.1.2", "198.18.2.1", "2001:db8:1::1"};
    for (int listener = 0; listener < COUNT(LISTENERS); listener++)
        for (int target = 0; target < COUNT(TARGETS); target++)
            connect_case(LISTENERS[listener][0], LISTENERS[listener][1], "null", TARGETS[target]);
    connect_case("0.0.0.0", "", "198.18.1.1", "127.0.0.1");
    connect_case("0.0.0.0", "", "127.0.0.1", "127.0.0.1");
    connect_case("0.0.0.0", "", "198.18.1.1", "198.18.1.1");
    connect_case("0.0.0.0", "", "198.18.1.2", "198.18.1.1");
}

static void endpoint_cases(void) {
    static const char *const NODES[] = {"127.0.0.1", "198.18.1.1", "198.18.1.9", "198.18.3.1", "::1", "2001:db8:1::1", "0.0.0.0"};
    for (int passive = 0; passive < 2; passive++) {
        int flags = passive ? RAI_PASSIVE : 0;
        for (int node = 0; node < COUNT(NODES); node++) {
            endpoint_case(NODES[node], "7400", flags, 0, 0, RDMA_PS_TCP, NULL);
            endpoint_case(NODES[node], NULL, flags, 0, 0, RDMA_PS_TCP, NULL);
        }
        endpoint_case(NULL, "7400", flags, 0, 0, RDMA_PS_TCP, NULL);
        endpoint_case(NULL, "7400", flags, 0, IBV_QPT_UD, RDMA_PS_UDP, NULL);
        endpoint_case(NULL, "7400", flags | RAI_FAMILY, AF_INET, 0, RDMA_PS_TCP, NULL);
        endpoint_case(NULL, "7400", flags | RAI_FAMILY, AF_INET6, 0, RDMA_PS_TCP, NULL);
        endpoint_case("198.18.1.1", "7400", flags | RAI_FAMILY, AF_INET6, 0, RDMA_PS_TCP, NULL);
        endpoint_case("198.18.1.1", "7400", flags | RAI_NUMERICHOST, 0, 0, RDMA_PS_UDP, NULL);
        endpoint_case("198.18.1.1", "7400", flags, 0, IBV_QPT_UD, RDMA_PS_IPOIB, NULL);
        endpoint_case("198.18.1.1", "7400", flags, 0, IBV_QPT_RC, RDMA_PS_IB, NULL);
        endpoint_case("198.18.1.1", "7400", flags, 0, IBV_QPT_UC, RDMA_PS_TCP, NULL);
        endpoint_case("198.18.1.1", "7400", flags, 0, 0, 0, NULL);
        endpoint_case("not a name", "7400", flags | RAI_NUMERICHOST, 0, 0, RDMA_PS_TCP, NULL);
        endpoint_case(NULL, NULL, flags, 0, IBV_QPT_RC, RDMA_PS_TCP, "198.18.1.1;7400");
        endpoint_case(NULL, NULL, flags, AF_INET, IBV_QPT_RC, RDMA_PS_TCP, "198.18.1.1;7400");
        endpoint_case(NULL, NULL, flags, AF_INET, IBV_QPT_RC, RDMA_PS_TCP, NULL);
    }
}

int main(int argc, char **argv) {
    static const enum rdma_port_space SPACES[] = {RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IPOIB, RDMA_PS_IB};
    if (argc > 1)
        part = argv[1];
    for (int index = 0; index < COUNT(ADDRESSES); index++)
        bind_case(RDMA_PS_TCP, ADDRESSES[index]);
    for (int space = 1; space < COUNT(SPACES); space++)
        for (int index = 0; index < COUNT(ENDS); index++)
            bind_case(SPACES[space], ENDS[index]);
    for (int space = 0; space < COUNT(SPACES); space++)
        listen_case(SPACES[space]);
    for (int index = 0; index < COUNT(PEERS); index++)
        resolve_case(RDMA_PS_TCP, "no", "null", PEERS[index]);
    for (int space = 1; space < COUNT(SPACES); space++)
        resolve_case(SPACES[space], "no", "null", "198.18.1.9;7400");
    for (int to = 0; to < COUNT(DESTINATIONS); to++)
        for (int from = 0; from < COUNT(SOURCES); from++)
            resolve_case(RDMA_PS_TCP, "no", SOURCES[from], DESTINATIONS[to]);
    for (int to = 0; to < COUNT(DESTINATIONS); to++)
        for (int bound = 0; bound < COUNT(SOURCES); bound++)
            resolve_case(RDMA_PS_TCP, SOURCES[bound], "null", DESTINATIONS[to]);
    resolve_case(RDMA_PS_TCP, "198.18.1.1", "198.18.1.1", "198.18.1.9;7400");
    resolve_case(RDMA_PS_TCP, "198.18.1.1", "198.18.2.1", "198.18.1.9;7400");
    resolve_case(RDMA_PS_TCP, "0.0.0.0;7400", "198.18.1.1", "198.18.1.9;7400");
    resolve_case(RDMA_PS_TCP, "127.0.0.1;7400", "198.18.1.1", "198.18.1.9;7400");
    conflict_cases();
    connect_cases();
    endpoint_cases();
    return 0;
}
