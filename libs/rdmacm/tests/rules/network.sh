# The network in which `rules.c` runs, the same in the guest and here: a0 and b0 are interfaces with a device, c0 is one without.
# Neighbours ending in 9 are permanent, so that nobody has to answer for them.
set -e
number=1
for name in a b c; do
    ip link add "${name}0" address "02:00:00:00:0$number:01" mtu 4200 type veth peer name "${name}1"
    for end in 0 1; do
        echo 0 >"/proc/sys/net/ipv6/conf/$name$end/accept_dad"
        # Or there is an address for a moment.
        ip link set "$name$end" addrgenmode none
        ip link set "$name$end" up
    done
    ip address add "198.18.$number.1/24" dev "${name}0"
    ip address add "198.18.$number.2/24" dev "${name}0"
    ip -6 address add "2001:db8:$number::1/64" dev "${name}0" nodad
    ip -6 address add "fe80::$number:1/64" dev "${name}0" nodad
    for neighbour in "198.18.$number.9" "2001:db8:$number::9" "fe80::$number:9"; do
        ip neighbour add "$neighbour" lladdr "02:00:00:00:0$number:09" dev "${name}0" nud permanent
    done
    number=$((number + 1))
done
# A multicast address without an interface takes the first route. The kernel adds them as interfaces come up, in no fixed order:
# those of the interfaces without an address shall be first.
for name in a b c; do
    for end in 0 1; do
        while ! ip link show "$name$end" | grep -q "state UP"; do sleep 0.01; done
        # This waits for the lock that the kernel holds from then on until the queue is active.
        ip link set "$name$end" up
    done
    until ip -6 route show table local type multicast dev "${name}1" | grep -q ff00::/8; do sleep 0.01; done
    until ip -6 route delete multicast ff00::/8 dev "${name}0" table local 2>/dev/null; do sleep 0.01; done
    ip -6 route append multicast ff00::/8 dev "${name}0" table local proto kernel metric 256
done
# An address of the host that is not in 127.0.0.0/8, at the loopback interface.
ip address add 198.18.4.1/32 dev lo
