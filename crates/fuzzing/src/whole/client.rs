//! A client of both APIs: what it wants is written as the API's message, and read by the daemon's
//! own decoders. What it is told was done is what is declared then, and nothing else is; what is
//! refused has changed nothing.

use std::net::IpAddr;
use std::ops::DerefMut;
use std::sync::Arc;

use api::v0::message_v0 as v0;
use api::v0::{Message, MessageV0, Messages, REVISION};
use api::v1;
use control::Controller;
use control::model::{
    Binding, BindingKey, Config, Group, GroupId, Host, Membership, NetworkOptions, Nic, NicId,
};
use daemon::decoders::{LogControl, Operations, V0, carry_out_v1};
use prost::Message as _;

use super::messages::*;
use super::{GROUPS, MACHINES, NICS, VNIS, group_id, host, machine, nic_id, number_of, vni};
use crate::fixture::mac;
use crate::input::Input;

pub struct Client {
    operations: Arc<Operations>,
    v0: V0,
}

impl Client {
    pub fn new(control: Controller) -> Client {
        // A clock that stands still: an input means the same at any time.
        let clock = || 1_800_000_000;
        let operations = Arc::new(Operations::new(control, LogControl::detached(), clock));
        Client {
            v0: V0::new(operations.clone(), None),
            operations,
        }
    }

