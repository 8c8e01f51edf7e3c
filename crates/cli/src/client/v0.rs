//! The operations over API v0.

use api::v0::message_v0::{
    AppConfigReq, Request, SgMemberAddReq, SgMemberDelReq, SgRuleAddReq, SgRuleDelReq,
};
use api::v1;

use super::zmq::V0;
use crate::error::Error;
use crate::translate::{group, nic};

impl V0 {
    pub async fn nic_ids(&mut self) -> Result<Vec<String>, Error> {
        Ok(self
            .call(Request {
                nic_list: Some(true),
                ..Default::default()
            })
            .await?
            .nic_list)
    }

    pub async fn nics(&mut self, id: &str) -> Result<Vec<v1::NicStatus>, Error> {
        let answer = self
            .call(Request {
                nic_details: Some(id.into()),
                ..Default::default()
            })
            .await?;
        let nics = answer.nic_details.into_iter().map(nic::status_from_v0);
        nics.collect::<Result<_, _>>()
            .map_err(|what| self.garbled(&what.0))
    }

    pub async fn nic(&mut self, id: &str) -> Result<v1::NicStatus, Error> {
        if id.is_empty() {
            return Err(Error::Usage("a NIC's id is not empty".into()));
        }
        let nic = self.nics(id).await?.into_iter().next();
        nic.ok_or_else(|| self.garbled(&format!("no details of NIC {id}")))
    }

    pub async fn put_nic(&mut self, nic: &v1::Nic) -> Result<v1::NicStatus, Error> {
        let (nic_add, lost) = nic::to_v0(nic);
        if !lost.is_empty() {
            return Err(self.needs_v1(&format!("{} of NIC {}", lost.join(", "), nic.id)));
        }
        let answer = self
            .call(Request {
                nic_add: Some(nic_add),
                ..Default::default()
            })
            .await?;
        Ok(v1::NicStatus {
            path: nic::path_from_v0(answer.nic_add.and_then(|added| added.path)),
            ..Default::default()
        })
    }

    pub async fn update_nic(&mut self, mut update: v1::UpdateNicRequest) -> Result<(), Error> {
        let leave = std::mem::take(&mut update.leave_groups);
        let join = std::mem::take(&mut update.join_groups);
        if !(leave.is_empty() && join.is_empty()) {
            // v0 replaces the list whole: two calls for one NIC at the same moment may lose one of
            // the changes.
            let nic = self.nic(&update.id).await?.nic.unwrap_or_default();
            let old = update
                .security_groups
                .map_or(nic.security_groups, |list| list.groups);
            let mut groups = old.clone();
            groups.retain(|group| !leave.contains(group));
            let new: Vec<String> = join
                .into_iter()
                .filter(|group| !groups.contains(group))
                .collect();
            groups.extend(new);
            if groups == old {
                return Ok(());
            }
            update.security_groups = Some(v1::GroupList { groups });
        }
        let update = nic::update_to_v0(update).map_err(|what| self.untranslatable(what))?;
        self.call(Request {
            nic_update: Some(update),
            ..Default::default()
        })
        .await
        .map(drop)
    }

    pub async fn delete_nic(&mut self, id: &str) -> Result<(), Error> {
        self.call(Request {
            nic_del: Some(id.into()),
            ..Default::default()
        })
        .await
        .map(drop)
    }

    pub async fn nic_stats(&mut self, id: &str) -> Result<v1::NicStats, Error> {
        let answer = self
            .call(Request {
                nic_stats: Some(id.into()),
                ..Default::default()
            })
            .await?;
        let stats = answer
            .nic_stats
            .ok_or_else(|| self.garbled("no statistics in the answer"))?;
        Ok(v1::NicStats {
            id: id.into(),
            // v0 counts from the switch's side: in is what it received from the guest.
            ingress_bytes: stats.out,
            egress_bytes: stats.r#in,
            ..Default::default()
        })
    }

    /// One by one, and with no time: v0 tells none.
    pub async fn nics_stats(&mut self, ids: &[String]) -> Result<v1::ListNicStatsResponse, Error> {
        let listed = ids.is_empty();
        let ids = match listed {
            true => self.nic_ids().await?,
            false => ids.to_vec(),
        };
        let mut nics = Vec::new();
        for id in &ids {
            match self.nic_stats(id).await {
                Ok(stats) => nics.push(stats),
                // Deleted since it was listed.
                Err(Error::Refused(_)) if listed => {}
                Err(error) => return Err(error),
            }
        }
        Ok(v1::ListNicStatsResponse { time_ns: 0, nics })
    }

    pub async fn export_nic(&mut self, id: &str) -> Result<Vec<u8>, Error> {
        let answer = self
            .call(Request {
                nic_export: Some(id.into()),
                ..Default::default()
            })
            .await?;
        let state = answer
            .nic_export
            .and_then(|export| export.fw_data)
            .and_then(|state| state.data);
        state.ok_or_else(|| self.garbled("no connections in the answer"))
    }

    pub async fn group_ids(&mut self) -> Result<Vec<String>, Error> {
        Ok(self
            .call(Request {
                sg_list: Some(true),
                ..Default::default()
            })
            .await?
            .sg_list)
    }

    pub async fn groups(&mut self, id: &str) -> Result<Vec<v1::Group>, Error> {
        let answer = self
            .call(Request {
                sg_details: Some(id.into()),
                ..Default::default()
            })
            .await?;
        let groups = answer
            .sg_details
            .into_iter()
            .map(group::from_v0)
            .collect::<Result<_, _>>();
        groups.map_err(|what| self.garbled(&what.0))
    }

