package butterfly

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The daemon that the tests talk to; tests/go_client.rs starts it.
const endpointVariable = "BUTTERFLY_ENDPOINT"

func dial(t *testing.T) Client {
	endpoint := os.Getenv(endpointVariable)
	if endpoint == "" {
		t.Skipf("no daemon: %s names none (cargo test -p butterfly-tests --test go_client starts one)",
			endpointVariable)
	}
	client, err := Dial(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if err := client.SetConfig(Config{}); err != nil {
		t.Fatal(err)
	}
	return client
}

func addr(text string) netip.Addr {
	return netip.MustParseAddr(text)
}

func want(t *testing.T, err error, code codes.Code, part string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(err.Error(), part) {
		t.Fatalf("got %v, want %v with %q", err, code, part)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSessionWithAService(t *testing.T) {
	client := dial(t)
	web := Service{Address: addr("192.168.101.1"), Protocol: TCP, Port: 80}
	ok(t, client.CreateService(web))
	want(t, client.CreateService(web), codes.AlreadyExists, "192.168.101.1:80/tcp")

	first := Destination{Address: addr("10.1.2.10"), Weight: 1}
	second := Destination{Address: addr("10.1.2.11"), Weight: 3}
	ok(t, client.CreateDestination(web, second))
	ok(t, client.CreateDestination(web, first))
	want(t, client.CreateDestination(web, first), codes.AlreadyExists, "10.1.2.10")

	second.State = Draining
	ok(t, client.UpdateDestination(web, second))
	destinations, err := client.Destinations(web)
	ok(t, err)
	got := []Destination{}
	for _, one := range destinations {
		got = append(got, one.Destination)
	}
	if !reflect.DeepEqual(got, []Destination{first, second}) {
		t.Fatalf("destinations are %+v", got)
	}

	web.Sticky = true
	ok(t, client.UpdateService(web))
	extended, err := client.Service(web)
	ok(t, err)
	if !extended.Service.Sticky || !extended.Available || extended.Healthy != 1 {
		t.Fatalf("the service is %+v", extended)
	}

	ok(t, client.RemoveDestination(web, first))
	want(t, client.RemoveDestination(web, first), codes.NotFound, "10.1.2.10")
	ok(t, client.RemoveService(web))
	want(t, client.RemoveService(web), codes.NotFound, "192.168.101.1")
	services, err := client.Services()
	ok(t, err)
	if len(services) != 0 {
		t.Fatalf("services are left: %+v", services)
	}
}

func TestWhatIsWrongIsRefusedAndChangesNothing(t *testing.T) {
	client := dial(t)
	web := Service{Address: addr("192.168.101.1"), Protocol: TCP, Port: 80}
	nobody := Destination{Address: addr("10.1.2.10"), Weight: 1}
	_, err := client.Service(web)
	want(t, err, codes.NotFound, "192.168.101.1:80/tcp")
	want(t, client.CreateDestination(web, nobody), codes.NotFound, "192.168.101.1:80/tcp")
	want(t, client.UpdateService(web), codes.NotFound, "192.168.101.1:80/tcp")

	for part, service := range map[string]Service{
		"loopback":    {Address: addr("127.0.0.1"), Protocol: TCP, Port: 80},
		"protocol":    {Address: addr("192.168.101.1"), Protocol: 1, Port: 80},
		"tunnel_port": {Address: addr("192.168.101.1"), Protocol: TCP, Port: 80, TunnelPort: 7},
		"timeout_ms": {Address: addr("192.168.101.1"), Protocol: TCP, Port: 80,
			Check: &Check{Kind: "tcp", Interval: time.Second, Timeout: 2 * time.Second}},
	} {
		want(t, client.CreateService(service), codes.InvalidArgument, part)
	}
	icmp := Service{Address: addr("192.168.101.1"), Check: &Check{Kind: "icmp"}}
	if err := client.CreateService(icmp); err == nil {
		t.Fatal("a check of no kind is taken")
	}
	config, err := client.Config()
	ok(t, err)
	if len(config.Services) != 0 {
		t.Fatalf("something is configured: %+v", config)
	}
}

func TestAWholeConfigurationComesBackAsItWas(t *testing.T) {
	client := dial(t)
	required := uint32(2)
	config := Config{Services: []ServiceConfig{
		{
			Service: Service{
				Address: addr("192.168.101.1"), Protocol: TCP, Port: 443, Required: &required,
				Check: &Check{
					Kind: "https", Rise: 1, Fall: 2,
					Interval: 500 * time.Millisecond, Timeout: 250 * time.Millisecond,
					Method: "HEAD", Path: "/healthz", Host: "www.example.org", Statuses: []uint32{200, 204},
				},
			},
			Destinations: []Destination{{Address: addr("10.1.2.10"), Weight: 1, CheckPort: 8443}},
		},
		{
			Service: Service{
				Address: addr("2001:db8::1"), Protocol: UDP, Encapsulation: GUE, TunnelPort: 6081, Sticky: true,
				Required: &required,
			},
			Destinations: []Destination{
				{Address: addr("10.1.2.10"), Weight: 7, State: Down},
				{Address: addr("fd00::2"), Weight: 1},
			},
		},
	}}
	ok(t, client.SetConfig(config))
	got, err := client.Config()
	ok(t, err)
	if !reflect.DeepEqual(got, config) {
		t.Fatalf("got  %+v\nwant %+v", got, config)
	}
	// One that is wrong in its last service changes nothing.
	wrong := Config{Services: append(append([]ServiceConfig{}, config.Services[:1]...), ServiceConfig{
		Service: Service{Address: addr("224.0.0.1"), Protocol: TCP, Port: 1},
	})}
	want(t, client.SetConfig(wrong), codes.InvalidArgument, "224.0.0.1")
	got, err = client.Config()
	ok(t, err)
	if !reflect.DeepEqual(got, config) {
		t.Fatalf("a refused configuration changed something: %+v", got)
	}
	ok(t, client.SetConfig(Config{}))
	if info, err := client.Info(); err != nil || info.Packets != 0 {
		t.Fatalf("info is %+v, %v", info, err)
	}
}

func TestInterfacesAreTakenAndGivenBack(t *testing.T) {
	client := dial(t)
	name := os.Getenv("BUTTERFLY_INTERFACE")
	if name == "" {
		t.Skip("BUTTERFLY_INTERFACE names no interface of the daemon's host that may be balanced on")
	}
	want(t, client.ReattachBPF(name), codes.NotFound, name)
	want(t, client.RemoveInterface(name), codes.NotFound, name)
	_, err := client.CreateInterface(Interface{Name: "nosuch0"})
	want(t, err, codes.FailedPrecondition, "nosuch0")

	got, err := client.CreateInterface(Interface{Name: name, Mode: Generic})
	ok(t, err)
	expected := Interface{Name: name, Mode: Generic}
	if got != expected {
		t.Fatalf("the interface is %+v", got)
	}
	ok(t, client.ReattachBPF(name))
	all, err := client.Interfaces()
	ok(t, err)
	if !reflect.DeepEqual(all, []Interface{expected}) {
		t.Fatalf("interfaces are %+v", all)
	}
	info, err := client.Info()
	ok(t, err)
	if !reflect.DeepEqual(info.Interfaces, []string{name}) {
		t.Fatalf("info is %+v", info)
	}
	ok(t, client.RemoveInterface(name))
	all, err = client.Interfaces()
	ok(t, err)
	if len(all) != 0 {
		t.Fatalf("interfaces are left: %+v", all)
	}
}

func TestVIPsAreThoseOfTheServices(t *testing.T) {
	client := dial(t)
	required := uint32(1)
	web := Service{Address: addr("192.168.101.1"), Protocol: TCP, Port: 80, Required: &required}
	other := Service{Address: addr("192.168.101.2"), Protocol: UDP, Port: 53, Required: &required}
	ok(t, client.SetService(web, Destination{Address: addr("10.1.2.10"), Weight: 1}))
	ok(t, client.SetService(other))
	vips, err := client.VIPs()
	ok(t, err)
	both := []VIP{{Address: web.Address, Announced: true}, {Address: other.Address}}
	if !reflect.DeepEqual(vips, both) {
		t.Fatalf("VIPs are %+v", vips)
	}
	vip, err := client.VIP(other.Address)
	ok(t, err)
	if vip != vips[1] {
		t.Fatalf("the VIP is %+v", vip)
	}
	_, err = client.VIP(addr("192.168.101.3"))
	want(t, err, codes.NotFound, "192.168.101.3")
}

func TestServicesAreListedAsTheyStand(t *testing.T) {
	client := dial(t)
	web := Service{Address: addr("192.168.101.1"), Protocol: TCP, Port: 80}
	ok(t, client.SetService(web, Destination{Address: addr("10.1.2.10"), Weight: 2}))
	// Set again, with others: they are the ones that are left.
	ok(t, client.SetService(web, Destination{Address: addr("10.1.2.11"), Weight: 1}))
	services, err := client.Services()
	ok(t, err)
	if len(services) != 1 || services[0].Service.Address != web.Address || services[0].Healthy != 1 {
		t.Fatalf("services are %+v", services)
	}
	destinations, err := client.Destinations(web)
	ok(t, err)
	if len(destinations) != 1 || destinations[0].Destination.Address != addr("10.1.2.11") ||
		destinations[0].Health != Healthy || destinations[0].Stats != (Stats{}) {
		t.Fatalf("destinations are %+v", destinations)
	}
	_, err = client.Destinations(Service{Address: addr("192.168.101.9"), Protocol: TCP, Port: 80})
	want(t, err, codes.NotFound, "192.168.101.9")
	absent := Destination{Address: addr("10.1.2.12"), Weight: 1}
	want(t, client.UpdateDestination(web, absent), codes.NotFound, "10.1.2.12")
	down := Destination{Address: addr("10.1.2.11"), Weight: 9, State: Down}
	ok(t, client.UpdateDestination(web, down))
	destinations, err = client.Destinations(web)
	ok(t, err)
	if destinations[0].Destination != down {
		t.Fatalf("the destination is %+v", destinations[0])
	}
}

func TestWeightZeroDrainsAsInIPVS(t *testing.T) {
	client := dial(t)
	web := Service{Address: addr("192.168.101.1"), Protocol: TCP, Port: 80}
	ok(t, client.SetService(web, Destination{Address: addr("10.1.2.10")}))
	destinations, err := client.Destinations(web)
	ok(t, err)
	if len(destinations) != 1 || destinations[0].Destination.State != Draining {
		t.Fatalf("destinations are %+v", destinations)
	}
}

func TestGeneratedCodeIsThatOfTheProto(t *testing.T) {
	proto, err := os.ReadFile("../../proto/butterfly/v1/balancer.proto")
	if os.IsNotExist(err) {
		t.Skip("the .proto is not here: this is a copy of the module alone")
	}
	ok(t, err)
	recorded, err := os.ReadFile("balancer.proto.sha256")
	ok(t, err)
	sum := sha256.Sum256(proto)
	if hex.EncodeToString(sum[:]) != strings.TrimSpace(string(recorded)) {
		t.Fatal("balancerpb is not that of proto/butterfly/v1/balancer.proto any more: " +
			"run clients/go/generate.sh")
	}
}
