package butterfly

import (
	"context"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "butterfly/clients/go/balancerpb"
)

// Client drives the balancer. Its methods may be called from several goroutines.
type Client interface {
	// Info is what the balancer does as a whole.
	Info() (Info, error)
	// Config is all services with their destinations.
	Config() (Config, error)
	// SetConfig makes the services exactly these, in one step: all or nothing.
	SetConfig(Config) error

	// Services lists all services as they stand.
	Services() ([]ServiceExtended, error)
	// Service is the one of that address, protocol and port.
	Service(Service) (ServiceExtended, error)
	// CreateService adds a service without destinations. AlreadyExists.
	CreateService(Service) error
	// UpdateService changes the values of a service, and leaves its destinations. NotFound.
	UpdateService(Service) error
	// SetService creates a service or replaces it, destinations and all, in one step.
	SetService(Service, ...Destination) error
	// RemoveService deletes a service. NotFound.
	RemoveService(Service) error

	// Destinations lists those of a service as they stand. NotFound.
	Destinations(Service) ([]DestinationExtended, error)
	// CreateDestination adds one. AlreadyExists; NotFound for the service.
	CreateDestination(Service, Destination) error
	// UpdateDestination changes the values of one. NotFound.
	UpdateDestination(Service, Destination) error
	// RemoveDestination takes one out, and ends its flows. NotFound.
	RemoveDestination(Service, Destination) error

	// VIPs lists the services' addresses, each with what all its services received.
	VIPs() ([]VIP, error)
	// VIP is the one of that address. NotFound.
	VIP(netip.Addr) (VIP, error)

	// Interfaces lists those that are balanced on.
	Interfaces() ([]Interface, error)
	// CreateInterface begins to balance on an interface of the daemon's host, and gives it with
	// the mode it got. In the other mode the program is attached anew. FailedPrecondition where
	// there is no such interface.
	CreateInterface(Interface) (Interface, error)
	// RemoveInterface gives one back to the kernel. NotFound.
	RemoveInterface(name string) error
	// ReattachBPF takes the program off an interface and puts it on again, in the mode that was
	// asked for: for NICs that lose it when their link is negotiated anew. Packets that come
	// meanwhile are the kernel's. NotFound; FailedPrecondition where it cannot be put on again:
	// the interface stays, and gets it when it can. Unimplemented where the daemon is of a
	// version before: nothing has changed.
	ReattachBPF(name string) error

	// Close ends the connection.
	Close() error
}

// The longest time that a call may take.
const patience = 10 * time.Second

type client struct {
	connection *grpc.ClientConn
	balancer   pb.BalancerClient
}

// Dial gives a client of the daemon at an endpoint as unix:/run/butterfly/api.sock. For TCP pass
// grpc.WithTransportCredentials with the daemon's authority and a certificate of one's own.
func Dial(endpoint string, options ...grpc.DialOption) (Client, error) {
	// A unix socket is guarded by its permissions; whoever gives credentials overrides this.
	all := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	connection, err := grpc.Dial(endpoint, append(all, options...)...)
	if err != nil {
		return nil, err
	}
	return &client{connection, pb.NewBalancerClient(connection)}, nil
}

func (c *client) Close() error {
	return c.connection.Close()
}

func (c *client) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func (c *client) Info() (Info, error) {
	ctx, cancel := c.context()
	defer cancel()
	stats, err := c.balancer.GetBalancerStats(ctx, &pb.GetBalancerStatsRequest{})
	if err != nil {
		return Info{}, err
	}
	interfaces, err := c.balancer.ListBalancerInterfaces(ctx, &pb.ListBalancerInterfacesRequest{})
	if err != nil {
		return Info{}, err
	}
	info := Info{Dropped: map[string]uint64{}}
	for _, service := range stats.Services {
		info.Stats.add(statsOf(service.Counters))
	}
	for _, drop := range stats.Drops {
		info.Dropped[drop.Reason] = drop.Packets
	}
	for _, one := range interfaces.Interfaces {
		info.Interfaces = append(info.Interfaces, one.Name)
	}
	return info, nil
}

func (c *client) Config() (Config, error) {
	ctx, cancel := c.context()
	defer cancel()
	answer, err := c.balancer.GetBalancerConfig(ctx, &pb.GetBalancerConfigRequest{})
	if err != nil {
		return Config{}, err
	}
	config := Config{}
	for _, message := range answer.Services {
		one := ServiceConfig{Service: serviceOf(message)}
		for _, server := range message.Servers {
			one.Destinations = append(one.Destinations, destinationOf(server))
		}
		config.Services = append(config.Services, one)
	}
	return config, nil
}