    pub async fn group(&mut self, id: &str) -> Result<v1::Group, Error> {
        if id.is_empty() {
            return Err(Error::Usage("a group's id is not empty".into()));
        }
        let group = self.groups(id).await?.into_iter().next();
        group.ok_or_else(|| self.garbled(&format!("no details of group {id}")))
    }

    pub async fn rules(&mut self, group: &str) -> Result<Vec<v1::Rule>, Error> {
        let request = Request {
            sg_rule_list: Some(group.into()),
            ..Default::default()
        };
        let rules = self.call(request).await?.sg_rule_list.into_iter();
        let rules = rules.map(group::rule_from_v0).collect::<Result<_, _>>();
        rules.map_err(|what| self.garbled(&what.0))
    }

    pub async fn members(&mut self, group: &str) -> Result<Vec<String>, Error> {
        let request = Request {
            sg_member_list: Some(group.into()),
            ..Default::default()
        };
        Ok(self.call(request).await?.sg_member_list)
    }

    pub async fn put_group(&mut self, group: &v1::Group) -> Result<(), Error> {
        let (sg, lost) = group::to_v0(group).map_err(|what| self.untranslatable(what))?;
        if !lost.is_empty() {
            return Err(self.needs_v1(&format!("{} of group {}", lost.join(", "), group.id)));
        }
        self.call(Request {
            sg_add: Some(sg),
            ..Default::default()
        })
        .await
        .map(drop)
    }

    /// v0 can only replace a group whole: one that is there keeps what it has as long as nothing
    /// else changes it between the two requests.
    pub async fn update_group(&mut self, update: v1::UpdateGroupRequest) -> Result<(), Error> {
        let midstream = update.allow_midstream.or(update.silent_midstream);
        if update.removal.is_some() || midstream.is_some() {
            return Err(self.needs_v1(&format!(
                "removal, allow_midstream and silent_midstream of group {}",
                update.id
            )));
        }
        if self.group_ids().await?.contains(&update.id) {
            return Ok(());
        }
        let group = v1::Group {
            id: update.id,
            ..Default::default()
        };
        self.put_group(&group).await
    }

    pub async fn delete_group(&mut self, id: &str) -> Result<(), Error> {
        self.call(Request {
            sg_del: Some(id.into()),
            ..Default::default()
        })
        .await
        .map(drop)
    }

    pub async fn add_rule(&mut self, group: &str, rule: &v1::Rule) -> Result<(), Error> {
        for rule in group::rules_to_v0(rule).map_err(|what| self.untranslatable(what))? {
            let add = SgRuleAddReq {
                sg_id: group.into(),
                rule,
            };
            self.call(Request {
                sg_rule_add: Some(add),
                ..Default::default()
            })
            .await?;
        }
        Ok(())
    }

    /// One for anybody is deleted as it is listed: as one rule, which API v1 can make, or as v0's
    /// two.
    pub async fn delete_rule(&mut self, group: &str, rule: &v1::Rule) -> Result<(), Error> {
        let mut rules = group::rules_to_v0(rule).map_err(|what| self.untranslatable(what))?;
        if rules.len() > 1 && self.group_ids().await?.iter().any(|id| id == group) {
            let listed = self.rules(group).await?;
            if listed.contains(rule) {
                rules.insert(
                    0,
                    group::rule_to_v0(rule).map_err(|what| self.untranslatable(what))?,
                );
            }
        }
        for rule in rules {
            let del = SgRuleDelReq {
                sg_id: group.into(),
                rule,
            };
            self.call(Request {
                sg_rule_del: Some(del),
                ..Default::default()
            })
            .await?;
        }
        Ok(())
    }

    pub async fn add_member(&mut self, group: &str, member: &str) -> Result<(), Error> {
        let add = SgMemberAddReq {
            sg_id: group.into(),
            member: member.into(),
        };
        self.call(Request {
            sg_member_add: Some(add),
            ..Default::default()
        })
        .await
        .map(drop)
    }

    pub async fn delete_member(&mut self, group: &str, member: &str) -> Result<(), Error> {
        let del = SgMemberDelReq {
            sg_id: group.into(),
            member: member.into(),
        };
        self.call(Request {
            sg_member_del: Some(del),
            ..Default::default()
        })
        .await
        .map(drop)
    }

    pub async fn config(&mut self) -> Result<v1::Config, Error> {
        let groups = self.groups("").await?;
        let nics = self
            .nics("")
            .await?
            .into_iter()
            .filter_map(|status| status.nic)
            .collect();
        Ok(v1::Config {
            nics,
            groups,
            ..Default::default()
        })
    }

    pub async fn status(&mut self) -> Result<v1::Status, Error> {
        let answer = self
            .call(Request {
                app_status: Some(true),
                ..Default::default()
            })
            .await?;
        let status = answer
            .app_status
            .ok_or_else(|| self.garbled("no status in the answer"))?;
        Ok(v1::Status {
            start_unix_secs: status.start_date(),
            current_unix_secs: status.current_date(),
            uptime_secs: status.current_date().saturating_sub(status.start_date()),
            requests: status.request_counter(),
            graph_dot: status.graph_dot.unwrap_or_default(),
            ..Default::default()
        })
    }

    pub async fn set_log_level(&mut self, level: &str) -> Result<(), Error> {
        let config = AppConfigReq {
            log_level: Some(level.into()),
        };
        self.call(Request {
            app_config: Some(config),
            ..Default::default()
        })
        .await
        .map(drop)
    }

    pub async fn shutdown(&mut self) -> Result<(), Error> {
        self.call(Request {
            app_quit: Some(true),
            ..Default::default()
        })
        .await
        .map(drop)
    }
}
