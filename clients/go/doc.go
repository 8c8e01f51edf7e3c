// Package butterfly drives the load balancer of butterflyd: services, and the destinations that
// they are spread over.
//
// Its types read like those of the IPVS libraries: a Client has Services, each with Destinations,
// which are created, updated and removed. What is behind them is the gRPC service Balancer of API
// v1; package balancerpb is its generated code, for what the types here do not say (health checks
// in all detail, watching).
//
// 	client, err := butterfly.Dial("unix:/run/butterfly/api.sock") service :=
// 	butterfly.Service{Address: netip.MustParseAddr("192.168.101.1"), Port: 80, Protocol:
// 	butterfly.TCP} err = client.CreateService(service) err = client.CreateDestination(service,
// 	butterfly.Destination{Address: netip.MustParseAddr("10.1.2.10"), Weight: 1})
//
// Errors are those of gRPC (google.golang.org/grpc/status): AlreadyExists, NotFound,
// InvalidArgument …; each carries the daemon's sentence.
package butterfly
