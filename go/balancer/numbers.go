package balancer

import "slices"

// numbers are who has which number: 1 to room - 1; 0 is nobody's. The flow table speaks of servers
// by number, so a number stays its owner's, and one that became free is given out again as late as
// possible.
type numbers[K comparable] struct {
	room  uint32
	next  uint32
	taken map[K]uint16
	used  map[uint16]K
}

func newNumbers[K comparable](room uint32) *numbers[K] {
	return &numbers[K]{room: room, next: 1, taken: map[K]uint16{}, used: map[uint16]K{}}
}

func (n *numbers[K]) clone() *numbers[K] {
	other := &numbers[K]{room: n.room, next: n.next, taken: map[K]uint16{}, used: map[uint16]K{}}
	for owner, number := range n.taken {
		other.taken[owner], other.used[number] = number, owner
	}
	return other
}

// assign takes numbers from those who are not in present, and gives numbers to those who have none,
// in the order of compare. False, and nothing has changed: there are more than numbers.
func (n *numbers[K]) assign(present []K, compare func(a, b K) int) bool {
	if uint32(len(present)) >= n.room {
		return false
	}
	stays := map[K]bool{}
	for _, owner := range present {
		stays[owner] = true
	}
	for owner, number := range n.taken {
		if !stays[owner] {
			delete(n.taken, owner)
			delete(n.used, number)
		}
	}
	present = slices.Clone(present)
	slices.SortFunc(present, compare)
	for _, owner := range present {
		if _, has := n.taken[owner]; !has {
			number := n.free()
			n.taken[owner], n.used[number] = number, owner
		}
	}
	return true
}

func (n *numbers[K]) free() uint16 {
	for {
		number := uint16(n.next)
		if n.next++; n.next >= n.room {
			n.next = 1
		}
		if _, used := n.used[number]; !used {
			return number
		}
	}
}
