// Command rows lets the tests of the Rust library (crates/balancer/tests/rows) play on this one: a
// line of JSON in, an operation on a balancer, a line of JSON out. Packets are tried by
// BPF_PROG_TEST_RUN.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"butterfly/go/balancer"
)

type request struct {
	Op          string
	Options     options
	Ifindex     uint32
	MAC         balancer.MAC
	Out         uint32
	Mode        balancer.Mode
	Hops        map[netip.Addr]balancer.NextHop
	Config      balancer.Config
	Service     balancer.Service
	Destination balancer.Destination
	Tuple       balancer.Tuple
	Limit       int
	Frame       string
	CPUs        []int
}

type options struct {
	MaxFlows        uint32
	MaxServices     uint16
	MaxDestinations uint16
	IdleSecs        int64
	SettleSecs      int64
	RememberAll     bool
	Seed            uint64
	Source4         netip.Addr
	Source6         netip.Addr
}

type answer struct {
	Error   string            `json:",omitempty"`
	Mode    balancer.Mode     `json:",omitempty"`
	Verdict uint32            `json:",omitempty"`
	Frame   string            `json:",omitempty"`
	Reasons map[string]uint64 `json:",omitempty"`
	Servers []served          `json:",omitempty"`
	Settled bool              `json:",omitempty"`
	Flows   []balancer.Flow   `json:",omitempty"`
	Live    []balancer.LiveFlow
	Explain *balancer.Explanation
}

type served struct {
	Service     balancer.Service
	Destination netip.Addr
	Stats       balancer.Stats
}

type player struct {
	balancer *balancer.Balancer
	cpus     []int
}

func main() {
	// Packets are tried on the CPU that the row asks for.
	runtime.LockOSThread()
	in, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	var player player
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var request request
		var said answer
		if err = json.Unmarshal(line, &request); err == nil {
			err = player.play(&request, &said)
		}
		if err != nil {
			said = answer{Error: err.Error()}
		}
		if err := out.Encode(said); err != nil {
			return
		}
	}
}

func (p *player) play(r *request, said *answer) (err error) {
	b := p.balancer
	switch r.Op {
	case "new":
		settle := time.Duration(r.Options.SettleSecs) * time.Second
		if settle == 0 {
			settle = -1
		}
		p.balancer, err = balancer.New(balancer.Options{
			MaxFlows:        r.Options.MaxFlows,
			MaxServices:     r.Options.MaxServices,
			MaxDestinations: r.Options.MaxDestinations,
			Idle:            time.Duration(r.Options.IdleSecs) * time.Second,
			Settle:          settle,
			RememberAll:     r.Options.RememberAll,
			Seed:            r.Options.Seed,
			Source4:         r.Options.Source4,
			Source6:         r.Options.Source6,
			NextHops:        balancer.Told,
		})
		return err
	case "link":
		return b.SetLink(balancer.Link{Ifindex: r.Ifindex, MAC: r.MAC, Out: r.Out})
	case "forget":
		return b.RemoveLink(r.Ifindex)
	case "attach":
		link, err := netlink.LinkByIndex(int(r.Ifindex))
		if err != nil {
			return err
		}
		made, err := b.CreateInterface(balancer.Interface{Name: link.Attrs().Name, Mode: r.Mode})
		said.Mode = made.Mode
		return err
	case "hops":
		return b.SetNextHops(r.Hops)
	case "config":
		return b.SetConfig(r.Config)
	case "update destination":
		return b.UpdateDestination(r.Service, r.Destination)
	case "remove destination":
		return b.RemoveDestination(r.Service, r.Destination)
	case "remove service":
		return b.RemoveService(r.Service)
	case "run":
		return p.run(r, said)
	case "counters":
		return p.counters(said)
	case "settle":
		return b.Settle()
	case "flows":
		said.Flows, err = b.Flows(r.Limit)
		return err
	case "live":
		said.Live, err = b.LiveFlows()
		return err
	case "explain":
		found, err := b.Explain(r.Tuple)
		if errors.Is(err, balancer.ErrNotFound) {
			return nil
		}
		said.Explain = &found
		return err
	}
	return fmt.Errorf("there is no operation %q", r.Op)
}

func (p *player) run(r *request, said *answer) error {
	if !slices.Equal(p.cpus, r.CPUs) {
		var set unix.CPUSet
		for _, cpu := range r.CPUs {
			set.Set(cpu)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return err
		}
		p.cpus = r.CPUs
	}
	program, err := p.balancer.Program(r.Mode)
	if err != nil {
		return err
	}
	frame, err := hex.DecodeString(r.Frame)
	if err != nil {
		return err
	}
	run := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Repeat: 1}
	if said.Verdict, err = program.Run(&run); err != nil {
		return err
	}
	said.Frame = hex.EncodeToString(run.DataOut)
	return nil
}

func (p *player) counters(said *answer) error {
	info, err := p.balancer.Info()
	if err != nil {
		return err
	}
	said.Reasons, said.Settled = info.Reasons, info.Settled
	services, err := p.balancer.Services()
	if err != nil {
		return err
	}
	for _, one := range services {
		destinations, err := p.balancer.Destinations(one.Service)
		if err != nil {
			return err
		}
		for _, its := range destinations {
			said.Servers = append(said.Servers, served{one.Service, its.Destination.Address,
				its.Stats})
		}
	}
	return nil
}
