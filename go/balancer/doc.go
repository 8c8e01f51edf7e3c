// Package balancer is a layer-4 load balancer in one's own Go program: packets to service
// addresses go to servers, which answer the clients themselves (direct server return).
//
// The forwarding is a BPF program that runs in the driver (XDP) or at tc ingress. It is compiled
// already and inside this package: neither a daemon, nor C, nor libbpf is needed to build a
// program that uses it or to run one. It is the same object, and the same use of its maps, as the
// Rust library's and butterflyd's; docs/balancer.md says what becomes of each packet, and
// crates/balancer/src/lib.rs how flows stay with their servers.
//
//	b, err := balancer.New(balancer.Options{MaxFlows: 1 << 20})
//	...
//	web := balancer.Service{Address: vip, Port: 80, Protocol: balancer.TCP}
//	err = b.CreateService(web)
//	err = b.CreateDestination(web, balancer.Destination{Address: server, Weight: 1})
//	taken, err := b.CreateInterface(balancer.Interface{Name: "eth0"})
//
// The types and methods read like those of the IPVS libraries, and have the names that package
// butterfly/clients/go, which drives a daemon, has for the same.
//
// Every change either is in force when its method returns or has changed nothing. A change of many
// things at once, that no packet sees half of, is [Balancer.SetConfig].
//
// A server is given a service's packets with the service's address in them: it has that address on
// its loopback interface and does not answer ARP for it, or takes a tunnel's packets in
// ([Encapsulation]). How frames reach a server, the balancer finds in the kernel's routes and
// neighbours and follows there, or is told: [Options.NextHops].
//
// Whether a server works, this package does not ask: that is its user's, who sets
// [Destination.State]. cmd/healthy is a program that does.
//
// It needs Linux 5.18, a little-endian machine, and root or CAP_BPF, CAP_NET_ADMIN and
// CAP_PERFMON. All methods of a [Balancer] may be called at the same time.
package balancer
