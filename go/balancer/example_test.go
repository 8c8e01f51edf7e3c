package balancer_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"butterfly/go/balancer"
)

// A web service over two servers on the interface's network. cmd/balance is the same as a program,
// which tests/go_balancer.rs runs.
func Example() {
	b, err := balancer.New(balancer.Options{MaxFlows: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()

	web := balancer.Service{Address: netip.MustParseAddr("192.168.101.1"), Port: 80,
		Protocol: balancer.TCP}
	if err := b.CreateService(web); err != nil {
		log.Fatal(err)
	}
	for _, server := range []string{"10.1.2.10", "10.1.2.11"} {
		destination := balancer.Destination{Address: netip.MustParseAddr(server), Weight: 1}
		if err := b.CreateDestination(web, destination); err != nil {
			log.Fatal(err)
		}
	}
	if _, err := b.CreateInterface(balancer.Interface{Name: "eth0"}); err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := b.WaitReachable(ctx); err != nil {
		log.Print(err)
	}
	destinations, err := b.Destinations(web)
	if err != nil {
		log.Fatal(err)
	}
	for _, one := range destinations {
		fmt.Println(one.Destination.Address, one.Reachable, one.Stats.Flows)
	}
}

// The flows of a balancer that is about to be replaced, for the one that takes its place; by what
// way they go there is the programs' affair.
func ExampleBalancer_WriteFlow() {
	options := balancer.Options{RememberAll: true, ShareFlows: true, NextHops: balancer.Told}
	old, err := balancer.New(options)
	if err != nil {
		log.Fatal(err)
	}
	defer old.Close()
	other, err := balancer.New(options)
	if err != nil {
		log.Fatal(err)
	}
	defer other.Close()

	flows, err := old.Flows(1 << 20)
	if err != nil {
		log.Fatal(err)
	}
	for _, flow := range flows {
		if _, err := other.WriteFlow(flow); err != nil {
			log.Fatal(err)
		}
	}
}
