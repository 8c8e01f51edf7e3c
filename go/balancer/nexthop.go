package balancer

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// MAC is an Ethernet address.
type MAC [6]byte

// String is the address as people write it.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// NextHop is how frames get to a destination: what a route and a neighbour say together.
type NextHop struct {
	// Ifindex is the device that sends: below a VLAN interface, the one that carries it.
	Ifindex uint32
	// SourceMAC is the device's.
	SourceMAC MAC
	// MAC is the next hop's.
	MAC MAC
	// VLANs are tags from the outermost on, at most two; 802.1Q. Zero: none.
	VLANs [2]uint16
	// MTU is the longest IP packet that fits.
	MTU uint16
	// Direct: the next hop is the destination itself. Without a tunnel no other is reached.
	Direct bool
	// Source is our address towards there, of the destination's family: that of outer headers. Not
	// valid: there is none, and tunnels cannot be used.
	Source netip.Addr
}

func (h NextHop) tags() []uint16 {
	switch {
	case h.VLANs[0] == 0:
		return nil
	case h.VLANs[1] == 0:
		return h.VLANs[:1]
	}
	return h.VLANs[:2]
}

func (h NextHop) check(to netip.Addr) error {
	if h.Ifindex == 0 {
		return fmt.Errorf("%w: the next hop to %v is by interface 0, which is none", ErrInvalid, to)
	}
	for _, tag := range h.VLANs {
		if tag > 4094 {
			return fmt.Errorf("%w: the next hop to %v has VLAN %d; the last is 4094", ErrInvalid,
				to, tag)
		}
	}
	if h.VLANs[0] == 0 && h.VLANs[1] != 0 {
		return fmt.Errorf("%w: the next hop to %v has an inner VLAN %d and no outer one",
			ErrInvalid, to, h.VLANs[1])
	}
	if h.MTU < 68 {
		return fmt.Errorf("%w: the next hop to %v has an MTU of %d; the least is 68 (RFC 791)",
			ErrInvalid, to, h.MTU)
	}
	return nil
}

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100
	outerTTL  = 64
	protoIPIP = 4
	protoUDP  = 17
	protoIPv6 = 41
	protoGRE  = 47
)

// fill sets everything of a server's entry that says how packets get there. Without a hop, or
// without a source address that an outer header needs, Ifindex stays zero: the way is not known.
func fill(entry *serverEntry, server Destination, hop *NextHop, vip6 bool) {
	if hop == nil {
		return
	}
	inner, innerType := uint8(protoIPIP), uint16(etherIPv4)
	if vip6 {
		inner, innerType = protoIPv6, etherIPv6
	}
	carried := inner
	switch server.Encapsulation {
	case L2:
		if hop.Direct {
			fillLink(entry, hop, innerType)
			entry.Ifindex = hop.Ifindex
		}
		return
	case GRE:
		entry.ShimLen = 4
		binary.BigEndian.PutUint16(entry.Shim[2:], innerType)
		carried = protoGRE
	case FOU, GUE:
		entry.ShimLen = 8
		binary.BigEndian.PutUint16(entry.Shim[2:], server.tunnelPort())
		if server.Encapsulation == GUE {
			entry.ShimLen = 12
			entry.Shim[9] = inner
		}
		carried = protoUDP
	}
	if !hop.Source.IsValid() || hop.Source.Is4() != server.Address.Is4() {
		entry.Shim, entry.ShimLen = [12]byte{}, 0
		return
	}
	header := entry.Header[:]
	source, address := hop.Source.AsSlice(), server.Address.AsSlice()
	if server.Address.Is4() {
		header[0] = 0x45
		header[6] = 0x40 // do not fragment
		header[8], header[9] = outerTTL, carried
		copy(header[12:], source)
		copy(header[16:], address)
		var sum uint32
		for at := 0; at < 20; at += 2 {
			sum += uint32(binary.BigEndian.Uint16(header[at:]))
		}
		for sum>>16 != 0 {
			sum = sum&0xffff + sum>>16
		}
		folded := networkOrder(uint16(sum))
		entry.OuterSum = uint32(binary.NativeEndian.Uint16(folded[:]))
		entry.Outer = 4
		fillLink(entry, hop, etherIPv4)
	} else {
		header[0] = 0x60
		header[6], header[7] = carried, outerTTL
		copy(header[8:], source)
		copy(header[24:], address)
		entry.Outer = 6
		fillLink(entry, hop, etherIPv6)
	}
	entry.Ifindex = hop.Ifindex
}

func fillLink(entry *serverEntry, hop *NextHop, ethertype uint16) {
	bytes := append(hop.MAC[:len(hop.MAC):len(hop.MAC)], hop.SourceMAC[:]...)
	for _, tag := range hop.tags() {
		bytes = binary.BigEndian.AppendUint16(bytes, etherVLAN)
		bytes = binary.BigEndian.AppendUint16(bytes, tag)
	}
	bytes = binary.BigEndian.AppendUint16(bytes, ethertype)
	copy(entry.Link[:], bytes)
	entry.Tags = uint8(len(hop.tags()))
	entry.MTU = hop.MTU
}
