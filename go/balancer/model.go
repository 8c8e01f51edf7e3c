package balancer

import (
	"fmt"
	"net/netip"
	"time"
)

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols that are balanced.
const (
	TCP  Protocol = 6   // RFC 9293
	UDP  Protocol = 17  // RFC 768
	SCTP Protocol = 132 // RFC 9260
)

// String is the protocol's name as in a service's: "tcp".
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// Service is an address that clients know. Address, Protocol and Port name it; Sticky is its value.
type Service struct {
	Address  netip.Addr
	Protocol Protocol
	// Port 0 means all ports that no other service of the address has.
	Port uint16

	// Sticky sends all flows of a client to one destination, chosen by the client's address alone.
	Sticky bool
}

// String is the service's name as people write it: "192.0.2.1:53/udp".
func (s Service) String() string { return s.key().String() }

// Encapsulation says how packets reach a destination.
type Encapsulation uint8

const (
	// L2 addresses the frame to the destination's MAC, which is on one of our links.
	L2 Encapsulation = iota
	// IPIP is IP in IP: RFC 2003 (4in4), RFC 4213 (6in4), RFC 2473 (4in6, 6in6).
	IPIP
	// GRE is RFC 2784, without key.
	GRE
	// FOU is the packet as it is in UDP to TunnelPort (Linux's "foo over UDP").
	FOU
	// GUE is UDP to TunnelPort, then GUE variant 0 without options (draft-ietf-intarea-gue).
	GUE
)

// The ports of FOU and GUE where a destination names none.
const (
	DefaultFOUPort = 5555
	DefaultGUEPort = 6080
)

// State is what a destination gets.
type State uint8

const (
	// Up: new flows and old ones.
	Up State = iota
	// Draining: old flows only.
	Draining
	// Down: nothing; its flows go to others, whose reset tells the clients.
	Down
)