func (c *client) SetConfig(config Config) error {
	ctx, cancel := c.context()
	defer cancel()
	message := &pb.BalancerConfig{}
	for _, one := range config.Services {
		service, err := one.Service.message(one.Destinations)
		if err != nil {
			return err
		}
		message.Services = append(message.Services, service)
	}
	_, err := c.balancer.ApplyBalancer(ctx, &pb.ApplyBalancerRequest{Config: message})
	return err
}

func (c *client) Services() ([]ServiceExtended, error) {
	ctx, cancel := c.context()
	defer cancel()
	answer, err := c.balancer.ListServices(ctx, &pb.ListServicesRequest{})
	if err != nil {
		return nil, err
	}
	services := []ServiceExtended{}
	for _, message := range answer.Services {
		services = append(services, extended(message))
	}
	return services, nil
}

func (c *client) Service(service Service) (ServiceExtended, error) {
	ctx, cancel := c.context()
	defer cancel()
	answer, err := c.balancer.GetService(ctx, &pb.GetServiceRequest{Key: service.key()})
	if err != nil {
		return ServiceExtended{}, err
	}
	return extended(answer), nil
}

func (c *client) CreateService(service Service) error {
	return c.put(service, nil, true)
}

func (c *client) SetService(service Service, destinations ...Destination) error {
	return c.put(service, destinations, false)
}

func (c *client) put(service Service, destinations []Destination, createOnly bool) error {
	ctx, cancel := c.context()
	defer cancel()
	message, err := service.message(destinations)
	if err != nil {
		return err
	}
	request := &pb.PutServiceRequest{Service: message, CreateOnly: createOnly}
	_, err = c.balancer.PutService(ctx, request)
	return err
}

func (c *client) UpdateService(service Service) error {
	ctx, cancel := c.context()
	defer cancel()
	message, err := service.message(nil)
	if err != nil {
		return err
	}
	required := uint32(1)
	if service.Required != nil {
		required = *service.Required
	}
	_, err = c.balancer.UpdateService(ctx, &pb.UpdateServiceRequest{
		Key:           message.Key,
		Encapsulation: &message.Encapsulation,
		TunnelPort:    &message.TunnelPort,
		Sticky:        &message.Sticky,
		MinHealthy:    &required,
		Check:         message.Check,
		NoCheck:       message.Check == nil,
	})
	return err
}

func (c *client) RemoveService(service Service) error {
	ctx, cancel := c.context()
	defer cancel()
	answer, err := c.balancer.DeleteService(ctx, &pb.DeleteServiceRequest{Key: service.key()})
	if err == nil && !answer.Existed {
		return status.Errorf(codes.NotFound, "there is no service %v port %d",
			service.Address, service.Port)
	}
	return err
}

func (c *client) Destinations(service Service) ([]DestinationExtended, error) {
	ctx, cancel := c.context()
	defer cancel()
	answer, err := c.balancer.GetService(ctx, &pb.GetServiceRequest{Key: service.key()})
	if err != nil {
		return nil, err
	}
	destinations := []DestinationExtended{}
	for _, message := range answer.Servers {
		destinations = append(destinations, extendedDestination(message))
	}
	return destinations, nil
}

func (c *client) CreateDestination(service Service, destination Destination) error {
	ctx, cancel := c.context()
	defer cancel()
	request := &pb.PutServerRequest{
		Key: service.key(), Server: destination.message(), CreateOnly: true,
	}
	_, err := c.balancer.PutServer(ctx, request)
	return err
}

func (c *client) UpdateDestination(service Service, destination Destination) error {
	ctx, cancel := c.context()
	defer cancel()
	message := destination.message()
	checkPort := uint32(destination.CheckPort)
	_, err := c.balancer.UpdateServer(ctx, &pb.UpdateServerRequest{
		Key:       service.key(),
		Address:   message.Address,
		Weight:    message.Weight,
		State:     &message.State,
		CheckPort: &checkPort,
	})
	return err
}

func (c *client) RemoveDestination(service Service, destination Destination) error {
	ctx, cancel := c.context()
	defer cancel()
	request := &pb.DeleteServerRequest{Key: service.key(), Address: destination.Address.String()}
	answer, err := c.balancer.DeleteServer(ctx, request)
	if err == nil && !answer.Existed {
		return status.Errorf(codes.NotFound, "the service has no destination %v", destination.Address)
	}
	return err
}
