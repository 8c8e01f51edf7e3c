// Command balance balances TCP connections to an address over servers, until it is interrupted, and
// prints their counters every second. It asks nobody whether the servers work: cmd/healthy does.
//
//	balance [-port 80] [-mode native] eth0 10.1.2.3 192.168.101.1 10.1.2.10 10.1.2.11
//
// The first address is this host's own, the second the service's, which the servers have on their
// loopback interface. Needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON.
package main

import (
	"flag"
	"fmt"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"butterfly/go/balancer"
)

func main() {
	port := flag.Uint("port", 80, "of the service")
	mode := flag.String("mode", "any", "how to run on the interface: native, generic, tc or any")
	flag.Parse()
	wanted, known := map[string]balancer.Mode{"any": balancer.AnyMode, "tc": balancer.TC,
		"native": balancer.Native, "generic": balancer.Generic}[*mode]
	if flag.NArg() < 4 || *port > 65535 || !known {
		log.Fatal("usage: balance [-port PORT] [-mode MODE] INTERFACE OWN-ADDRESS ADDRESS SERVER...")
	}
	var options balancer.Options
	// Whom senders hear of packets that are too big.
	if own := must(netip.ParseAddr(flag.Arg(1))); own.Is4() {
		options.Source4 = own
	} else {
		options.Source6 = own
	}
	b := must(balancer.New(options))
	// With the balancer its interface is given back to the kernel.
	defer b.Close()
	service := balancer.Service{Address: must(netip.ParseAddr(flag.Arg(2))),
		Port: uint16(*port), Protocol: balancer.TCP}
	must(0, b.CreateService(service))
	for _, word := range flag.Args()[3:] {
		server := balancer.Destination{Address: must(netip.ParseAddr(word)), Weight: 1}
		must(0, b.CreateDestination(service, server))
	}
	taken := must(b.CreateInterface(balancer.Interface{Name: flag.Arg(0), Mode: wanted}))
	fmt.Printf("balancing %v on %s (%v)\n", service, taken.Name, taken.Mode)

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	for every := time.Tick(time.Second); ; {
		select {
		case <-stop:
			return
		case <-every:
			for _, one := range must(b.Destinations(service)) {
				fmt.Printf("%v: %d flows, %d packets\n",
					one.Destination.Address, one.Stats.Flows, one.Stats.Packets)
			}
		}
	}
}

// must is a value, or the end of the program.
func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
