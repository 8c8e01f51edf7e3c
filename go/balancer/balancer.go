package balancer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
)

// Balancer is a load balancer in the kernel. Closed, or with the process, its interfaces are the
// kernel's again.
type Balancer struct {
	mu       sync.Mutex
	closed   bool
	options  Options
	program  *program
	halves   *halves
	memory   memory
	register register
	services services
	hops     map[netip.Addr]NextHop
	links    map[uint32]linkEntry
	attached []*attached
	follower *follower
	shared   *shared
	// namespace is that of the thread that has made it.
	namespace namespace
}

// New loads the program, attached nowhere, without services. It works in the network namespace of
// the thread that New is called on ([runtime.LockOSThread]), whatever threads its methods are
// called on later. One that is not the process's takes CAP_SYS_ADMIN.
//
// It fails where an option is out of its range (ErrInvalid), or the kernel refuses: it is older
// than 5.18, the caller lacks CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN in another namespace than
// the process's, or there is no memory for the maps.
func New(options Options) (*Balancer, error) {
	options = options.withDefaults()
	settings, err := options.settings()
	if err != nil {
		return nil, err
	}
	namespace, err := ofThread()
	if err != nil {
		return nil, err
	}
	if err := namespace.canBeEntered(); err != nil {
		return nil, errors.Join(err, namespace.close())
	}
	program, err := load(options, settings)
	if err != nil {
		return nil, errors.Join(err, namespace.close())
	}
	b := &Balancer{
		options:   options,
		namespace: namespace,
		program:   program,
		halves:    newHalves(program.maps, &program.settings),
		memory: memory{
			buckets:  program.maps["flows"],
			names:    program.maps["flow_names"],
			settings: &program.settings,
		},
		register: register{
			services: newNumbers[key](settings.MaxServices),
			servers:  newNumbers[owner](settings.MaxServers),
		},
		services: services{},
		hops:     map[netip.Addr]NextHop{},
		links:    map[uint32]linkEntry{},
	}
	if options.ShareFlows {
		if b.shared, err = mapFlows(program.maps["flows"]); err != nil {
			b.Close()
			return nil, err
		}
	}
	if options.NextHops == FollowKernel {
		err := namespace.within(func() (err error) {
			b.follower, err = follow(b)
			return err
		})
		if err != nil {
			b.Close()
			return nil, err
		}
	}
	return b, nil
}

// Close gives all interfaces back to the kernel and unloads the program. A second call does
// nothing. Where the balancer's network namespace cannot be entered it says so: nothing is balanced
// any more then, but NICs that were told to leave VLAN tags in frames still do.
func (b *Balancer) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	follower := b.follower
	b.mu.Unlock()
	if follower != nil {
		// It takes the lock, and ends when it sees that this is closed.
		follower.close()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	failed := b.namespace.within(func() error {
		var failed error
		for _, one := range b.attached {
			failed = errors.Join(failed, one.close())
		}
		b.attached = nil
		return failed
	})
	// Those that are left could not be reached.
	for _, one := range b.attached {
		failed = errors.Join(failed, one.release())
	}
	b.attached = nil
	if b.shared != nil {
		failed = errors.Join(failed, b.shared.close())
	}
	b.program.close()
	return errors.Join(failed, b.namespace.close())
}

// lock begins a method.
func (b *Balancer) lock() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return ErrClosed
	}
	return nil
}

// change puts what edit makes of the services in force, at once, or changes nothing.
func (b *Balancer) change(edit func(services) error) error {
	if err := b.lock(); err != nil {
		return err
	}
	defer b.mu.Unlock()
	wanted := b.services.clone()
	if err := edit(wanted); err != nil {
		return err
	}
	hops := b.hops
	if b.follower != nil {
		// A destination whose next hop is known has its share at once; nothing is waited for.
		hops = b.follower.nextHops(wanted.targets())
	}
	return b.apply(wanted, hops)
}

func (b *Balancer) apply(wanted services, hops map[netip.Addr]NextHop) error {
	var keys []key
	var servers []owner
	for key, one := range wanted {
		keys = append(keys, key)
		for address := range one.servers {
			servers = append(servers, owner{key, address})
		}
	}
	register, settings := b.register.clone(), &b.program.settings
	if !register.services.assign(keys, key.compare) {
		return fmt.Errorf("%w: there is room for %d services, not for %d",
			ErrFull, settings.MaxServices-1, len(keys))
	}
	if !register.servers.assign(servers, owner.compare) {
		return fmt.Errorf("%w: there is room for %d destinations, not for %d",
			ErrFull, settings.MaxServers-1, len(servers))
	}
	made, err := compile(settings, wanted, hops, register, b.halves.image(), now())
	if err != nil {
		return err
	}
	for owner, number := range register.servers.taken {
		if had, is := b.register.servers.taken[owner]; !is || had != number {
			if err := b.resetCounters(number); err != nil {
				return err
			}
		}
	}
	if err := b.halves.publish(made); err != nil {
		return err
	}
	b.register, b.services, b.hops = register, wanted, hops
	return nil
}

