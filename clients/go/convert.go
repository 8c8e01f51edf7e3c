package butterfly

import (
	"fmt"
	"net/netip"
	"time"

	pb "butterfly/clients/go/balancerpb"
)

func (s Service) key() *pb.ServiceKey {
	return &pb.ServiceKey{
		Vip:      s.Address.String(),
		Protocol: uint32(s.Protocol),
		Port:     uint32(s.Port),
		AllPorts: s.Port == 0,
	}
}

// The two enumerations differ by the unspecified value in front.
func (e Encapsulation) message() pb.Encapsulation {
	return pb.Encapsulation(e) + 1
}

func (s Service) message(destinations []Destination) (*pb.Service, error) {
	message := &pb.Service{
		Key:           s.key(),
		Encapsulation: s.Encapsulation.message(),
		TunnelPort:    uint32(s.TunnelPort),
		Sticky:        s.Sticky,
		MinHealthy:    s.Required,
	}
	for _, destination := range destinations {
		message.Servers = append(message.Servers, destination.message())
	}
	if s.Check == nil {
		return message, nil
	}
	check, err := s.Check.message()
	message.Check = check
	return message, err
}

func (c Check) message() (*pb.HealthCheck, error) {
	message := &pb.HealthCheck{
		IntervalMs: uint32(c.Interval.Milliseconds()),
		TimeoutMs:  uint32(c.Timeout.Milliseconds()),
		Rise:       c.Rise,
		Fall:       c.Fall,
		Port:       uint32(c.Port),
	}
	switch c.Kind {
	case "tcp":
		message.Kind = &pb.HealthCheck_Tcp{Tcp: &pb.TcpCheck{}}
	case "http", "https":
		message.Kind = &pb.HealthCheck_Http{Http: &pb.HttpCheck{
			Tls:      c.Kind == "https",
			Method:   c.Method,
			Path:     c.Path,
			Host:     c.Host,
			Statuses: c.Statuses,
		}}
	case "dns", "dns-tcp":
		check := &pb.DnsCheck{Tcp: c.Kind == "dns-tcp", Name: c.Name, Type: c.Type}
		message.Kind = &pb.HealthCheck_Dns{Dns: check}
	case "command":
		message.Kind = &pb.HealthCheck_Command{Command: &pb.CommandCheck{Words: c.Command}}
	default:
		return nil, fmt.Errorf("check kind %q is not tcp, http, https, dns, dns-tcp or command", c.Kind)
	}
	return message, nil
}

func (d Destination) message() *pb.Server {
	weight, state := uint32(d.Weight), pb.ServerState(d.State)+1
	if d.Weight == 0 {
		weight = 1
		if d.State == Up {
			state = pb.ServerState_SERVER_STATE_DRAINING
		}
	}
	return &pb.Server{
		Address:   d.Address.String(),
		Weight:    &weight,
		State:     state,
		CheckPort: uint32(d.CheckPort),
	}
}

// The daemon's answers are canonical: an address that does not parse is none of its.
func address(text string) netip.Addr {
	address, _ := netip.ParseAddr(text)
	return address
}

func serviceOf(message *pb.Service) Service {
	service := Service{
		Address:    address(message.GetKey().GetVip()),
		Protocol:   Protocol(message.GetKey().GetProtocol()),
		Port:       uint16(message.GetKey().GetPort()),
		TunnelPort: uint16(message.GetTunnelPort()),
		Sticky:     message.GetSticky(),
		Required:   message.MinHealthy,
		Check:      checkOf(message.GetCheck()),
	}
	if message.GetEncapsulation() != pb.Encapsulation_ENCAPSULATION_UNSPECIFIED {
		service.Encapsulation = Encapsulation(message.GetEncapsulation() - 1)
	}
	return service
}

func checkOf(message *pb.HealthCheck) *Check {
	if message == nil {
		return nil
	}
	check := &Check{
		Port:     uint16(message.Port),
		Interval: time.Duration(message.IntervalMs) * time.Millisecond,
		Timeout:  time.Duration(message.TimeoutMs) * time.Millisecond,
		Rise:     message.Rise,
		Fall:     message.Fall,
	}
	switch kind := message.Kind.(type) {
	case *pb.HealthCheck_Tcp:
		check.Kind = "tcp"
	case *pb.HealthCheck_Http:
		check.Kind = "http"
		if kind.Http.Tls {
			check.Kind = "https"
		}
		check.Method, check.Path, check.Host = kind.Http.Method, kind.Http.Path, kind.Http.Host
		check.Statuses = kind.Http.Statuses
	case *pb.HealthCheck_Dns:
		check.Kind = "dns"
		if kind.Dns.Tcp {
			check.Kind = "dns-tcp"
		}
		check.Name, check.Type = kind.Dns.Name, kind.Dns.Type
	case *pb.HealthCheck_Command:
		check.Kind, check.Command = "command", kind.Command.Words
	}
	return check
}

func destinationOf(message *pb.Server) Destination {
	destination := Destination{
		Address:   address(message.GetAddress()),
		Weight:    uint16(message.GetWeight()),
		CheckPort: uint16(message.GetCheckPort()),
	}
	if message.GetState() != pb.ServerState_SERVER_STATE_UNSPECIFIED {
		destination.State = State(message.GetState() - 1)
	}
	return destination
}

func extended(message *pb.ServiceStatus) ServiceExtended {
	return ServiceExtended{
		Service:   serviceOf(message.GetService()),
		Available: message.GetInService(),
		Announced: message.GetAnnounced(),
		Healthy:   int(message.GetHealthy()),
		Stats:     statsOf(message.GetCounters()),
	}
}

func extendedDestination(message *pb.ServerStatus) DestinationExtended {
	health := HealthUnknown
	switch message.GetHealth() {
	case pb.Health_HEALTH_HEALTHY:
		health = Healthy
	case pb.Health_HEALTH_UNHEALTHY:
		health = Unhealthy
	}
	return DestinationExtended{
		Destination: destinationOf(message.GetServer()),
		Health:      health,
		Detail:      message.GetDetail(),
		Since:       time.Duration(message.GetSinceMs()) * time.Millisecond,
		Interface:   message.GetInterface(),
		MAC:         message.GetMac(),
		Stats:       statsOf(message.GetCounters()),
	}
}

func statsOf(message *pb.Counters) Stats {
	return Stats{Octets: message.GetBytes(), Packets: message.GetPackets(), Flows: message.GetFlows()}
}

func (s *Stats) add(other Stats) {
	s.Octets += other.Octets
	s.Packets += other.Packets
	s.Flows += other.Flows
}
