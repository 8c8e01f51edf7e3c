package butterfly

import (
	"net/netip"
	"sort"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "butterfly/clients/go/balancerpb"
)

func (c *client) Interfaces() ([]Interface, error) {
	ctx, cancel := c.context()
	defer cancel()
	answer, err := c.balancer.ListBalancerInterfaces(ctx, &pb.ListBalancerInterfacesRequest{})
	if err != nil {
		return nil, err
	}
	interfaces := []Interface{}
	for _, message := range answer.Interfaces {
		interfaces = append(interfaces, Interface{Name: message.Name, Mode: Mode(message.Mode)})
	}
	return interfaces, nil
}

func (c *client) CreateInterface(wanted Interface) (Interface, error) {
	ctx, cancel := c.context()
	defer cancel()
	request := &pb.AddBalancerInterfaceRequest{Name: wanted.Name, Mode: pb.XdpMode(wanted.Mode)}
	answer, err := c.balancer.AddBalancerInterface(ctx, request)
	if err != nil {
		return Interface{}, err
	}
	return Interface{Name: answer.Name, Mode: Mode(answer.Mode)}, nil
}

func (c *client) RemoveInterface(name string) error {
	ctx, cancel := c.context()
	defer cancel()
	request := &pb.DeleteBalancerInterfaceRequest{Name: name}
	answer, err := c.balancer.DeleteBalancerInterface(ctx, request)
	if err == nil && !answer.Existed {
		return noInterface(name)
	}
	return err
}

func (c *client) ReattachBPF(name string) error {
	ctx, cancel := c.context()
	defer cancel()
	request := &pb.ReattachBalancerInterfaceRequest{Name: name}
	_, err := c.balancer.ReattachBalancerInterface(ctx, request)
	return err
}

func noInterface(name string) error {
	return status.Errorf(codes.NotFound, "nothing is balanced on interface %q", name)
}

func (c *client) VIPs() ([]VIP, error) {
	services, err := c.Services()
	if err != nil {
		return nil, err
	}
	vips := map[netip.Addr]VIP{}
	for _, one := range services {
		vip := vips[one.Service.Address]
		vip.Address, vip.Announced = one.Service.Address, one.Announced
		vip.Stats.add(one.Stats)
		vips[vip.Address] = vip
	}
	all := []VIP{}
	for _, vip := range vips {
		all = append(all, vip)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Address.Less(all[j].Address) })
	return all, nil
}

func (c *client) VIP(address netip.Addr) (VIP, error) {
	vips, err := c.VIPs()
	if err != nil {
		return VIP{}, err
	}
	for _, vip := range vips {
		if vip.Address == address {
			return vip, nil
		}
	}
	return VIP{}, status.Errorf(codes.NotFound, "there is no service of address %v", address)
}