// SetNextHops says how destinations are reached: all next hops that are known, by the destinations'
// addresses. A destination without one gets nothing, and no new flow of a service that has others.
// For balancers whose Options.NextHops is Told.
func (b *Balancer) SetNextHops(hops map[netip.Addr]NextHop) error {
	if err := b.lock(); err != nil {
		return err
	}
	defer b.mu.Unlock()
	if b.follower != nil {
		return fmt.Errorf("%w: next hops are the kernel's here (NextHops is FollowKernel)", ErrInvalid)
	}
	known := map[netip.Addr]NextHop{}
	for address, hop := range hops {
		if err := hop.check(address); err != nil {
			return err
		}
		known[address] = hop
	}
	return b.setHops(known)
}

// setHops is for who holds the lock.
func (b *Balancer) setHops(hops map[netip.Addr]NextHop) error {
	if len(hops) == len(b.hops) {
		same := true
		for address, hop := range hops {
			had, is := b.hops[address]
			same = same && is && had == hop
		}
		if same {
			return nil
		}
	}
	made, err := compile(&b.program.settings, b.services, hops, b.register, b.halves.image(), now())
	if err != nil {
		return err
	}
	if err := b.halves.publish(made); err != nil {
		return err
	}
	b.hops = hops
	return nil
}

// NextHops that are known, by the destinations' addresses.
func (b *Balancer) NextHops() map[netip.Addr]NextHop {
	b.mu.Lock()
	defer b.mu.Unlock()
	hops := map[netip.Addr]NextHop{}
	for address, hop := range b.hops {
		hops[address] = hop
	}
	return hops
}

// Services as they stand, in the order of their addresses.
func (b *Balancer) Services() ([]ServiceExtended, error) {
	if err := b.lock(); err != nil {
		return nil, err
	}
	defer b.mu.Unlock()
	all := make([]ServiceExtended, 0, len(b.services))
	for _, one := range b.services.sorted() {
		extended, err := b.extended(one)
		if err != nil {
			return nil, err
		}
		all = append(all, extended)
	}
	return all, nil
}

// Service as it stands: that of the same name.
func (b *Balancer) Service(wanted Service) (ServiceExtended, error) {
	if err := b.lock(); err != nil {
		return ServiceExtended{}, err
	}
	defer b.mu.Unlock()
	one, err := b.services.find(wanted)
	if err != nil {
		return ServiceExtended{}, err
	}
	return b.extended(one)
}

func (b *Balancer) extended(one *service) (ServiceExtended, error) {
	extended := ServiceExtended{Service: one.Service}
	for address, server := range one.servers {
		stats, err := b.stats(owner{one.key(), address})
		if err != nil {
			return ServiceExtended{}, err
		}
		extended.Stats.add(stats)
		extended.Available = extended.Available || server.state() == Up
	}
	return extended, nil
}

// CreateService adds a service, without destinations: its packets are dropped until it has one.
func (b *Balancer) CreateService(wanted Service) error {
	if err := wanted.check(); err != nil {
		return err
	}
	return b.change(func(all services) error {
		if _, is := all[wanted.key()]; is {
			return fmt.Errorf("%w: there is a service %v already", ErrExists, wanted)
		}
		all[wanted.key()] = &service{Service: wanted, servers: map[netip.Addr]Destination{}}
		return nil
	})
}

// UpdateService changes a service's values; its destinations stay.
func (b *Balancer) UpdateService(wanted Service) error {
	return b.change(func(all services) error {
		one, err := all.find(wanted)
		if err == nil {
			one.Service = wanted
		}
		return err
	})
}

// SetService makes a service, new or not, and its destinations these.
func (b *Balancer) SetService(wanted Service, destinations ...Destination) error {
	made, err := makeService(wanted, destinations)
	if err != nil {
		return err
	}
	return b.change(func(all services) error {
		all[wanted.key()] = made
		return nil
	})
}

