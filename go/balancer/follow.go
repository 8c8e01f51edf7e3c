package balancer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// follower keeps a balancer's next hops and interfaces as the kernel has them.
//
// The program sends past the kernel, which therefore sees no traffic that would keep its
// neighbours' entries fresh. So the kernel is asked to confirm what is stale, every period: a
// server that moved to another MAC without a word is found again.
type follower struct {
	balancer *Balancer
	events   *nl.NetlinkSocket
	wake     chan struct{}
	done     chan struct{}
	running  sync.WaitGroup
	mu       sync.Mutex
	looked   chan struct{}
}

const (
	period = 2 * time.Second
	// After a change, others are waited for: a link that goes down takes routes and neighbours
	// along.
	pause = 20 * time.Millisecond
)

func follow(b *Balancer) (*follower, error) {
	events, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_IFADDR,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_RULE,
		unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEXTHOP)
	if err != nil {
		return nil, fmt.Errorf("the kernel's tables cannot be followed: %w", err)
	}
	// So that the one who listens sees that it is over.
	patience := unix.NsecToTimeval(int64(pause * 10))
	if err := events.SetReceiveTimeout(&patience); err != nil {
		events.Close()
		return nil, fmt.Errorf("the kernel's tables cannot be followed: %w", err)
	}
	f := &follower{
		balancer: b,
		events:   events,
		wake:     make(chan struct{}, 1),
		done:     make(chan struct{}),
		looked:   make(chan struct{}),
	}
	entered := make(chan error, 1)
	f.running.Add(2)
	go func() {
		defer f.running.Done()
		err := b.namespace.within(func() error {
			entered <- nil
			f.run()
			return nil
		})
		if err != nil {
			entered <- err
		}
	}()
	go f.listen()
	if err := <-entered; err != nil {
		f.close()
		return nil, fmt.Errorf("the kernel's tables cannot be followed: %w", err)
	}
	return f, nil
}

func (f *follower) close() {
	close(f.done)
	f.running.Wait()
	f.events.Close()
}

// listen wakes run at every change.
func (f *follower) listen() {
	defer f.running.Done()
	for {
		select {
		case <-f.done:
			return
		default:
		}
		_, _, err := f.events.Receive()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			f.balancer.options.Log.Warn("netlink", "error", err)
			select {
			case <-f.done:
				return
			case <-time.After(period):
			}
		}
		f.nudge()
	}
}

func (f *follower) nudge() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *follower) run() {
	for {
		if err := f.update(); err != nil {
			f.balancer.options.Log.Warn("the kernel is not followed", "error", err)
		}
		f.mu.Lock()
		close(f.looked)
		f.looked = make(chan struct{})
		f.mu.Unlock()
		select {
		case <-f.done:
			return
		case <-time.After(period):
		case <-f.wake:
			select {
			case <-f.done:
				return
			case <-time.After(pause):
			}
		}
	}
}

func (f *follower) update() error {
	view, err := look()
	if err != nil {
		return err
	}
	b := f.balancer
	if err := b.lock(); err != nil {
		return nil
	}
	targets := b.services.targets()
	b.followInterfaces(view)
	b.mu.Unlock()
	// The kernel is asked without the lock: with many destinations it takes a while.
	hops, err := f.hopsOf(view, targets)
	if err != nil {
		return err
	}
	if err := b.lock(); err != nil {
		return nil
	}
	defer b.mu.Unlock()
	for target := range b.services.targets() {
		if !targets[target] {
			// An operation was faster, and knows next hops that were not asked for here.
			f.nudge()
			return nil
		}
	}
	return errors.Join(b.setHops(hops), b.settle())
}

// nextHops that are known now; those that do not answer are asked for, and left out.
func (f *follower) nextHops(targets map[netip.Addr]bool) map[netip.Addr]NextHop {
	var hops map[netip.Addr]NextHop
	err := f.balancer.namespace.within(func() error {
		view, err := look()
		if err == nil {
			hops, err = f.hopsOf(view, targets)
		}
		return err
	})
	if err == nil {
		return hops
	}
	f.balancer.options.Log.Warn("the kernel is not followed", "error", err)
	return f.balancer.hops
}

type neighbourKey struct {
	ifindex int
	address netip.Addr
}

func (f *follower) hopsOf(view *view, targets map[netip.Addr]bool) (map[netip.Addr]NextHop, error) {
	hops := map[netip.Addr]NextHop{}
	if len(targets) == 0 {
		return hops, nil
	}
	all, err := whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, 0) })
	if err != nil {
		return nil, fmt.Errorf("the kernel does not list its neighbours: %w", err)
	}
	neighbours := map[neighbourKey]netlink.Neigh{}
	for _, one := range all {
		neighbours[neighbourKey{one.LinkIndex, addrOf(one.IP)}] = one
	}
	for target := range targets {
		if hop, known := f.hopTo(view, neighbours, target); known {
			hops[target] = hop
		}
	}
	return hops, nil
}

const (
	confirmed = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE
	valid     = confirmed | unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY
)

// step is a next hop of a route that answers.
type step struct {
	ifindex int
	direct  bool
	weight  uint32
	mac     MAC
}

