package balancer

import "net/netip"

// Maglev hashing (Eisenbud et al., NSDI 2016, section 3.4) with weights, as
// crates/balancer/src/maglev.rs has it: whoever has the same servers has the same table.

// member is one who takes slots.
type member struct {
	address netip.Addr
	weight  uint16
	number  uint16
}

type turn struct {
	member
	credit    uint32
	generator uint64
}

// maglevTable gives the slots' numbers; all zero without members, who are in the order of their
// addresses, each once. A server of half the largest weight takes every other turn.
func maglevTable(members []member) []uint32 {
	slots := make([]uint32, maglevSize)
	var largest uint32
	turns := make([]turn, 0, len(members))
	for _, one := range members {
		largest = max(largest, uint32(one.weight))
		turns = append(turns, turn{member: one, generator: identity(one.address)})
	}
	if largest == 0 {
		return slots
	}
	for free := maglevSize; ; {
		for i := range turns {
			turn := &turns[i]
			turn.credit += uint32(turn.weight)
			if turn.credit < largest {
				continue
			}
			turn.credit -= largest
			slots[turn.nextFree(slots)] = uint32(turn.number)
			if free--; free == 0 {
				return slots
			}
		}
	}
}

func (t *turn) nextFree(slots []uint32) int {
	for {
		if slot := int(t.draw() % maglevSize); slots[slot] == 0 {
			return slot
		}
	}
}

// draw is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
func (t *turn) draw() uint64 {
	t.generator += 0x9e37_79b9_7f4a_7c15
	word := (t.generator ^ t.generator>>30) * 0xbf58_476d_1ce4_e5b9
	word = (word ^ word>>27) * 0x94d0_49bb_1331_11eb
	return word ^ word>>31
}

// identity is FNV-1a over the address's bytes, then the finisher of MurmurHash3.
func identity(address netip.Addr) uint64 {
	hash := uint64(0xcbf2_9ce4_8422_2325)
	for _, one := range address.AsSlice() {
		hash = (hash ^ uint64(one)) * 0x100_0000_01b3
	}
	hash = (hash ^ hash>>33) * 0xff51_afd7_ed55_8ccd
	hash = (hash ^ hash>>33) * 0xc4ce_b9fe_1a85_ec53
	return hash ^ hash>>33
}