// RemoveService takes a service out; its packets are the kernel's.
func (b *Balancer) RemoveService(wanted Service) error {
	return b.change(func(all services) error {
		if _, err := all.find(wanted); err != nil {
			return err
		}
		delete(all, wanted.key())
		return nil
	})
}

// Destinations of a service as they stand, in the order of their addresses.
func (b *Balancer) Destinations(of Service) ([]DestinationExtended, error) {
	if err := b.lock(); err != nil {
		return nil, err
	}
	defer b.mu.Unlock()
	one, err := b.services.find(of)
	if err != nil {
		return nil, err
	}
	all := make([]DestinationExtended, 0, len(one.servers))
	for _, server := range one.sorted() {
		stats, err := b.stats(owner{one.key(), server.Address})
		if err != nil {
			return nil, err
		}
		number := b.register.servers.taken[owner{one.key(), server.Address}]
		all = append(all, DestinationExtended{
			Destination: server,
			Reachable:   b.halves.image().servers[uint32(number)].Ifindex != 0,
			NextHop:     b.hops[server.Address],
			Stats:       stats,
		})
	}
	return all, nil
}

// CreateDestination adds a server to a service. It has its share as soon as its next hop is known.
func (b *Balancer) CreateDestination(of Service, wanted Destination) error {
	if err := wanted.check(); err != nil {
		return err
	}
	return b.change(func(all services) error {
		one, err := all.find(of)
		if err != nil {
			return err
		}
		if _, is := one.servers[wanted.Address]; is {
			return fmt.Errorf("%w: service %v has a destination %v already", ErrExists, of,
				wanted.Address)
		}
		one.servers[wanted.Address] = wanted
		return nil
	})
}

// UpdateDestination changes a server: weight, state, encapsulation.
func (b *Balancer) UpdateDestination(of Service, wanted Destination) error {
	if err := wanted.check(); err != nil {
		return err
	}
	return b.change(func(all services) error {
		one, err := all.find(of)
		if err == nil {
			err = one.has(wanted)
		}
		if err == nil {
			one.servers[wanted.Address] = wanted
		}
		return err
	})
}

// RemoveDestination takes a server out of a service; its flows go to others.
func (b *Balancer) RemoveDestination(of Service, gone Destination) error {
	return b.change(func(all services) error {
		one, err := all.find(of)
		if err == nil {
			err = one.has(gone)
		}
		if err == nil {
			delete(one.servers, gone.Address)
		}
		return err
	})
}

// Config is all services with their destinations, as they were asked for.
func (b *Balancer) Config() (Config, error) {
	if err := b.lock(); err != nil {
		return Config{}, err
	}
	defer b.mu.Unlock()
	var config Config
	for _, one := range b.services.sorted() {
		config.Services = append(config.Services, ServiceConfig{one.Service, one.sorted()})
	}
	return config, nil
}

// SetConfig makes the services these and no others, at once: no packet sees half of a change. Flows
// of destinations that stay go on.
func (b *Balancer) SetConfig(config Config) error {
	wanted := services{}
	for _, one := range config.Services {
		made, err := makeService(one.Service, one.Destinations)
		if err != nil {
			return err
		}
		if _, is := wanted[made.key()]; is {
			return fmt.Errorf("%w: the configuration has service %v twice", ErrInvalid, one.Service)
		}
		wanted[made.key()] = made
	}
	return b.change(func(all services) error {
		clear(all)
		for key, one := range wanted {
			all[key] = one
		}
		return nil
	})
}

// VIPs are the addresses that have services, with what these received.
func (b *Balancer) VIPs() ([]VIP, error) {
	all, err := b.Services()
	if err != nil {
		return nil, err
	}
	var vips []VIP
	for _, one := range all {
		if len(vips) == 0 || vips[len(vips)-1].Address != one.Service.Address {
			vips = append(vips, VIP{Address: one.Service.Address})
		}
		vips[len(vips)-1].Stats.add(one.Stats)
	}
	return vips, nil
}

// VIP is one of them.
func (b *Balancer) VIP(address netip.Addr) (VIP, error) {
	vips, err := b.VIPs()
	if err != nil {
		return VIP{}, err
	}
	at := slices.IndexFunc(vips, func(one VIP) bool { return one.Address == address })
	if at < 0 {
		return VIP{}, fmt.Errorf("%w: there is no service of address %v", ErrNotFound, address)
	}
	return vips[at], nil
}