func (f *follower) hopTo(view *view, neighbours map[neighbourKey]netlink.Neigh,
	target netip.Addr) (NextHop, bool) {
	// The table's entry has all next hops, and the MTU as it was set; only the packet's own route has
	// its source. The MTU of that one is not asked: the kernel takes the word of any ICMP error that
	// quotes a packet of this host, sent or not.
	entry, err := routeTo(target, true)
	if err != nil || entry.Type != unix.RTN_UNICAST {
		return NextHop{}, false
	}
	packet, err := routeTo(target, false)
	if err != nil {
		return NextHop{}, false
	}
	var steps []step
	for _, hop := range hopsOfRoute(entry) {
		next := hop.gateway
		if !next.IsValid() {
			next = target
		}
		known, is := neighbours[neighbourKey{hop.ifindex, next}]
		if !is || known.State&confirmed == 0 {
			f.probe(hop.ifindex, next)
		}
		if is && known.State&valid != 0 && len(known.HardwareAddr) == 6 {
			steps = append(steps, step{hop.ifindex, !hop.gateway.IsValid(), hop.weight,
				MAC(known.HardwareAddr)})
		}
	}
	at := share(target, steps)
	if at < 0 {
		return NextHop{}, false
	}
	device := view.links[uint32(steps[at].ifindex)]
	if device == nil || !isEthernet(device) {
		return NextHop{}, false
	}
	link, tags := view.carrier(device, steps[at].mac)
	if link == nil {
		return NextHop{}, false
	}
	mtu := device.Attrs().MTU
	if entry.MTU != 0 {
		mtu = entry.MTU
	}
	source := addrOf(packet.Src)
	if !source.IsValid() {
		source = addrOf(entry.Src)
	}
	return NextHop{
		Ifindex:   uint32(link.Attrs().Index),
		SourceMAC: MAC(device.Attrs().HardwareAddr),
		MAC:       steps[at].mac,
		VLANs:     tags,
		MTU:       uint16(min(mtu, 0xffff)),
		Direct:    steps[at].direct,
		Source:    source,
	}, true
}

// routeTo asks the kernel where a packet of ours would go.
func routeTo(target netip.Addr, entry bool) (netlink.Route, error) {
	routes, err := netlink.RouteGetWithOptions(net.IP(target.AsSlice()),
		&netlink.RouteGetOptions{FIBMatch: entry})
	if err != nil {
		return netlink.Route{}, err
	}
	if len(routes) == 0 {
		return netlink.Route{}, unix.ENETUNREACH
	}
	return routes[0], nil
}

type routeHop struct {
	ifindex int
	gateway netip.Addr
	weight  uint32
}

// hopsOfRoute leaves out those that add headers of their own (MPLS, SRv6, IP in IP).
func hopsOfRoute(route netlink.Route) []routeHop {
	gateway := func(ip net.IP, via netlink.Destination) netip.Addr {
		// IPv6 for an IPv4 route too (RFC 5549).
		if other, is := via.(*netlink.Via); is {
			return addrOf(other.Addr)
		}
		return addrOf(ip)
	}
	var hops []routeHop
	if len(route.MultiPath) == 0 && route.Encap == nil {
		hops = append(hops, routeHop{route.LinkIndex, gateway(route.Gw, route.Via), 1})
	}
	for _, hop := range route.MultiPath {
		if hop.Encap == nil {
			hops = append(hops, routeHop{hop.LinkIndex, gateway(hop.Gw, hop.Via),
				uint32(hop.Hops) + 1})
		}
	}
	return hops
}

// share is which of these a target has its share in, by their weights: the same one for as long as
// they stay the same, and the one that crates/balancer/src/next_hop.rs chooses. -1: there are none.
func share(target netip.Addr, steps []step) int {
	// FNV-1a: neighbouring addresses end far from each other, and nothing else is asked of it.
	hash := uint64(0xcbf2_9ce4_8422_2325)
	for _, one := range target.As16() {
		hash = (hash ^ uint64(one)) * 0x0100_0000_01b3
	}
	var all uint64
	for _, step := range steps {
		all += uint64(step.weight)
	}
	if all == 0 {
		return -1
	}
	point := (hash >> 16) % all
	for i, step := range steps {
		if point < uint64(step.weight) {
			return i
		}
		point -= uint64(step.weight)
	}
	return -1
}

// probe asks the kernel to find out a neighbour's address, as if there were a packet for it.
func (f *follower) probe(ifindex int, address netip.Addr) {
	family := netlink.FAMILY_V4
	if address.Is6() {
		family = netlink.FAMILY_V6
	}
	err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: ifindex,
		Family:    family,
		Flags:     netlink.NTF_USE,
		IP:        net.IP(address.AsSlice()),
	})
	if err != nil {
		f.balancer.options.Log.Debug("cannot ask for a neighbour", "address", address, "error", err)
	}
}

// WaitReachable waits until the next hops to all destinations are known, or ctx is done: for a
// program that wants them to have their share from the first packet on. Nothing else waits for the
// wire.
func (b *Balancer) WaitReachable(ctx context.Context) error {
	for {
		if err := b.lock(); err != nil {
			return err
		}
		var missing netip.Addr
		for target := range b.services.targets() {
			if _, is := b.hops[target]; !is {
				missing = target
			}
		}
		follower := b.follower
		b.mu.Unlock()
		if !missing.IsValid() {
			return nil
		}
		if follower == nil {
			return fmt.Errorf("%w: nobody has said how destination %v is reached", ErrNotFound,
				missing)
		}
		follower.mu.Lock()
		looked := follower.looked
		follower.mu.Unlock()
		select {
		case <-ctx.Done():
			return fmt.Errorf("destination %v cannot be reached: %w", missing, ctx.Err())
		case <-follower.done:
			return ErrClosed
		case <-looked:
		}
	}
}
