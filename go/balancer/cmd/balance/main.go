// Command balance balances TCP connections to an address over servers, until it is interrupted, and
// prints their counters every second. It asks nobody whether the servers work: cmd/healthy does.
//
//	balance [-port 80] [-mode native] eth0 192.168.101.1 10.1.2.10 10.1.2.11
//
// The servers have the address on their loopback interface. Needs root, or CAP_BPF, CAP_NET_ADMIN
// and CAP_PERFMON.
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
	modes := map[string]balancer.Mode{
		"any": balancer.AnyMode, "native": balancer.Native,
		"generic": balancer.Generic, "tc": balancer.TC}
	wanted, known := modes[*mode]
	if flag.NArg() < 3 || *port > 65535 || !known {
		log.Fatal("usage: balance [-port PORT] [-mode MODE] INTERFACE ADDRESS SERVER...")
	}
	b, err := balancer.New(balancer.Options{})
	check(err)
	// With the balancer its interface is given back to the kernel.
	defer b.Close()

	vip, err := netip.ParseAddr(flag.Arg(1))
	check(err)
	service := balancer.Service{Address: vip, Port: uint16(*port), Protocol: balancer.TCP}
	check(b.CreateService(service))
	for _, word := range flag.Args()[2:] {
		server, err := netip.ParseAddr(word)
		check(err)
		check(b.CreateDestination(service, balancer.Destination{Address: server, Weight: 1}))
	}
	taken, err := b.CreateInterface(balancer.Interface{Name: flag.Arg(0), Mode: wanted})
	check(err)
	fmt.Printf("balancing %v on %s (%v)\n", service, taken.Name, taken.Mode)

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	for every := time.Tick(time.Second); ; {
		select {
		case <-stop:
			return
		case <-every:
			destinations, err := b.Destinations(service)
			check(err)
			for _, one := range destinations {
				fmt.Printf("%v: %d flows, %d packets\n",
					one.Destination.Address, one.Stats.Flows, one.Stats.Packets)
			}
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
