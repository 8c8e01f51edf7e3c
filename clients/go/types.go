package butterfly

import (
	"net/netip"
	"time"
)

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols that are balanced.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// Encapsulation says how packets reach the destinations.
type Encapsulation uint8

const (
	// L2 sends packets as they are to the destination's MAC address.
	L2 Encapsulation = iota
	// IPIP is IP in IP, of any two families.
	IPIP
	// GRE is RFC 2784, without key.
	GRE
	// FOU is foo over UDP, to TunnelPort.
	FOU
	// GUE is generic UDP encapsulation, to TunnelPort.
	GUE
)

// Service is an address that clients know. Address, Protocol and Port name it; the rest are its
// values.
type Service struct {
	Address  netip.Addr
	Protocol Protocol
	// Port 0 means all ports that no other service of the address has.
	Port uint16

	Encapsulation Encapsulation
	// TunnelPort is for FOU and GUE; 0 means the default, 5555 and 6080.
	TunnelPort uint16
	// Sticky sends all flows of a client to one destination.
	Sticky bool
	// Required is the number of healthy destinations with fewer of which the service is
	// withdrawn. Nil means 1.
	Required *uint32
	// Check is how the destinations' health is found out. Nil means not at all.
	Check *Check
}

// Check is a health check, made through the service's address to each destination. Zero values mean
// the defaults.
type Check struct {
	// Kind is "tcp", "http", "https", "dns", "dns-tcp" or "command".
	Kind     string
	Port     uint16
	Interval time.Duration
	Timeout  time.Duration
	Rise     uint32
	Fall     uint32
	// Host, Path, Method and Statuses are for HTTP.
	Host     string
	Path     string
	Method   string
	Statuses []uint32
	// Name and Type are for DNS.
	Name string
	Type string
	// Command is a program and its arguments.
	Command []string
}

// State is what is wanted of a destination.
type State uint8

const (
	// Up: it gets its share of new flows while it is healthy.
	Up State = iota
	// Draining: it keeps its flows and gets no new ones.
	Draining
	// Down: it gets nothing.
	Down
)

// Destination is a server of a service, named by its address.
type Destination struct {
	Address netip.Addr
	// Weight is its share of the new flows, 1 to 65535. 0, as IPVS has it, means draining.
	Weight uint16
	State  State
	// CheckPort is where its health is asked for; 0 means where the service's check says.
	CheckPort uint16
}

// Stats are counters since the service or destination was created.
type Stats struct {
	// Octets are bytes of IP packets, without tunnel headers.
	Octets  uint64
	Packets uint64
	// Flows that began.
	Flows uint64
}

// ServiceExtended is a service as it stands.
type ServiceExtended struct {
	Service Service
	// Available: it has its minimum of healthy destinations.
	Available bool
	// Announced: some service of its address is available.
	Announced bool
	// Healthy destinations.
	Healthy int
	Stats   Stats
}

// Health is what is known of a destination.
type Health uint8

const (
	// HealthUnknown: not checked yet.
	HealthUnknown Health = iota
	// Healthy, or not checked at all.
	Healthy
	// Unhealthy: its checks fail.
	Unhealthy
)

// DestinationExtended is a destination as it stands.
type DestinationExtended struct {
	Destination Destination
	Health      Health
	// Detail says why the last check failed.
	Detail string
	// Since is how long its health has been this.
	Since time.Duration
	// Interface and MAC say where its packets go.
	Interface string
	MAC       string
	Stats     Stats
}

// Mode is how the program is attached to an interface.
type Mode uint8

const (
	// AnyMode is what suits the interface: tc, native or generic. In answers: the interface is not
	// there at the moment.
	AnyMode Mode = iota
	// Native is in the driver.
	Native
	// Generic is in the kernel's stack: every driver can, and it is slower.
	Generic
	// TC is at tc ingress, where packets are the kernel's own buffers: veth, TAP, bridges.
	TC
)

// Interface is one that is balanced on.
type Interface struct {
	Name string
	Mode Mode
}

// VIP is an address that clients know, with what all its services received.
type VIP struct {
	Address netip.Addr
	// Announced: some service of it is available.
	Announced bool
	Stats     Stats
}

// Info is what the balancer does as a whole.
type Info struct {
	Stats
	// Dropped counts packets that were not sent on, by reason.
	Dropped map[string]uint64
	// Interfaces that are balanced on.
	Interfaces []string
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