// Info is what the balancer does as a whole.
func (b *Balancer) Info() (Info, error) {
	if err := b.lock(); err != nil {
		return Info{}, err
	}
	defer b.mu.Unlock()
	info := Info{Reasons: map[string]uint64{}, Settled: true}
	for owner := range b.register.servers.taken {
		stats, err := b.stats(owner)
		if err != nil {
			return Info{}, err
		}
		info.Stats.add(stats)
	}
	var cpus []reasonCounters
	if err := b.program.maps["counters"].Lookup(uint32(0), &cpus); err != nil {
		return Info{}, fmt.Errorf("the load balancer's counters: %w", err)
	}
	for i, name := range reasonNames {
		info.Reasons[name] = 0
		for _, cpu := range cpus {
			info.Reasons[name] += cpu.Reason[i]
		}
	}
	for _, one := range b.attached {
		info.Interfaces = append(info.Interfaces, Interface{Name: one.name, Mode: one.mode})
	}
	for _, table := range b.halves.image().maglevs {
		info.Settled = info.Settled && table.changed == 0
	}
	return info, nil
}

// Flows gives up to limit flows that are remembered and got past their first packet, in no order
// ([Options.RememberAll]). Reads the whole flow table.
func (b *Balancer) Flows(limit int) ([]Flow, error) {
	if err := b.lock(); err != nil {
		return nil, err
	}
	defer b.mu.Unlock()
	named := func(key key) Service { return b.services[key].Service }
	return b.memory.flows(b.register, named, limit)
}

// LiveFlow is how many flows a destination of a service has.
type LiveFlow struct {
	Service     Service
	Destination netip.Addr
	Flows       uint64
}

// LiveFlows of each destination that has some. Of services whose flows are all remembered
// ([Options.RememberAll]; datagram and sticky services always) those that are not closed and were
// seen within [Options.Idle], by reading the whole flow table; of others those that began less
// those that ended.
func (b *Balancer) LiveFlows() ([]LiveFlow, error) {
	if err := b.lock(); err != nil {
		return nil, err
	}
	defer b.mu.Unlock()
	live, err := b.memory.live(b.register)
	if err != nil {
		return nil, err
	}
	var all []LiveFlow
	for owner := range b.register.servers.taken {
		one := b.services[owner.service]
		count := live[owner]
		if !b.alwaysWatched(one) {
			stats, err := b.stats(owner)
			if err != nil {
				return nil, err
			}
			count = max(stats.Flows, stats.Ended) - stats.Ended
		}
		if count != 0 {
			all = append(all, LiveFlow{one.Service, owner.address, count})
		}
	}
	slices.SortFunc(all, func(a, b LiveFlow) int {
		return owner{a.Service.key(), a.Destination}.compare(owner{b.Service.key(), b.Destination})
	})
	return all, nil
}

// Explanation is where a flow's next packet goes.
type Explanation struct {
	Destination netip.Addr
	// Remembered: the flow table says so, and how far the flow has come. Otherwise it is the
	// destination of the flow's client (of a sticky service), or Maglev's.
	Remembered bool
	State      FlowState
}

// Explain says where a flow's next packet goes, as far as its first one would. ErrNotFound: the
// flow's address and port have no service, or none of its destinations is up.
func (b *Balancer) Explain(tuple Tuple) (Explanation, error) {
	if err := b.lock(); err != nil {
		return Explanation{}, err
	}
	defer b.mu.Unlock()
	one := b.services[key{tuple.Address, tuple.Protocol, tuple.Port}]
	if one == nil {
		one = b.services[key{tuple.Address, tuple.Protocol, 0}]
	}
	if one == nil || tuple.Client.Is4() != tuple.Address.Is4() {
		return Explanation{}, fmt.Errorf("%w: no service has %v port %d by %v from %v",
			ErrNotFound, tuple.Address, tuple.Port, tuple.Protocol, tuple.Client)
	}
	its := func(number uint16) (netip.Addr, bool) {
		owner, is := b.register.servers.used[number]
		return owner.address, is && owner.service == one.key()
	}
	number := b.register.services.taken[one.key()]
	table, seed := b.halves.image().maglevs[uint32(number)], b.program.settings.Seed
	hash := hashFlow(seed, tuple)
	if one.Sticky {
		hash = hashClient(seed, tuple.Client, tuple.Address)
	}
	slot, always := table.slots[slotOf(uint32(hash))], b.alwaysWatched(one)
	if always || slot>>16 != 0 {
		found, err := b.memory.find(hashFlow(seed, tuple))
		if err != nil {
			return Explanation{}, err
		}
		counts := found != 0 && found.state() != stateClient &&
			(always || !found.isBefore(table.since))
		if address, is := its(found.server()); is && counts {
			return Explanation{address, true, FlowState(found.state())}, nil
		}
	}
	if one.Sticky {
		found, err := b.memory.find(hashSticky(seed, tuple.Client, tuple.Address, number))
		if err != nil {
			return Explanation{}, err
		}
		fresh := found != 0 && found.idleTicks(tickOf(now())) < b.program.settings.Idle
		if address, is := its(found.server()); is && fresh {
			return Explanation{Destination: address}, nil
		}
	}
	if address, is := its(uint16(slot)); is {
		return Explanation{Destination: address}, nil
	}
	return Explanation{}, fmt.Errorf("%w: no destination of service %v is up", ErrNotFound,
		one.Service)
}

