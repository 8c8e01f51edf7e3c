//! What every request of both APIs takes. A method of v1 that is not in the table is refused, and
//! a test compares the table with the protocol; v0's requests are an enum, of which each has an
//! arm.

use super::policy::Role;

/// What a request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// The method's name, or the name of the field of v0's request.
    pub request: &'static str,
    pub role: Role,
    /// Who may see or change a part alone may ask it, and sees or changes that part; else it is
    /// the whole host's.
    pub by_part: bool,
}

impl Need {
    /// Whether it goes into the audit log when it is let in. What is refused always does.
    pub fn is_change(self) -> bool {
        self.role > Role::View
    }

    /// Whether what it gives out is a stream of frames: it goes on for as long as one may see it.
    pub fn gives_frames(self) -> bool {
        FRAMES.contains(&self.request)
    }
}

const fn need(request: &'static str, role: Role, by_part: bool) -> Need {
    Need {
        request,
        role,
        by_part,
    }
}

use Role::{Admin, Operate, View};

/// The method that has another program take the daemon's place.
pub const UPGRADE: &str = "Upgrade";

/// Methods that change nothing, and give out what guests say to each other.
const FRAMES: [&str; 2] = ["CaptureFrames", "TraceFrames"];

/// What reading the metrics takes, which no API serves.
pub const METRICS: Need = need("metrics", View, false);

/// What the page's rates of the last hour take, which no API serves.
pub const HISTORY: Need = need("history", View, false);

/// Of `butterfly.v1.Butterfly`.
const BUTTERFLY: &[Need] = &[
    need("ListNics", View, true),
    need("GetNic", View, true),
    need("PutNic", Operate, true),
    need("UpdateNic", Operate, true),
    need("DeleteNic", Operate, true),
    need("GetNicStats", View, true),
    need("ListNicStats", View, true),
    need("GetNicQueues", View, true),
    // It takes nothing away, but gives out what makes a connection.
    need("ExportNic", Operate, true),
    need("ImportNic", Operate, true),
    need("ListGroups", View, true),
    need("GetGroup", View, true),
    need("PutGroup", Operate, true),
    need("UpdateGroup", Operate, true),
    need("DeleteGroup", Operate, true),
    need("AddRule", Operate, true),
    need("DeleteRule", Operate, true),
    need("AddMember", Operate, true),
    need("DeleteMember", Operate, true),
    need("ListEndpoints", View, false),
    need("PutEndpoint", Operate, false),
    need("UpdateEndpoint", Operate, false),
    need("DeleteEndpoint", Operate, false),
    need("ListNetworks", View, true),
    need("GetNetwork", View, true),
    need("PutNetwork", Operate, true),
    need("ListUplinks", View, false),
    need("AddUplink", Operate, false),
    need("DeleteUplink", Operate, false),
    need("ListBindings", View, true),
    need("GetBinding", View, true),
    need("PutBindings", Operate, true),
    need("DeleteBindings", Operate, true),
    need("SetBindings", Operate, true),
    need("GetConfig", View, true),
    need("Apply", Operate, false),
    need("ListRevisions", View, false),
    need("DiffRevisions", View, false),
    need("Rollback", Operate, false),
    need("Watch", View, true),
    need("GetStatus", View, true),
    need("ListWorkers", View, false),
    need("ListDrops", View, true),
    need("ListRuleCounters", View, true),
    need("ListFlows", View, true),
    need("DeleteFlows", Operate, true),
    need("WatchFlows", View, true),
    need("GetTrace", View, true),
    // It changes nothing, but gives out what guests say to each other.
    need("CaptureFrames", Operate, true),
    need("TraceFrames", Operate, true),
    need("SetLogLevel", Admin, false),
    need("Reload", Admin, false),
    need(UPGRADE, Admin, false),
    need("Shutdown", Admin, false),
];

/// Of `butterfly.v1.Balancer`.
const BALANCER: &[Need] = &[
    need("ListServices", View, false),
    need("GetService", View, false),
    need("PutService", Operate, false),
    need("UpdateService", Operate, false),
    need("DeleteService", Operate, false),
    need("PutServer", Operate, false),
    need("UpdateServer", Operate, false),
    need("DeleteServer", Operate, false),
    need("GetBalancerConfig", View, false),
    need("ApplyBalancer", Operate, false),
    need("ListBalancerInterfaces", View, false),
    need("AddBalancerInterface", Operate, false),
    need("DeleteBalancerInterface", Operate, false),
    need("ReattachBalancerInterface", Operate, false),
    need("GetBalancerStats", View, false),
    need("WatchBalancer", View, false),
];

/// Of `butterfly.v1.Router`.
const ROUTER: &[Need] = &[
    need("ListRouterInterfaces", View, false),
    need("AddRouterInterface", Operate, false),
    need("DeleteRouterInterface", Operate, false),
    need("GetRouterStatus", View, false),
    need("ListRoutes", View, false),
    need("ListNeighbours", View, false),
    need("ListInterfaces", View, false),
    need("WatchRouter", View, false),
];

/// Of `grpc.health.v1.Health`: whoever is let in at all may know whether the daemon works.
const HEALTH: &[Need] = &[need("Check", View, true), need("Watch", View, true)];

/// Those of our own protocol, then those of others.
const SERVICES: [(&str, &[Need]); 4] = [
    ("butterfly.v1.Butterfly", BUTTERFLY),
    ("butterfly.v1.Balancer", BALANCER),
    ("butterfly.v1.Router", ROUTER),
    ("grpc.health.v1.Health", HEALTH),
];

