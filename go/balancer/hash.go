package balancer

import (
	"encoding/binary"
	"net/netip"
)

// The hashes of bpf/balancer/hash.h: which slot and which bucket a flow has.

func mix(word uint64) uint64 {
	word = (word ^ word>>32) * 0xd6e8_feb8_6659_fd93
	return word ^ word>>32
}

func pair(high, low uint32) uint64 { return uint64(high)<<32 | uint64(low) }

// bytesOf is an address as the program has it: IPv4 in the first word.
func bytesOf(address netip.Addr) (bytes [16]byte) {
	if address.Is4() {
		four := address.As4()
		copy(bytes[:], four[:])
		return bytes
	}
	return address.As16()
}

// words of an address, as the machine loads them.
func words(address netip.Addr) (word [4]uint32) {
	bytes := bytesOf(address)
	for i := range word {
		word[i] = binary.NativeEndian.Uint32(bytes[4*i:])
	}
	return word
}

func networkOrder(port uint16) (bytes [2]byte) {
	binary.BigEndian.PutUint16(bytes[:], port)
	return bytes
}

// asLoaded is a port in network order as the machine loads it.
func asLoaded(port uint16) uint64 {
	bytes := networkOrder(port)
	return uint64(binary.NativeEndian.Uint16(bytes[:]))
}

// hashAddress is of a VIP's place.
func hashAddress(seed uint64, address netip.Addr) uint64 {
	word := words(address)
	if address.Is4() {
		return mix(seed ^ pair(word[0], 4))
	}
	hash := mix(seed ^ pair(word[0], 6))
	hash = mix(hash ^ pair(word[1], word[2]))
	return mix(hash ^ uint64(word[3]))
}

// hashPort is of a service's place.
func hashPort(seed uint64, vip uint16, protocol Protocol, port uint16) uint64 {
	low := asLoaded(port)<<8 | uint64(protocol)
	return mix(seed ^ (uint64(vip)<<32 | low))
}

// hashParties is the part of a flow's hash that its addresses make.
func hashParties(seed uint64, client, vip netip.Addr) uint64 {
	from, to := words(client), words(vip)
	hash := mix(seed ^ pair(from[0], to[0]))
	if client.Is6() {
		hash = mix(hash ^ pair(from[1], from[2]))
		hash = mix(hash ^ pair(from[3], to[1]))
		hash = mix(hash ^ pair(to[2], to[3]))
	}
	return hash
}

// hashClient is of a client of a VIP, whatever its ports.
func hashClient(seed uint64, client, vip netip.Addr) uint64 {
	return mix(hashParties(seed, client, vip))
}

func hashFlow(seed uint64, tuple Tuple) uint64 {
	ports := asLoaded(tuple.ClientPort)<<32 | asLoaded(tuple.Port)<<16
	parties := hashParties(seed, tuple.Client, tuple.Address)
	return mix(mix(parties ^ (ports | uint64(tuple.Protocol))))
}

// hashSticky is of a client of a sticky service, as the flow table has it.
func hashSticky(seed uint64, client, vip netip.Addr, service uint16) uint64 {
	return mix((hashClient(seed, client, vip) ^ 0x9e37_79b9_7f4a_7c15) + uint64(service))
}

// reduce is even from 0 to size - 1.
func reduce(hash uint64, size uint32) uint32 { return uint32((hash >> 32) * uint64(size) >> 32) }

// placeOf a hash in the flow table: bucket, fingerprint.
func placeOf(hash uint64, buckets uint32) (uint32, uint32) {
	return reduce(hash, buckets), uint32(hash)
}

// slotOf a hash in a Maglev table. A fingerprint is enough to tell it.
func slotOf(hash uint32) int { return int(hash % maglevSize) }
