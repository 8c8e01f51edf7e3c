package balancer

import (
	"fmt"
	"net/netip"
	"slices"
)

// The configuration compiled to what one half of the maps holds: addresses and services in their
// places, Maglev tables, servers with the bytes that go in front of their packets. Pure: the same
// in, the same out. crates/balancer/src/compile.rs is the same in Rust.

// image is what a half holds; what is not said is zero.
type image struct {
	vips    map[uint32]vipEntry
	ports   map[uint32]portEntry
	maglevs map[uint32]*table
	servers map[uint32]serverEntry
}

func newImage() *image {
	return &image{
		vips:    map[uint32]vipEntry{},
		ports:   map[uint32]portEntry{},
		maglevs: map[uint32]*table{},
		servers: map[uint32]serverEntry{},
	}
}

// clone shares the tables, which do not change.
func (i *image) clone() *image {
	other := newImage()
	other.absorb(i)
	return other
}

// absorb takes over all of another's keys.
func (i *image) absorb(other *image) {
	for at, entry := range other.vips {
		i.vips[at] = entry
	}
	for at, entry := range other.ports {
		i.ports[at] = entry
	}
	for at, table := range other.maglevs {
		i.maglevs[at] = table
	}
	for at, entry := range other.servers {
		i.servers[at] = entry
	}
}

// replace puts another table in the place of a service's.
func (i *image) replace(number uint32, table *table) {
	for at, port := range i.ports {
		if uint32(port.Service) == number {
			port.Since = table.since
			i.ports[at] = port
		}
	}
	i.maglevs[number] = table
}

// table is a service's Maglev table and whom it was made for: it is kept while they stay the same.
type table struct {
	key     key
	members []member
	// used: packets may have gone by it, or by one before, since some server could be reached.
	used bool
	// slots are the words of struct maglev.
	slots []uint32
	// since is the tick of the first change that slots tell of.
	since uint16
	// changed is when the last one was, on the program's clock; 0: all slots are calm.
	changed uint64
}

func newTable(key key, members []member, used bool, before *table, now uint64) *table {
	made := &table{
		key:     key,
		members: members,
		used:    used,
		slots:   maglevTable(members),
		since:   uint16(tickOf(now)),
	}
	if before == nil {
		return made
	}
	for i, old := range before.slots {
		watched := watch(old, made.slots[i])
		made.slots[i] |= watched << 16
		if watched != 0 {
			made.changed = now
		}
	}
	if before.changed != 0 {
		made.since = before.since
	}
	return made
}

// watch gives the server from before of a slot that was old and whose server is now. While a slot
// is watched it is the one from before the first change: flows that began since are remembered,
// flows that began before may still be silent.
func watch(old, now uint32) uint32 {
	if before := old >> 16; before != 0 {
		return before
	}
	if was := old & 0xffff; was != now {
		return was
	}
	return 0
}

// settled is the table with every slot calm.
func (t *table) settled() *table {
	other := *t
	other.slots = slices.Clone(t.slots)
	for i := range other.slots {
		other.slots[i] &= 0xffff
	}
	other.changed = 0
	return &other
}

func (t *table) withSince(since uint16) *table {
	other := *t
	other.since = since
	return &other
}

// service is a service in force.
type service struct {
	Service
	servers map[netip.Addr]Destination
}

func (s *service) clone() *service {
	other := &service{Service: s.Service, servers: map[netip.Addr]Destination{}}
	for address, server := range s.servers {
		other.servers[address] = server
	}
	return other
}

// sorted are the servers in the order of their addresses.
func (s *service) sorted() []Destination {
	all := make([]Destination, 0, len(s.servers))
	for _, server := range s.servers {
		all = append(all, server)
	}
	slices.SortFunc(all, func(a, b Destination) int { return a.Address.Compare(b.Address) })
	return all
}

// services are the whole configuration.
type services map[key]*service

func (s services) clone() services {
	other := services{}
	for key, one := range s {
		other[key] = one.clone()
	}
	return other
}

func (s services) sorted() []*service {
	all := make([]*service, 0, len(s))
	for _, one := range s {
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b *service) int { return a.key().compare(b.key()) })
	return all
}

func (s services) targets() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, one := range s {
		for address := range one.servers {
			all[address] = true
		}
	}
	return all
}

