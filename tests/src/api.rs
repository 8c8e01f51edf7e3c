//! API v1 without a program in between, for sessions that ask very often.

use api::v1;
use api::v1::butterfly_client::ButterflyClient;
use testkit::Result;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

use crate::Daemon;

/// A connection.
#[derive(Debug)]
pub struct Api {
    runtime: Runtime,
    grpc: ButterflyClient<Channel>,
}

impl Api {
    /// Connects to a daemon.
    pub fn connect(daemon: &Daemon) -> Result<Api> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(|e| format!("no runtime: {e}"))?;
        let endpoint = Endpoint::from_shared(daemon.endpoint());
        let endpoint = endpoint.map_err(|e| e.to_string())?;
        let channel = runtime.block_on(endpoint.connect());
        let channel = channel.map_err(|e| format!("no connection: {e}"))?;
        Ok(Api {
            runtime,
            grpc: ButterflyClient::new(channel),
        })
    }

    /// Makes the configuration exactly this one.
    pub fn apply(&mut self, config: v1::Config) -> Result<()> {
        let request = v1::ApplyRequest {
            config: Some(config),
            dry_run: false,
        };
        let answer = self.runtime.block_on(self.grpc.apply(request));
        answer.map(drop).map_err(|e| e.message().to_owned())
    }

    /// Drops of all NICs.
    pub fn drops(&mut self) -> Result<Vec<v1::Drop>> {
        let request = v1::ListDropsRequest::default();
        let answer = self.runtime.block_on(self.grpc.list_drops(request));
        let answer = answer.map_err(|e| e.message().to_owned())?;
        Ok(answer.into_inner().drops)
    }

    /// Counters of all NICs, to the last frame: who lists flows has all counted that the kernel
    /// has forwarded.
    pub fn stats(&mut self) -> Result<Vec<v1::NicStats>> {
        self.flows()?;
        let request = v1::ListNicStatsRequest::default();
        let answer = self.runtime.block_on(self.grpc.list_nic_stats(request));
        let answer = answer.map_err(|e| e.message().to_owned())?;
        Ok(answer.into_inner().nics)
    }

    /// Uplinks with their counters, to the last frame as [`stats`](Api::stats).
    pub fn uplinks(&mut self) -> Result<Vec<v1::Uplink>> {
        self.flows()?;
        let request = v1::ListUplinksRequest::default();
        let answer = self.runtime.block_on(self.grpc.list_uplinks(request));
        let answer = answer.map_err(|e| e.message().to_owned())?;
        Ok(answer.into_inner().uplinks)
    }

    /// What each rule has let pass, likewise.
    pub fn rules(&mut self) -> Result<Vec<v1::RuleCounter>> {
        self.flows()?;
        let request = v1::ListRuleCountersRequest::default();
        let answer = self.runtime.block_on(self.grpc.list_rule_counters(request));
        let answer = answer.map_err(|e| e.message().to_owned())?;
        Ok(answer.into_inner().counters)
    }

    /// All tracked flows.
    pub fn flows(&mut self) -> Result<Vec<v1::Flow>> {
        let listed = self.runtime.block_on(async {
            let request = v1::ListFlowsRequest::default();
            let mut answer = self.grpc.list_flows(request).await?.into_inner();
            let mut flows = Vec::new();
            while let Some(flow) = answer.message().await? {
                flows.push(flow);
            }
            Ok(flows)
        });
        listed.map_err(|e: tonic::Status| e.message().to_owned())
    }
}