/// What a call of v1 takes; `path` is that of its HTTP request, `/SERVICE/METHOD`.
pub fn of_path(path: &str) -> Option<Need> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let (_, needs) = SERVICES.iter().find(|(name, _)| *name == service)?;
    needs.iter().find(|need| need.request == method).copied()
}

/// What v0 can be asked for: the fields of `MessageV0.Request`, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum V0Request {
    NicAdd,
    NicUpdate,
    NicDel,
    NicList,
    NicDetails,
    NicExport,
    NicStats,
    SgAdd,
    SgDel,
    SgList,
    SgRuleAdd,
    SgRuleDel,
    SgRuleList,
    SgMemberAdd,
    SgMemberDel,
    SgMemberList,
    AppStatus,
    AppQuit,
    AppConfig,
    SgDetails,
}

impl V0Request {
    /// What it takes.
    pub const fn need(self) -> Need {
        match self {
            V0Request::NicAdd => need("nic_add", Operate, true),
            V0Request::NicUpdate => need("nic_update", Operate, true),
            V0Request::NicDel => need("nic_del", Operate, true),
            V0Request::NicList => need("nic_list", View, true),
            V0Request::NicDetails => need("nic_details", View, true),
            V0Request::NicExport => need("nic_export", Operate, true),
            V0Request::NicStats => need("nic_stats", View, true),
            V0Request::SgAdd => need("sg_add", Operate, true),
            V0Request::SgDel => need("sg_del", Operate, true),
            V0Request::SgList => need("sg_list", View, true),
            V0Request::SgRuleAdd => need("sg_rule_add", Operate, true),
            V0Request::SgRuleDel => need("sg_rule_del", Operate, true),
            V0Request::SgRuleList => need("sg_rule_list", View, true),
            V0Request::SgMemberAdd => need("sg_member_add", Operate, true),
            V0Request::SgMemberDel => need("sg_member_del", Operate, true),
            V0Request::SgMemberList => need("sg_member_list", View, true),
            V0Request::AppStatus => need("app_status", View, true),
            V0Request::AppQuit => need("app_quit", Admin, false),
            V0Request::AppConfig => need("app_config", Admin, false),
            V0Request::SgDetails => need("sg_details", View, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost_reflect::DescriptorPool;

    /// A method that is added to the protocol is refused until somebody says what it takes; here
    /// that is noticed before a user does.
    #[test]
    fn every_method_of_v1_has_a_need_and_every_need_a_method() {
        let pool = DescriptorPool::decode(api::v1::DESCRIPTORS).unwrap();
        let mut methods = 0;
        for service in pool.services() {
            for method in service.methods() {
                let path = format!("/{}/{}", service.full_name(), method.name());
                let need = of_path(&path).unwrap_or_else(|| panic!("{path} has no need"));
                let sees = ["List", "Get", "Diff", "Watch"];
                assert_eq!(
                    need.role == View,
                    sees.iter().any(|verb| method.name().starts_with(verb)),
                    "{path}: what sees is for view, what changes is not"
                );
                // A stream that is for who may change something is nobody's who may not any more.
                let need = (need.role > View && method.is_server_streaming(), need);
                assert_eq!(need.0, need.1.gives_frames(), "{path}");
                methods += 1;
            }
        }
        let ours = SERVICES
            .iter()
            .filter(|(name, _)| name.starts_with("butterfly."));
        let needs: usize = ours.map(|(_, needs)| needs.len()).sum();
        assert_eq!(methods, needs, "the table has methods that are not there");
    }

    #[test]
    fn what_is_not_in_the_table_has_no_need() {
        for path in [
            "",
            "/",
            "/butterfly.v1.Butterfly/",
            "/butterfly.v1.Butterfly/Unknown",
            "/butterfly.v1.Router/PutNic",
            "butterfly.v1.Butterfly/PutNic",
            "/butterfly.v1.Butterfly/PutNic/",
        ] {
            assert_eq!(of_path(path), None, "{path}");
        }
        let put = of_path("/butterfly.v1.Butterfly/PutNic").unwrap();
        assert_eq!((put.role, put.by_part), (Operate, true));
    }

    #[test]
    fn v0_s_requests_are_named_as_their_fields() {
        let pool = DescriptorPool::decode(api::v0::DESCRIPTORS).unwrap();
        let request = pool.get_message_by_name("MessageV0.Request").unwrap();
        let all = [
            V0Request::NicAdd,
            V0Request::NicUpdate,
            V0Request::NicDel,
            V0Request::NicList,
            V0Request::NicDetails,
            V0Request::NicExport,
            V0Request::NicStats,
            V0Request::SgAdd,
            V0Request::SgDel,
            V0Request::SgList,
            V0Request::SgRuleAdd,
            V0Request::SgRuleDel,
            V0Request::SgRuleList,
            V0Request::SgMemberAdd,
            V0Request::SgMemberDel,
            V0Request::SgMemberList,
            V0Request::AppStatus,
            V0Request::AppQuit,
            V0Request::AppConfig,
            V0Request::SgDetails,
        ];
        for (kind, number) in all.into_iter().zip(1..) {
            let field = request.get_field(number).unwrap();
            assert_eq!(kind.need().request, field.name());
        }
        assert_eq!(request.fields().len(), all.len());
    }
}
