// Command healthy balances a web service over those of its servers that answer: each is asked for
// the root page, at its own address, every second. One that fails three times gets nothing any
// more, its connections included; one that answers twice has its share again. While nobody answers,
// all keep their shares: it may be the way of the checks that is broken.
//
//	healthy [-port 80] eth0 192.168.101.1 10.1.2.10 10.1.2.11
//
// The servers have the address on their loopback interface, and answer at their own one too. A
// check by the service's address, as butterflyd has it, is docs/balancer.md's.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"net/netip"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"butterfly/go/balancer"
)

const (
	interval = time.Second
	patience = 500 * time.Millisecond
	rise     = 2
	fall     = 3
)

// server is what is known of one.
type server struct {
	address netip.Addr
	healthy bool
	// row is how many answers in a row were other than what it is taken for.
	row int
}

func main() {
	port := flag.Uint("port", 80, "of the service and of the servers")
	flag.Parse()
	if flag.NArg() < 3 || *port == 0 || *port > 65535 {
		log.Fatal("usage: healthy [-port PORT] INTERFACE ADDRESS SERVER...")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, uint16(*port), flag.Args()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, port uint16, words []string) error {
	vip, err := netip.ParseAddr(words[1])
	if err != nil {
		return err
	}
	var servers []*server
	for _, word := range words[2:] {
		address, err := netip.ParseAddr(word)
		if err != nil {
			return err
		}
		servers = append(servers, &server{address: address, healthy: true})
	}
	b, err := balancer.New(balancer.Options{})
	if err != nil {
		return err
	}
	defer b.Close()
	service := balancer.Service{Address: vip, Port: port, Protocol: balancer.TCP}
	if err := publish(b, service, servers); err != nil {
		return err
	}
	taken, err := b.CreateInterface(balancer.Interface{Name: words[0]})
	if err != nil {
		return err
	}
	log.Printf("balancing %v on %s (%v)", service, taken.Name, taken.Mode)

	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	for every := time.NewTicker(interval); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		}
		if !round(ctx, client, port, servers) {
			continue
		}
		if err := publish(b, service, servers); err != nil {
			return err
		}
	}
}

// round asks all servers at once; true: some is taken for something else than before.
func round(ctx context.Context, client *http.Client, port uint16, servers []*server) bool {
	answers := make([]error, len(servers))
	var asking sync.WaitGroup
	for i, one := range servers {
		asking.Add(1)
		go func() {
			defer asking.Done()
			answers[i] = ask(ctx, client, netip.AddrPortFrom(one.address, port))
		}()
	}
	asking.Wait()
	changed := false
	for i, one := range servers {
		if (answers[i] == nil) == one.healthy {
			one.row = 0
			continue
		}
		one.row++
		if one.healthy && one.row < fall || !one.healthy && one.row < rise {
			continue
		}
		one.healthy, one.row, changed = !one.healthy, 0, true
		log.Printf("%v: healthy %v (%v)", one.address, one.healthy, answers[i])
	}
	return changed
}

func ask(ctx context.Context, client *http.Client, at netip.AddrPort) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, "http://"+at.String()+"/", nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode >= 500 {
		return &statusError{answer.Status}
	}
	return nil
}

type statusError struct{ status string }

func (e *statusError) Error() string { return "answered " + e.status }

// publish puts in force, at once, who has a share.
func publish(b *balancer.Balancer, service balancer.Service, servers []*server) error {
	anybody := false
	for _, one := range servers {
		anybody = anybody || one.healthy
	}
	var all []balancer.Destination
	for _, one := range servers {
		destination := balancer.Destination{Address: one.address, Weight: 1}
		if anybody && !one.healthy {
			destination.State = balancer.Down
		}
		all = append(all, destination)
	}
	return b.SetService(service, all...)
}
