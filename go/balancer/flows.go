package balancer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// memory is the maps of flows.
type memory struct {
	buckets  *ebpf.Map
	names    *ebpf.Map
	settings *settings
}

// word is one of the flow table: fingerprint 32 bits, server 16, state 2, tick 14.
type word uint64

// Of a word that is no flow but a client of a sticky service.
const stateClient = 3

func (w word) fingerprint() uint32 { return uint32(w >> 32) }
func (w word) server() uint16      { return uint16(w >> 16) }
func (w word) state() uint8        { return uint8(w >> 14 & 3) }
func (w word) open() bool {
	return w.state() == uint8(FlowNew) || w.state() == uint8(FlowEstablished)
}

func (w word) isBefore(since uint16) bool {
	return (uint32(w)-uint32(since))&tickMask > tickMask/2
}

func (w word) idleTicks(now uint32) uint32 { return (now - uint32(w)) & tickMask }

func makeWord(fingerprint uint32, server uint16, state uint8, tick uint32) word {
	return word(fingerprint)<<32 | word(server)<<16 | word(state)<<14 | word(tick)
}

// each visits all words that are taken, with their numbers.
func (m memory) each(visit func(index uint32, word word)) error {
	const batch = 1024
	numbers, buckets := make([]uint32, batch), make([]bucket, batch)
	var cursor ebpf.MapBatchCursor
	for {
		count, err := m.buckets.BatchLookup(&cursor, numbers, buckets, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("the load balancer's flow table: %w", err)
		}
		for i := range count {
			for at, one := range buckets[i].Slot {
				if one != 0 {
					visit(numbers[i]*bucketSlots+uint32(at), word(one))
				}
			}
		}
		if err != nil {
			return nil
		}
	}
}

// find gives the word of a hash; 0: there is none.
func (m memory) find(hash uint64) (word, error) {
	number, fingerprint := placeOf(hash, m.settings.Buckets)
	var entry bucket
	if err := m.buckets.Lookup(number, &entry); err != nil {
		return 0, fmt.Errorf("the load balancer's flow table: %w", err)
	}
	for _, one := range entry.Slot {
		if one != 0 && word(one).fingerprint() == fingerprint {
			return word(one), nil
		}
	}
	return 0, nil
}

// live counts each server's flows that are not closed and were seen within the idle time.
func (m memory) live(register register) (map[owner]uint64, error) {
	tick, live := tickOf(now()), map[owner]uint64{}
	err := m.each(func(_ uint32, word word) {
		if owner, is := register.servers.used[word.server()]; is && word.open() &&
			word.idleTicks(tick) < m.settings.Idle {
			live[owner]++
		}
	})
	return live, err
}

// flows gives up to limit of them that are established or closed, in no order.
func (m memory) flows(register register, sticky func(key) Service, limit int) ([]Flow, error) {
	type slot struct {
		index uint32
		word  word
	}
	var slots []slot
	err := m.each(func(index uint32, word word) {
		_, owned := register.servers.used[word.server()]
		named := word.state() == uint8(FlowEstablished) || word.state() == uint8(FlowClosed)
		if named && owned && len(slots) < limit {
			slots = append(slots, slot{index, word})
		}
	})
	if err != nil {
		return nil, err
	}
	now := now()
	flows := make([]Flow, 0, len(slots))
	for _, slot := range slots {
		var name flowName
		if err := m.names.Lookup(slot.index, &name); err != nil {
			return nil, fmt.Errorf("the load balancer's flow names: %w", err)
		}
		owner := register.servers.used[slot.word.server()]
		tuple, valid := name.tuple(owner.service)
		// The slot may have had a new owner in between, or one that closed before it had a name.
		if !valid || uint32(hashFlow(m.settings.Seed, tuple)) != slot.word.fingerprint() {
			continue
		}
		flows = append(flows, Flow{
			Tuple:       tuple,
			Service:     sticky(owner.service),
			Destination: owner.address,
			State:       FlowState(slot.word.state()),
			Age:         time.Duration(max(now, name.Since) - name.Since),
			Idle:        time.Duration(uint64(slot.word.idleTicks(tickOf(now))) << tickShift),
		})
	}
	return flows, nil
}

// unsettled are services that have open flows elsewhere than where their tables send new ones, seen
// within silent ticks.
func (m memory) unsettled(image *image, silent uint32) (map[uint32]bool, error) {
	tick, services := tickOf(now()), map[uint32]bool{}
	err := m.each(func(_ uint32, word word) {
		server, is := image.servers[uint32(word.server())]
		if !is || !word.open() {
			return
		}
		table := image.maglevs[uint32(server.Service)]
		if table == nil {
			return
		}
		current := uint16(table.slots[slotOf(word.fingerprint())])
		if current != word.server() && !word.isBefore(table.since) &&
			word.idleTicks(tick) <= silent {
			services[uint32(server.Service)] = true
		}
	})
	return services, err
}

func (n flowName) tuple(service key) (Tuple, bool) {
	var client netip.Addr
	switch n.Family {
	case 4:
		client = netip.AddrFrom4([4]byte(n.Client[:4]))
	case 6:
		client = netip.AddrFrom16(n.Client)
	default:
		return Tuple{}, false
	}
	return Tuple{
		Client:     client,
		ClientPort: binary.BigEndian.Uint16(n.ClientPort[:]),
		Address:    service.address,
		Port:       binary.BigEndian.Uint16(n.Port[:]),
		Protocol:   Protocol(n.Protocol),
	}, true
}

func tickOf(nanoseconds uint64) uint32 { return uint32(nanoseconds>>tickShift) & tickMask }

// now is the clock that the program reads, CLOCK_MONOTONIC.
func now() uint64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err) // The clock is always there.
	}
	return uint64(at.Nano())
}
