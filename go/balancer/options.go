package balancer

import (
	"fmt"
	"log/slog"
	"math/bits"
	"net/netip"
	"time"
)

// NextHops says who knows how frames reach the destinations.
type NextHops uint8

const (
	// FollowKernel: the balancer follows the kernel's links, routes and neighbours, and has the
	// kernel confirm neighbours that are stale, for as long as it is open.
	FollowKernel NextHops = iota
	// Told: [Balancer.SetNextHops] alone says it, and [Balancer.SetLink] which interfaces' MACs are
	// ours where they change. No netlink socket is held open.
	Told
)

// Options are fixed when a balancer is made. The zero value of each means its default.
type Options struct {
	// MaxFlows is how many flows can be remembered: 1,024 to 67,108,864, by default 262,144. Each
	// costs 80 bytes of kernel memory.
	MaxFlows uint32
	// MaxServices is 1 to 65,534, by default 256. Each costs 128 KiB of kernel memory.
	MaxServices uint16
	// MaxDestinations of all services together is 1 to 65,534, by default 4,096; a server of two
	// services counts twice.
	MaxDestinations uint16
	// Idle is how long an established flow is kept for sure though it is silent: 5 seconds to 17
	// hours, by default 5 minutes. Also how long a client of a sticky service, or the port of a
	// datagram's sender, keeps its destination without a packet.
	Idle time.Duration
	// RememberAll flows, not only those that have to be: all can then be listed and counted, for
	// one more cache line a packet.
	RememberAll bool
	// Settle is how long after a change of destinations a flow from before may be silent and still
	// be known: up to 16 hours, by default 2.5 hours. Less than zero means no time at all.
	Settle time.Duration
	// Seed of all hashes. Balancers that shall choose alike share it, the Rust library's and
	// butterflyd's among them; all have the same default.
	Seed uint64
	// Source4 and Source6 say to senders that a packet's hops are used up or that it is too big.
	// Without one the service's address does.
	Source4, Source6 netip.Addr
	// NextHops: who knows how frames reach the destinations.
	NextHops NextHops
	// ShareFlows maps the flow table into the program, so that [Balancer.WriteFlow] can take over
	// flows of another balancer.
	ShareFlows bool
	// Log is told of what goes on by itself: an interface that cannot be taken again, netlink that
	// fails. Nil means nobody.
	Log *slog.Logger
}

const (
	defaultSeed = 0x6275_7474_6572_666c
	// Addresses and services have eight times the room that they need in their tables.
	sparse = 8
)

func (o Options) withDefaults() Options {
	set := func(value *time.Duration, standard time.Duration) {
		switch {
		case *value == 0:
			*value = standard
		case *value < 0:
			*value = 0
		}
	}
	if o.MaxFlows == 0 {
		o.MaxFlows = 262_144
	}
	if o.MaxServices == 0 {
		o.MaxServices = 256
	}
	if o.MaxDestinations == 0 {
		o.MaxDestinations = 4_096
	}
	if o.Seed == 0 {
		o.Seed = defaultSeed
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	set(&o.Idle, 300*time.Second)
	set(&o.Settle, 9000*time.Second)
	return o
}

func (o Options) settings() (settings, error) {
	within := func(option string, value, least, most uint64) error {
		if value < least || value > most {
			return fmt.Errorf("%w: %s is %d, which is not within %d to %d",
				ErrInvalid, option, value, least, most)
		}
		return nil
	}
	for _, err := range []error{
		within("MaxFlows", uint64(o.MaxFlows), 1<<10, 1<<26),
		within("MaxServices", uint64(o.MaxServices), 1, 65_534),
		within("MaxDestinations", uint64(o.MaxDestinations), 1, 65_534),
		within("Idle (seconds)", uint64(o.Idle/time.Second), 5, 17*3600),
		within("Settle (seconds)", uint64(o.Settle/time.Second), 0, 16*3600),
		within("NextHops", uint64(o.NextHops), uint64(FollowKernel), uint64(Told)),
	} {
		if err != nil {
			return settings{}, err
		}
	}
	places := uint32(1) << bits.Len32(uint32(o.MaxServices)*sparse-1)
	made := settings{
		Seed:    o.Seed,
		Buckets: (2*o.MaxFlows + bucketSlots - 1) / bucketSlots,
		Vips:    places,
		Ports:   places,
		// Number 0 is nobody's.
		MaxServices: uint32(o.MaxServices) + 1,
		MaxServers:  uint32(o.MaxDestinations) + 1,
		Idle:        idleTicks(o.Idle),
	}
	if o.RememberAll {
		made.RememberAll = 1
	}
	if o.Source4.IsValid() {
		if !o.Source4.Is4() {
			return settings{}, fmt.Errorf("%w: Source4 is %v, which is no IPv4 address",
				ErrInvalid, o.Source4)
		}
		made.Source4 = o.Source4.As4()
	}
	if o.Source6.IsValid() {
		if !o.Source6.Is6() || o.Source6.Is4In6() {
			return settings{}, fmt.Errorf("%w: Source6 is %v, which is no IPv6 address",
				ErrInvalid, o.Source6)
		}
		made.Source6 = o.Source6.As16()
	}
	return made, nil
}

func idleTicks(idle time.Duration) uint32 {
	seconds := uint64(idle / time.Second)
	ticks := (seconds*1_000_000_000 + 1<<tickShift - 1) >> tickShift
	return uint32(min(ticks, tickMask))
}
