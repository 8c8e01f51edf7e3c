package balancer

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The compiled programs: bpf/balancer.bpf.c, for XDP and for tc ingress. objects/build.sh makes
// them; object_test.go says when that is due.
var (
	//go:embed objects/balancer.bpf.o
	objectXDP []byte
	//go:embed objects/balancer.tc.o
	objectTC []byte
)

// program is the balancer's in the kernel: for XDP, and for tc ingress when that was asked for
// first; both over one set of maps.
type program struct {
	settings settings
	options  Options
	xdp      *ebpf.Program
	tc       *ebpf.Program
	maps     map[string]*ebpf.Map
	// own are the maps of the part for tc that it shares with nobody.
	own []*ebpf.Map
}

func load(options Options, settings settings) (*program, error) {
	p := &program{settings: settings, options: options, maps: map[string]*ebpf.Map{}}
	collection, err := p.collection(objectXDP, nil)
	if err != nil {
		return nil, err
	}
	p.xdp = collection.Programs["balancer"]
	p.maps = collection.Maps
	return p, nil
}

// forTC is the part for tc ingress, loaded at its first use: the verifier takes its time for each.
func (p *program) forTC() (*ebpf.Program, error) {
	if p.tc != nil {
		return p.tc, nil
	}
	// A program array is of one kind of program; constants are an object's own (their maps' names
	// have a dot).
	shared := maps.Clone(p.maps)
	maps.DeleteFunc(shared, func(name string, _ *ebpf.Map) bool {
		return name == "chain" || strings.Contains(name, ".")
	})
	collection, err := p.collection(objectTC, shared)
	if err != nil {
		return nil, err
	}
	p.tc = collection.Programs["balancer"]
	for name, table := range collection.Maps {
		if _, is := shared[name]; is {
			table.Close()
		} else {
			p.own = append(p.own, table)
		}
	}
	return p.tc, nil
}

func (p *program) collection(object []byte, shared map[string]*ebpf.Map) (*ebpf.Collection, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("the load balancer's object: %w", err)
	}
	set := p.settings
	sizes := map[string]uint32{
		"vips":            2 * set.Vips,
		"ports":           2 * set.Ports,
		"maglevs":         2 * set.MaxServices,
		"servers":         2 * set.MaxServers,
		"server_counters": set.MaxServers,
		"flows":           set.Buckets,
		"flow_names":      set.Buckets * bucketSlots,
	}
	for name, entries := range sizes {
		one := spec.Maps[name]
		if one == nil {
			return nil, fmt.Errorf("the load balancer's object has no map %s", name)
		}
		one.MaxEntries = entries
	}
	if p.options.ShareFlows {
		spec.Maps["flows"].Flags |= unix.BPF_F_MMAPABLE
	}
	variable := spec.Variables["settings"]
	if variable == nil {
		return nil, fmt.Errorf("the load balancer's object has no settings")
	}
	if err := variable.Set(set); err != nil {
		return nil, fmt.Errorf("the load balancer's settings: %w", err)
	}
	collection, err := ebpf.NewCollectionWithOptions(spec,
		ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return nil, fmt.Errorf("the kernel does not take the load balancer's program "+
			"(Linux 5.18 is needed, and CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON): %w", err)
	}
	if collection.Programs["balancer"] == nil {
		collection.Close()
		return nil, fmt.Errorf("the load balancer's object has no program of that name")
	}
	return collection, nil
}

func (p *program) close() {
	p.xdp.Close()
	if p.tc != nil {
		p.tc.Close()
	}
	for _, one := range p.own {
		one.Close()
	}
	for _, one := range p.maps {
		one.Close()
	}
}
