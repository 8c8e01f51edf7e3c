package balancer

// bpf/balancer.h in Go: what the program and this package both read and write. Addresses and ports
// in network order, which here are arrays of bytes; everything else in the machine's.
// object_test.go compares each with the object's own description of itself (BTF), field by field.

const (
	maglevSize  = 16384
	links       = 256
	probes      = 8
	bucketSlots = 16
	tickShift   = 33 // a tick is 2^33 ns = 8.6 s
	tickMask    = 0x3fff
	portSticky  = 1
	reasons     = 16
)

const (
	serverUp       = 1
	serverDraining = 2
	serverDown     = 3
)

// struct settings: fixed when the program is loaded.
type settings struct {
	Seed        uint64
	Buckets     uint32
	Vips        uint32
	Ports       uint32
	MaxServices uint32
	MaxServers  uint32
	Idle        uint32
	Source4     [4]byte
	Source6     [16]byte
	RememberAll uint32
}

// struct link: an interface on which services are balanced.
type linkEntry struct {
	Ifindex  uint32
	Out      uint32
	Mac      [6]byte
	Reserved [2]byte
}

// struct vip: an address that has services.
type vipEntry struct {
	Address  [16]byte
	ID       uint16
	Family   uint8
	Reserved uint8
}

// struct port: a service.
type portEntry struct {
	Vip      uint16
	Port     [2]byte
	Protocol uint8
	Flags    uint8
	Service  uint16
	Since    uint16
	Reserved uint16
}

// struct server: a server of one service, with all that is put in front of its packets.
type serverEntry struct {
	Service  uint16
	State    uint8
	Outer    uint8
	Tags     uint8
	ShimLen  uint8
	MTU      uint16
	Ifindex  uint32
	OuterSum uint32
	Link     [22]byte
	Reserved [2]byte
	Header   [40]byte
	Shim     [12]byte
	Padding  [36]byte
}

// struct maglev.
type maglevEntry struct {
	Slot [maglevSize]uint32
}

// struct bucket: sixteen flows; fingerprint 32 bits, server 16, state 2, tick 14.
type bucket struct {
	Slot [bucketSlots]uint64
}

// struct flow_name: whose flow a slot is.
type flowName struct {
	Client     [16]byte
	ClientPort [2]byte
	Port       [2]byte
	Service    uint16
	Protocol   uint8
	Family     uint8
	Since      uint64
}

// struct server_counters.
type serverCounters struct {
	Packets uint64
	Bytes   uint64
	Flows   uint64
	Ended   uint64
}

// struct counters, by enum reason.
type reasonCounters struct {
	Reason [reasons]uint64
}

// reasonNames are those of enum reason, in its order.
var reasonNames = []string{
	"no_server", "no_way", "expired", "too_big", "fragment", "no_room", "silent", "echo",
	"not_understood", "no_service", "table_full", "adopted",
}