    /// The controller, for what is no client's.
    pub fn control(&self) -> impl DerefMut<Target = Controller> + '_ {
        self.operations.control()
    }

    /// Steps 0 to 15; over v0 where `step` has bit 5, and v0 can say it.
    pub fn step(&self, step: u8, input: &mut Input<'_>) {
        let api = match step & 0x20 {
            0 => Api::V1,
            _ => Api::V0,
        };
        match step & 0x1f {
            0..=2 => self.put_nic(api, input),
            3 => self.update_nic(api, input),
            4 => self.delete_nic(api, &nic_id(input.u8() % NICS)),
            5 => self.put_group(api, input),
            6 => self.change_rules(api, input),
            7 => self.delete_group(api, &group_id(input.u8() % GROUPS)),
            8 => self.change_members(api, true, input),
            9 => self.change_members(api, false, input),
            10 => self.put_host(input),
            11 => self.delete_host(host(input, 2).into()),
            12 => self.put_binding(input),
            13 => self.delete_binding((vni(input), mac(machine(input)))),
            14 => self.put_network(input),
            _ => self.apply_again(),
        }
    }

    fn put_nic(&self, api: Api, input: &mut Input<'_>) {
        let (number, choice, groups) = (input.u8() % NICS, input.u8(), input.u8());
        let families = 2 - usize::from(choice >> 7);
        // v0 lets its guests be routers and DHCP servers, and has no links that are down.
        let is_v0 = api == Api::V0;
        let nic = Nic {
            ips: addresses(number)[..families].to_vec(),
            security_groups: groups_of(groups),
            anti_spoof: choice & 2 == 0,
            bypass_filtering: choice & 0x1c == 0x1c,
            link_down: !is_v0 && choice & 0x60 == 0x60,
            allow_dhcp_server: is_v0,
            allow_router_advertisements: is_v0,
            lenient: is_v0,
            ..Nic::new(nic_id(number), mac(number), number_of(choice & 1))
        };
        let request = v0::Request {
            nic_add: Some(v0_nic(&nic)),
            ..Default::default()
        };
        let put = v1::PutNicRequest {
            nic: Some(v1_nic(&nic)),
            ..Default::default()
        };
        self.declare(api, vec![request], ("PutNic", &put), |config| {
            assert_eq!(config.nics.get(&nic.id), Some(&nic));
        });
    }

    fn update_nic(&self, api: Api, input: &mut Input<'_>) {
        let (number, choice, groups) = (input.u8() % NICS, input.u8(), input.u8());
        let own = addresses(number);
        let ips = match choice & 3 {
            0 => None,
            1 => Some(&own[..1]),
            2 => Some(&own[1..]),
            _ => Some(&[][..]),
        };
        let groups = (choice & 4 != 0).then(|| groups_of(groups));
        let anti_spoof = (choice & 8 != 0).then_some(choice & 16 == 0);
        let id = nic_id(number);
        // A list that is to be emptied has one text with nothing in it.
        let list = |texts: Option<Vec<String>>| match texts.as_deref() {
            Some([]) => vec![String::new()],
            _ => texts.unwrap_or_default(),
        };
        let update = v0::NicUpdateReq {
            id: id.to_string(),
            ip: list(ips.map(texts)),
            security_group: list(groups.as_deref().map(texts)),
            ip_anti_spoof: anti_spoof,
            ..Default::default()
        };
        let request = v0::Request {
            nic_update: Some(update),
            ..Default::default()
        };
        let update = v1::UpdateNicRequest {
            id: id.to_string(),
            addresses: ips.map(|ips| v1::AddressList {
                addresses: texts(ips),
            }),
            security_groups: groups.as_deref().map(|groups| v1::GroupList {
                groups: texts(groups),
            }),
            anti_spoof,
            ..Default::default()
        };
        let before = self.control().config().nics.get(&id).cloned();
        self.declare(api, vec![request], ("UpdateNic", &update), |config| {
            let mut nic = before.expect("what is updated is there");
            nic.ips = ips.map_or(nic.ips, <[_]>::to_vec);
            nic.security_groups = groups.unwrap_or(nic.security_groups);
            nic.anti_spoof = anti_spoof.unwrap_or(nic.anti_spoof);
            assert_eq!(config.nics.get(&id), Some(&nic));
        });
    }

    fn delete_nic(&self, api: Api, id: &NicId) {
        let request = v0::Request {
            nic_del: Some(id.to_string()),
            ..Default::default()
        };
        let delete = v1::DeleteNicRequest { id: id.to_string() };
        self.declare(api, vec![request], ("DeleteNic", &delete), |config| {
            assert!(!config.nics.contains_key(id), "{id} is deleted");
        });
    }

    fn put_group(&self, api: Api, input: &mut Input<'_>) {
        let mut group = Group::new(group_id(input.u8() % GROUPS));
        for _ in 0..input.u8() % 5 {
            for rule in rules(api, input) {
                // No two the same.
                if !group.rules.contains(&rule) {
                    group.rules.push_back(rule);
                }
            }
        }
        let sg = v0::Sg {
            id: group.id.to_string(),
            member: vec![],
            rule: group.rules.iter().map(v0_rule).collect(),
        };
        let request = v0::Request {
            sg_add: Some(sg),
            ..Default::default()
        };
        let put = v1::Group {
            id: group.id.to_string(),
            rules: group.rules.iter().map(v1_rule).collect(),
            ..Default::default()
        };
        let put = v1::PutGroupRequest { group: Some(put) };
        self.declare(api, vec![request], ("PutGroup", &put), |config| {
            assert_eq!(config.groups.get(&group.id), Some(&group));
        });
    }

    fn delete_group(&self, api: Api, id: &GroupId) {
        let request = v0::Request {
            sg_del: Some(id.to_string()),
            ..Default::default()
        };
        let delete = v1::DeleteGroupRequest { id: id.to_string() };
        self.declare(api, vec![request], ("DeleteGroup", &delete), |config| {
            assert!(!config.groups.contains_key(id), "{id} is deleted");
        });
    }

    /// Adds a rule to a group, or takes it away; for everybody it is two over v0, in one message.
    fn change_rules(&self, api: Api, input: &mut Input<'_>) {
        let (group, adds) = (input.u8(), input.u8() & 1 == 0);
        let id = group_id(group % GROUPS);
        let rules = rules(api, input);
        let requests = rules.iter().map(|rule| {
            let (sg_id, rule) = (id.to_string(), v0_rule(rule));
            match adds {
                true => v0::Request {
                    sg_rule_add: Some(v0::SgRuleAddReq { sg_id, rule }),
                    ..Default::default()
                },
                false => v0::Request {
                    sg_rule_del: Some(v0::SgRuleDelReq { sg_id, rule }),
                    ..Default::default()
                },
            }
        });
        let change = v1::RuleRequest {
            group: id.to_string(),
            rule: rules.first().map(v1_rule),
            brief: group & 0x80 != 0,
        };
        let method = match adds {
            true => "AddRule",
            false => "DeleteRule",
        };
        let done = |config: &Config| {
            let has = |rule| {
                let group = config.groups.get(&id);
                group.is_some_and(|group| group.rules.contains(rule))
            };
            assert!(rules.iter().all(|rule| has(rule) == adds), "{id}: {method}");
        };
        self.declare(api, requests.collect(), (method, &change), done);
    }

    fn change_members(&self, api: Api, adds: bool, input: &mut Input<'_>) {
        let (id, machine) = (group_id(input.u8() % GROUPS), input.u8());
        let [v4, v6] = addresses(machine % MACHINES);
        let ip = match machine & MACHINES {
            0 => v4,
            _ => v6,
        };
        let (sg_id, member) = (id.to_string(), ip.to_string());
        let change = v1::MemberRequest {
            group: sg_id.clone(),
            member: member.clone(),
            brief: machine & 0x80 != 0,
        };
        let (request, method) = match adds {
            true => {
                let request = v0::Request {
                    sg_member_add: Some(v0::SgMemberAddReq { sg_id, member }),
                    ..Default::default()
                };
                (request, "AddMember")
            }
            false => {
                let request = v0::Request {
                    sg_member_del: Some(v0::SgMemberDelReq { sg_id, member }),
                    ..Default::default()
                };
                (request, "DeleteMember")
            }
        };
        self.declare(api, vec![request], (method, &change), |config| {
            let group = config.groups.get(&id);
            let has = group.is_some_and(|group| group.members.contains(&ip));
            assert_eq!(has, adds, "{id}: {method} {ip}");
        });
    }

    fn put_host(&self, input: &mut Input<'_>) {
        let (address, choice) = (host(input, 2), input.u8());
        let listed = (0..VNIS).filter(|number| choice >> number & 1 != 0);
        let vnis = match choice & 0xf0 {
            0xf0 => Membership::Every,
            _ => Membership::Listed(listed.map(number_of).collect()),
        };
        let host = Host {
            vnis,
            ..Host::new(address.into())
        };
        let (vnis, every_vni) = match &host.vnis {
            Membership::Every => (vec![], true),
            Membership::Listed(vnis) => (vnis.iter().map(|vni| vni.id()).collect(), false),
        };
        let endpoint = v1::Endpoint {
            address: address.to_string(),
            name: String::new(),
            vnis,
            every_vni,
        };
        let put = v1::PutEndpointRequest {
            endpoint: Some(endpoint),
        };
        self.declare_v1(("PutEndpoint", &put), |config| {
            assert_eq!(config.hosts.get(&host.address), Some(&host));
        });
    }

    fn delete_host(&self, address: IpAddr) {
        let delete = v1::DeleteEndpointRequest {
            address: address.to_string(),
            with_bindings: true,
        };
        self.declare_v1(("DeleteEndpoint", &delete), |config| {
            let mut bound = config.bindings.values();
            let is_gone = !config.hosts.contains_key(&address);
            assert!(is_gone && bound.all(|one| one.host != address), "{address}");
        });
    }

    fn put_binding(&self, input: &mut Input<'_>) {
        let (vni, machine, host) = (vni(input), machine(input), host(input, 2));
        let bound = usize::from(input.u8() & 3).min(2);
        let binding = Binding {
            ips: addresses(machine)[..bound].into(),
            ..Binding::new(vni, mac(machine), host.into())
        };
        let message = v1::Binding {
            vni: vni.id(),
            mac: binding.mac.to_string(),
            addresses: texts(&binding.ips),
            endpoint: host.to_string(),
        };
        let put = v1::PutBindingsRequest {
            bindings: vec![message],
        };
        self.declare_v1(("PutBindings", &put), |config| {
            assert_eq!(config.bindings.get(&(vni, binding.mac)), Some(&binding));
        });
    }

    fn delete_binding(&self, (vni, mac): BindingKey) {
        let key = v1::BindingKey {
            vni: vni.id(),
            mac: mac.to_string(),
        };
        let delete = v1::DeleteBindingsRequest {
            bindings: vec![key],
        };
        self.declare_v1(("DeleteBindings", &delete), |config| {
            assert!(!config.bindings.contains_key(&(vni, mac)), "{mac}");
        });
    }

    fn put_network(&self, input: &mut Input<'_>) {
        let (vni, choice) = (vni(input), input.u8());
        let options = NetworkOptions {
            from_anybody: (choice & 1 != 0).then_some(true),
            learning: [None, Some(false), Some(true), None][usize::from(choice >> 1 & 3)],
            ..NetworkOptions::new(vni)
        };
        let network = v1::Network {
            vni: vni.id(),
            from_anybody: options.from_anybody,
            learning: options.learning,
            ..Default::default()
        };
        let put = v1::PutNetworkRequest {
            network: Some(network),
        };
        self.declare_v1(("PutNetwork", &put), |config| {
            let said = config
                .networks
                .get(&vni)
                .map(|said| (said.from_anybody, said.learning));
            let nothing = (None, None);
            let expected = (options.from_anybody, options.learning);
            assert_eq!(said.unwrap_or(nothing), expected, "{vni}");
        });
    }

    /// Has the daemon give out its configuration, and applies that: nothing changes, and what is
    /// broken is healed.
    fn apply_again(&self) {
        let before = self.control().config();
        let given = carry_out_v1(&self.operations, "GetConfig", &[]).expect("a configuration");
        let apply = v1::ApplyRequest {
            config: Some(v1::Config::decode(&*given).expect("a configuration that parses")),
            ..Default::default()
        };
        let answer = carry_out_v1(&self.operations, "Apply", &apply.encode_to_vec());
        let answer = answer.expect("a configuration that is in force");
        let answer = v1::ApplyResponse::decode(&*answer).expect("an answer that parses");
        assert!(answer.changes.is_empty(), "{:?}", answer.changes);
        for healed in answer.healed {
            assert_eq!(healed.state(), v1::PortState::Up, "{healed:?}");
        }
        assert_eq!(self.control().config(), before);
    }

    /// Says it over one of both APIs; `done` looks at what it has come to, when it was done.
    fn declare(
        &self,
        api: Api,
        v0: Vec<v0::Request>,
        v1: (&str, &impl prost::Message),
        done: impl FnOnce(&Config),
    ) {
        match api {
            Api::V0 => self.declare_v0(v0, done),
            Api::V1 => self.declare_v1(v1, done),
        }
    }

    fn declare_v0(&self, requests: Vec<v0::Request>, done: impl FnOnce(&Config)) {
        let before = self.control().config();
        let messages = requests.into_iter().map(|request| Message {
            revision: REVISION,
            error: None,
            message_0: Some(MessageV0 {
                request: Some(request),
                ..Default::default()
            }),
        });
        let asked = Messages {
            messages: messages.collect(),
            encrypted: None,
        };
        let answer = self.v0.answer(&asked.encode_to_vec()).bytes;
        let answer = Messages::decode(&*answer).expect("an answer that parses");
        assert_eq!(answer.messages.len(), asked.messages.len());
        let succeeded = |answer: &Message| {
            let answer = answer.message_0.as_ref().expect("an answer in v0");
            let response = answer.response.as_ref().expect("an answer to a request");
            response.status.status
        };
        let count = answer.messages.iter().filter(|one| succeeded(one)).count();
        if count == asked.messages.len() {
            done(&self.control().config());
        } else if count == 0 {
            assert_eq!(self.control().config(), before, "refused, and done");
        }
    }

    fn declare_v1(
        &self,
        (method, request): (&str, &impl prost::Message),
        done: impl FnOnce(&Config),
    ) {
        let before = self.control().config();
        match carry_out_v1(&self.operations, method, &request.encode_to_vec()) {
            Ok(_) => done(&self.control().config()),
            Err(_) => assert_eq!(self.control().config(), before, "refused, and done"),
        }
    }
}