// String is "up", "draining" or "down".
func (s State) String() string {
	switch s {
	case Up:
		return "up"
	case Draining:
		return "draining"
	case Down:
		return "down"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Destination is a server of a service, named by its address, which may be of the other family
// than the service's.
type Destination struct {
	Address netip.Addr
	// Weight is its share of the new flows in proportion to the others', 1 to 65,535. 0, as IPVS
	// has it, means draining.
	Weight uint16
	State  State
	// Encapsulation is how packets get there.
	Encapsulation Encapsulation
	// TunnelPort is for FOU and GUE; 0 means the default, 5555 and 6080.
	TunnelPort uint16
}

func (d Destination) state() State {
	if d.State == Up && d.Weight == 0 {
		return Draining
	}
	return d.State
}

func (d Destination) tunnelPort() uint16 {
	switch {
	case d.TunnelPort != 0:
		return d.TunnelPort
	case d.Encapsulation == FOU:
		return DefaultFOUPort
	default:
		return DefaultGUEPort
	}
}

// Stats are counters since the service or destination was created.
type Stats struct {
	// Octets are bytes of IP packets as they came, without tunnel headers.
	Octets  uint64
	Packets uint64
	// Flows that began: connections by their SYN or INIT, datagram flows by their first datagram.
	// A SYN that is sent again counts again where flows are not remembered ([Options.RememberAll]).
	Flows uint64
	// Ended flows: by their clients' FIN, RST or ABORT.
	Ended uint64
}

func (s *Stats) add(other Stats) {
	s.Octets += other.Octets
	s.Packets += other.Packets
	s.Flows += other.Flows
	s.Ended += other.Ended
}

// ServiceExtended is a service as it stands.
type ServiceExtended struct {
	Service Service
	// Available: some destination is up.
	Available bool
	Stats     Stats
}

// DestinationExtended is a destination as it stands.
type DestinationExtended struct {
	Destination Destination
	// Reachable: its next hop is known. While it is not, new flows go to destinations whose are.
	Reachable bool
	// NextHop is where its frames go, if it is known.
	NextHop NextHop
	Stats   Stats
}

// Mode is how the program is attached to an interface.
type Mode uint8

const (
	// AnyMode is what suits the interface: TC where packets are the kernel's own buffers, and else
	// Native where the driver has it, and Generic where not.
	AnyMode Mode = iota
	// Native is XDP in the driver.
	Native
	// Generic is XDP in the kernel's stack: every driver can, and it is slower.
	Generic
	// TC is at tc ingress, where packets are the kernel's own buffers: veth, TAP, bridges.
	TC
)

// String is the mode's name.
func (m Mode) String() string {
	switch m {
	case AnyMode:
		return "any"
	case Native:
		return "native"
	case Generic:
		return "generic"
	case TC:
		return "tc"
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// Interface is one that is balanced on.
type Interface struct {
	Name string
	Mode Mode
}

// VIP is an address that clients know, with what all its services received.
type VIP struct {
	Address netip.Addr
	Stats   Stats
}

// Info is what the balancer does as a whole.
type Info struct {
	// Stats are all services' together.
	Stats
	// Reasons counts packets that did not just go to a server, by the names that docs/balancer.md
	// explains: "no_server", "too_big", and so on; all of them, also at zero.
	Reasons map[string]uint64
	// Interfaces that are balanced on.
	Interfaces []Interface
	// Settled: no flow is watched because servers have changed.
	Settled bool
}

// Config is all services with their destinations.
type Config struct {
	Services []ServiceConfig
}

// ServiceConfig is a service with its destinations.
type ServiceConfig struct {
	Service      Service
	Destinations []Destination
}

// Tuple is who speaks with whom.
type Tuple struct {
	Client     netip.Addr
	ClientPort uint16
	Address    netip.Addr
	Port       uint16
	Protocol   Protocol
}

// FlowState is how far a flow has come.
type FlowState uint8

const (
	// FlowNew: its first packet was seen.
	FlowNew FlowState = iota
	// FlowEstablished: it went on.
	FlowEstablished
	// FlowClosed: its client ended it.
	FlowClosed
)

// Flow is a flow that is remembered.
type Flow struct {
	Tuple       Tuple
	Service     Service
	Destination netip.Addr
	State       FlowState
	// Age is the time since it was established.
	Age time.Duration
	// Idle is the time since it was last seen, to about four seconds.
	Idle time.Duration
}

// key is what a service is known by, in an order.
type key struct {
	address  netip.Addr
	protocol Protocol
	port     uint16
}

func (s Service) key() key { return key{s.Address, s.Protocol, s.Port} }

func (k key) compare(other key) int {
	if order := k.address.Compare(other.address); order != 0 {
		return order
	}
	if k.protocol != other.protocol {
		return int(k.protocol) - int(other.protocol)
	}
	return int(k.port) - int(other.port)
}

func (k key) String() string {
	host := k.address.String()
	if k.address.Is6() {
		host = "[" + host + "]"
	}
	if k.port == 0 {
		return fmt.Sprintf("%s:*/%s", host, k.protocol)
	}
	return fmt.Sprintf("%s:%d/%s", host, k.port, k.protocol)
}

// owner is a destination of a service.
type owner struct {
	service key
	address netip.Addr
}

func (o owner) compare(other owner) int {
	if order := o.service.compare(other.service); order != 0 {
		return order
	}
	return o.address.Compare(other.address)
}

func (s Service) check() error {
	if err := checkHost("a service", s.Address); err != nil {
		return err
	}
	switch s.Protocol {
	case TCP, UDP, SCTP:
		return nil
	}
	return fmt.Errorf("%w: %d is no protocol that is balanced: TCP (6), UDP (17) or SCTP (132)",
		ErrInvalid, uint8(s.Protocol))
}

func (d Destination) check() error {
	if err := checkHost("a destination", d.Address); err != nil {
		return err
	}
	if d.State > Down {
		return fmt.Errorf("%w: destination %v has %v, which is none: 0 (up) to 2 (down)",
			ErrInvalid, d.Address, d.State)
	}
	if d.Encapsulation > GUE {
		return fmt.Errorf("%w: destination %v has encapsulation %d; there are 0 (L2) to 4 (GUE)",
			ErrInvalid, d.Address, d.Encapsulation)
	}
	if d.TunnelPort != 0 && d.Encapsulation != FOU && d.Encapsulation != GUE {
		return fmt.Errorf("%w: destination %v has tunnel port %d, which is for FOU and GUE alone",
			ErrInvalid, d.Address, d.TunnelPort)
	}
	return nil
}

// checkHost asks whether a single machine can have an address.
func checkHost(what string, address netip.Addr) error {
	broadcast := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	if !address.IsValid() || address.IsUnspecified() || address.IsLoopback() ||
		address.IsMulticast() ||
		address == broadcast || address.Is4In6() || address.Zone() != "" {
		return fmt.Errorf("%w: %v cannot be the address of %s: it is no single host's",
			ErrInvalid, address, what)
	}
	return nil
}