// register has the numbers of services and servers.
type register struct {
	services *numbers[key]
	servers  *numbers[owner]
}

func (r register) clone() register {
	return register{services: r.services.clone(), servers: r.servers.clone()}
}

// compile makes an image. Everybody in services has a number in register; before lends tables that
// are still right.
func compile(settings *settings, services services, hops map[netip.Addr]NextHop, register register,
	before *image, now uint64) (*image, error) {
	made := newImage()
	vips := map[netip.Addr]uint16{}
	for _, one := range services.sorted() {
		key := one.key()
		number := register.services.taken[key]
		vip, known := vips[key.address]
		if !known {
			vip = uint16(len(vips))
			vips[key.address] = vip
			if err := made.placeVIP(settings, key.address, vip); err != nil {
				return nil, err
			}
		}
		var reached, lost []member
		for _, server := range one.sorted() {
			entry := entryOf(server, number, hops, key.address.Is6())
			own := register.servers.taken[owner{key, server.Address}]
			made.servers[uint32(own)] = entry
			if server.state() != Up {
				continue
			}
			member := member{address: server.Address, weight: server.Weight, number: own}
			if entry.Ifindex != 0 {
				reached = append(reached, member)
			} else {
				lost = append(lost, member)
			}
		}
		// Who takes part: the servers that are up and that a way is known to. When it is to none of
		// them, all that are up: their packets are lost either way, and the reason is named.
		members, used := reached, true
		if len(reached) == 0 {
			members, used = lost, false
		}
		old := before.maglevs[uint32(number)]
		if old != nil && old.key != key {
			old = nil
		}
		used = used || old != nil && old.used
		table := old
		if old == nil || old.used != used || !slices.Equal(old.members, members) {
			if old != nil && !old.used {
				// No flow can be other than by the next one.
				old = nil
			}
			table = newTable(key, members, used, old, now)
		}
		if err := made.placePort(settings, one, vip, number, table.since); err != nil {
			return nil, err
		}
		made.maglevs[uint32(number)] = table
	}
	return made, nil
}

func entryOf(server Destination, service uint16, hops map[netip.Addr]NextHop,
	vip6 bool) serverEntry {
	entry := serverEntry{Service: service}
	switch server.state() {
	case Up:
		entry.State = serverUp
	case Draining:
		entry.State = serverDraining
	default:
		entry.State = serverDown
	}
	var hop *NextHop
	if known, is := hops[server.Address]; is {
		hop = &known
	}
	fill(&entry, server, hop, vip6)
	return entry
}

func (i *image) placeVIP(settings *settings, vip netip.Addr, id uint16) error {
	hash := uint32(hashAddress(settings.Seed, vip))
	at, found := freePlace(hash, settings.Vips, i.vips)
	if !found {
		return crowded("addresses", settings.Vips, len(i.vips))
	}
	entry := vipEntry{Address: bytesOf(vip), ID: id, Family: 6}
	if vip.Is4() {
		entry.Family = 4
	}
	i.vips[at] = entry
	return nil
}

func (i *image) placePort(settings *settings, one *service, vip, number, since uint16) error {
	hash := uint32(hashPort(settings.Seed, vip, one.Protocol, one.Port))
	at, found := freePlace(hash, settings.Ports, i.ports)
	if !found {
		return crowded("services", settings.Ports, len(i.ports))
	}
	entry := portEntry{
		Vip:      vip,
		Port:     networkOrder(one.Port),
		Protocol: uint8(one.Protocol),
		Service:  number,
		Since:    since,
	}
	if one.Sticky {
		entry.Flags = portSticky
	}
	i.ports[at] = entry
	return nil
}

// freePlace: the program looks at a few places from where the hash points. Tables have eight times
// the room they need, so that none being free is about never.
func freePlace[E any](hash, room uint32, taken map[uint32]E) (uint32, bool) {
	for step := uint32(0); step < probes; step++ {
		at := (hash + step) & (room - 1)
		if _, is := taken[at]; !is {
			return at, true
		}
	}
	return 0, false
}

func crowded(what string, room uint32, have int) error {
	return fmt.Errorf("%w: there is room for %d %s, not for %d", ErrFull, room, what, have+1)
}