// Settle forgets changes of destinations that were longer ago than [Options.Settle], of services
// all of whose open flows are where new ones would go; flows need not be told from those that began
// since, and their packets are the cheapest again. A balancer that follows the kernel does so by
// itself; others call it now and then. Reads the flow table only when a change is due.
func (b *Balancer) Settle() error {
	if err := b.lock(); err != nil {
		return err
	}
	defer b.mu.Unlock()
	return b.settle()
}

// Words of flows that are older than this many ticks, 17 hours, do not count: half of their clock's
// round, and some room.
const oldest = tickMask/2 - tickMask/16

func (b *Balancer) settle() error {
	current, settle := now(), uint64(b.options.Settle)
	overdue := func(table *table) bool {
		return table.changed != 0 && current-table.changed >= settle
	}
	made := b.halves.image()
	due := false
	for _, table := range made.maglevs {
		due = due || overdue(table)
	}
	unsettled := map[uint32]bool{}
	if due {
		var err error
		if unsettled, err = b.memory.unsettled(made, tickOf(settle)); err != nil {
			return err
		}
	}
	changed := map[uint32]*table{}
	for number, table := range made.maglevs {
		age := (tickOf(current) - uint32(table.since)) & tickMask
		if overdue(table) && !unsettled[number] {
			changed[number] = table.settled()
		} else if table.changed != 0 && age > oldest {
			// The clock of the words goes round: what is older would soon look new.
			since := (tickOf(current) - (oldest - oldest/16)) & tickMask
			changed[number] = table.withSince(uint16(since))
		}
	}
	if len(changed) == 0 {
		return nil
	}
	made = made.clone()
	for number, table := range changed {
		made.replace(number, table)
	}
	return b.halves.publish(made)
}

func (b *Balancer) alwaysWatched(one *service) bool {
	return b.program.settings.RememberAll != 0 || one.Sticky || one.Protocol == UDP
}

func (b *Balancer) stats(owner owner) (Stats, error) {
	var cpus []serverCounters
	number := uint32(b.register.servers.taken[owner])
	if err := b.program.maps["server_counters"].Lookup(number, &cpus); err != nil {
		return Stats{}, fmt.Errorf("the load balancer's counters: %w", err)
	}
	var stats Stats
	for _, cpu := range cpus {
		stats.add(Stats{Octets: cpu.Bytes, Packets: cpu.Packets, Flows: cpu.Flows,
			Ended: cpu.Ended})
	}
	return stats, nil
}

// resetCounters: a number's new owner starts at zero.
func (b *Balancer) resetCounters(number uint16) error {
	cpus, err := ebpf.PossibleCPU()
	if err == nil {
		err = b.program.maps["server_counters"].Put(uint32(number), make([]serverCounters, cpus))
	}
	if err != nil {
		return fmt.Errorf("the load balancer's counters: %w", err)
	}
	return nil
}

func (s services) find(wanted Service) (*service, error) {
	one := s[wanted.key()]
	if one == nil {
		return nil, fmt.Errorf("%w: there is no service %v", ErrNotFound, wanted)
	}
	return one, nil
}

func (s *service) has(wanted Destination) error {
	if _, is := s.servers[wanted.Address]; !is {
		return fmt.Errorf("%w: service %v has no destination %v", ErrNotFound, s.Service,
			wanted.Address)
	}
	return nil
}

func makeService(wanted Service, destinations []Destination) (*service, error) {
	if err := wanted.check(); err != nil {
		return nil, err
	}
	made := &service{Service: wanted, servers: map[netip.Addr]Destination{}}
	for _, one := range destinations {
		if err := one.check(); err != nil {
			return nil, err
		}
		if made.has(one) == nil {
			return nil, fmt.Errorf("%w: service %v has destination %v twice", ErrInvalid, wanted,
				one.Address)
		}
		made.servers[one.Address] = one
	}
	return made, nil
}
