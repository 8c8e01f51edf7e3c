package balancer

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// shared is the flow table as memory of this process: words are changed there as the program does
// it, by compare and exchange, so that neither undoes what the other has done.
type shared struct {
	bytes []byte
}

func mapFlows(table *ebpf.Map) (*shared, error) {
	size := int(table.MaxEntries()) * int(unsafe.Sizeof(bucket{}))
	page := unix.Getpagesize()
	size = (size + page - 1) / page * page
	bytes, err := unix.Mmap(table.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("the flow table cannot be mapped: %w", err)
	}
	return &shared{bytes}, nil
}

func (s *shared) close() error { return unix.Munmap(s.bytes) }

func (s *shared) word(bucket uint32, at int) *uint64 {
	offset := uintptr(bucket)*unsafe.Sizeof([bucketSlots]uint64{}) + uintptr(at)*8
	return (*uint64)(unsafe.Pointer(&s.bytes[offset]))
}

// WriteFlow takes over a flow that another balancer remembers: its next packet here goes to the
// same destination. Flows come from [Balancer.Flows] there; how they get here is the program's
// affair. False: the destination is not up or draining here, or the flow's bucket is full of others
// that may not go.
//
// Balancers of one configuration and seed choose alike without that. It is for flows of services
// whose destinations have changed since they began, and of balancers with [Options.RememberAll],
// which then all have it. A flow that is calm here (see [Options.RememberAll]) is not looked up.
func (b *Balancer) WriteFlow(flow Flow) (bool, error) {
	if err := b.lock(); err != nil {
		return false, err
	}
	defer b.mu.Unlock()
	if b.shared == nil {
		return false, fmt.Errorf("%w: flows can be written with Options.ShareFlows alone",
			ErrInvalid)
	}
	if flow.State > FlowClosed {
		return false, fmt.Errorf("%w: a flow's state is %d, which is none", ErrInvalid, flow.State)
	}
	owner := owner{flow.Service.key(), flow.Destination}
	number, is := b.register.servers.taken[owner]
	if !is {
		return false, nil
	}
	if one := b.services[owner.service]; one.servers[owner.address].state() == Down {
		return false, nil
	}
	tick := tickOf(now())
	idle := uint32(uint64(max(flow.Idle, 0))>>tickShift) & tickMask
	place, fingerprint := placeOf(hashFlow(b.program.settings.Seed, flow.Tuple),
		b.program.settings.Buckets)
	wanted := makeWord(fingerprint, number, uint8(flow.State), (tick-idle)&tickMask)
	at := b.shared.put(place, fingerprint, uint64(wanted), tick, b.program.settings.Idle)
	if at < 0 {
		return false, nil
	}
	name := flowName{
		Client:     bytesOf(flow.Tuple.Client),
		ClientPort: networkOrder(flow.Tuple.ClientPort),
		Port:       networkOrder(flow.Tuple.Port),
		Service:    b.register.services.taken[owner.service],
		Protocol:   uint8(flow.Tuple.Protocol),
		Family:     4,
		Since:      now() - uint64(max(flow.Age, 0)),
	}
	if flow.Tuple.Client.Is6() {
		name.Family = 6
	}
	if err := b.memory.names.Put(place*bucketSlots+uint32(at), name); err != nil {
		return false, fmt.Errorf("the load balancer's flow names: %w", err)
	}
	return true, nil
}

// put writes a word as bpf/balancer/flows.h does: in the place of the one of its fingerprint, in a
// free one, or in that of one that may go, the one that was quiet for longest; and gives its index
// in the bucket. -1: there is no room, or the program was faster.
func (s *shared) put(place, fingerprint uint32, wanted uint64, tick, idle uint32) int {
	near := 0
	if fingerprint&1 != 0 {
		near = bucketSlots / 2
	}
	best, bestAge, victim := -1, uint32(0), uint64(0)
	for i := range bucketSlots {
		at := i ^ near
		had := atomic.LoadUint64(s.word(place, at))
		if had != 0 && word(had).fingerprint() == fingerprint {
			best, victim = at, had
			break
		}
		age, state := word(had).idleTicks(tick), word(had).state()
		stays := (state == uint8(FlowEstablished) || state == stateClient) && age < idle
		switch {
		case had == 0 && (best < 0 || victim != 0):
			best, victim = at, 0
		case had != 0 && !stays && (best < 0 || victim != 0 && age > bestAge):
			best, bestAge, victim = at, age, had
		}
	}
	if best < 0 || !atomic.CompareAndSwapUint64(s.word(place, best), victim, wanted) {
		return -1
	}
	return best
}
