package butterfly_test

import (
	"fmt"
	"log"
	"net/netip"

	butterfly "butterfly/clients/go"
)

// The README's example: compiled here, and a test there says that the two are one.
func Example() {
	client, err := butterfly.Dial("unix:/run/butterfly/api.sock")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	web := butterfly.Service{
		Address: netip.MustParseAddr("192.168.101.1"), Port: 80, Protocol: butterfly.TCP,
	}
	if err := client.CreateService(web); err != nil {
		log.Fatal(err)
	}
	for _, server := range []string{"10.1.2.10", "10.1.2.11"} {
		destination := butterfly.Destination{Address: netip.MustParseAddr(server), Weight: 1}
		if err := client.CreateDestination(web, destination); err != nil {
			log.Fatal(err)
		}
	}
	if _, err := client.CreateInterface(butterfly.Interface{Name: "ens192"}); err != nil {
		log.Fatal(err)
	}

	destinations, err := client.Destinations(web)
	if err != nil {
		log.Fatal(err)
	}
	for _, one := range destinations {
		fmt.Println(one.Destination.Address, one.Health == butterfly.Healthy, one.Stats.Flows)
	}
}
