//! From settings to a running daemon, and down again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ::router::acl::List;
use container::PairSettings;
use control::model::Config;
use control::{Controller, NicState};
use dataplane::Switch;
use dataplane::flow::FlowMemory;
use io::trace::Folder;
use io::vhost::Server;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use sys::handed::Items;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use xdp::Interfaces;

use crate::access::{Access, Gate};
use crate::app::{App, Features, Operations, unix_secs};
use crate::arrivals::Arrivals;
use crate::attachments::{HostAttachments, Loading, Others};
use crate::audit::Audit;
use crate::balancer;
use crate::balancer::announcing::{self, Announcing};
use crate::balancer::bgp::Announcer;
use crate::balancer::hook::Hook;
use crate::connections;
use crate::deaf;
use crate::deaths;
use crate::features::HostFeatures;
use crate::flow_log::FlowLog;
use crate::handover::{self, LeftConnections};
use crate::held::Held;
use crate::http;
use crate::idle_states;
use crate::kernel::{self, Kernel};
use crate::lock::{self, Turn};
use crate::logging::LogControl;
use crate::metrics;
use crate::option_interfaces::{Named, OptionInterfaces};
use crate::options::{Settings, UplinkMode};
use crate::page;
use crate::privileges;
use crate::reader::{Reader, checks::Apart};
use crate::reload::{self, Reload};
use crate::router;
use crate::start_gate::StartGate;
use crate::states::{InterfaceStates, PortStates, record_interface, record_port};
use crate::stored::{self, Stored};
use crate::underlay::{self, NextHopTask};
use crate::unix_socket::{self, NicSockets};
use crate::upgrade::{self, EarlySessions, Predecessor, Upgrade, Upgraded, words};
use crate::uplinks::{self, Breaks, Uplinks};
use crate::v0::key::KeyFile;
use crate::watchdog::{self, Watchdog, Watched};
use crate::worker_thread::{WorkerOptions, WorkerThreads};
use crate::{v0, v1};

/// Threads of the API's runtime.
const API_THREADS: usize = 2;
/// Frames that wait in each direction of each queue of an uplink: 4 MiB of UMEM for each at an
/// ordinary MTU.
const UPLINK_FRAMES: u32 = 2048;
/// The TAP device that is made where no interface is named and none has our address.
const UPLINK_TAP: &str = "butterfly0";
/// Any multicast group may be said to be a network's; those of the family that hosts speak.
const FLOOD_GROUPS_V4: uplink::Groups = uplink::Groups {
    network: IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)),
    prefix: 4,
};
const FLOOD_GROUPS_V6: uplink::Groups = uplink::Groups {
    network: IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)),
    prefix: 8,
};
/// The largest packet of NICs when nothing says another one.
const DEFAULT_MTU: u16 = 1500;
/// Descriptors that there is room for from the beginning: of 1,600 guests.
const DESCRIPTORS: i32 = 16_384;
/// How long calls that are running may take when the daemon stops.
const GRACE: Duration = Duration::from_millis(300);
/// How long they may when another program has taken over. Nobody waits for this end: but who has
/// asked for the upgrade is to hear that it went well, on a busy host too.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// What a stop may take beside withdrawals: the unit's TimeoutStopSec.
const STOP_REST: Duration = Duration::from_secs(30);
/// How long clients wait for a new daemon that reads its files again: the one before ends both
/// where it is not served in time.
const READ_WITHIN: Duration = Duration::from_secs(20);

/// Runs until a signal or an API says stop, or another program has taken over. With a predecessor
/// this one takes over from it. The error is a sentence for the user.
pub fn run(
    settings: Settings,
    log: LogControl,
    predecessor: Option<Predecessor>,
) -> Result<(), String> {
    abort_on_panic();
    raise_descriptor_limit();
    make_room_for_descriptors();
    for remark in &settings.remarks {
        tracing::info!("{remark}");
    }
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    privileges::settle()?;
    // Who is to go on where this process ends does not wait for its memory.
    if settings.keeper.is_some()
        && let Err(why) = sys::memory_holder::start()
    {
        tracing::warn!("the next daemon waits for this one's memory: {why}");
    }
    let runtime = watchdog::runtime(API_THREADS)
        .thread_name("api")
        .enable_all()
        .build()
        .map_err(|e| format!("the API's threads cannot be started: {e}"))?;
    let following = watchdog::runtime(1)
        .thread_name(kernel::THREAD)
        .enable_all()
        .build()
        .map_err(|e| format!("the thread that follows the kernel cannot be started: {e}"))?;
    runtime.spawn(log.say_repeated());
    let predecessor = predecessor.map(Arc::new);
    if let Some(old) = predecessor.clone() {
        let log = log.clone();
        Refusal::ends_the_process(move |why| {
            old.refuse(why);
            log.last_words(why);
        });
    }
    let serving = serve(&settings, log.clone(), following.handle(), predecessor);
    let result = runtime.block_on(serving);
    runtime.shutdown_timeout(GRACE);
    // Behind those who would say that it has ended.
    following.shutdown_background();
    log.say_all_repeated();
    result.map_err(|Refusal(why)| why)
}

/// Why the daemon does not start, as a sentence. A process that is to take another daemon's place
/// ends as soon as this is made, before anything is dropped: all that it has is the other's, which
/// goes on, and what is dropped would be taken down.
struct Refusal(String);

type LastWords = Box<dyn Fn(&str) + Send + Sync>;
static LAST_WORDS: OnceLock<LastWords> = OnceLock::new();

impl Refusal {
    /// From now on; `say` tells others why.
    fn ends_the_process(say: impl Fn(&str) + Send + Sync + 'static) {
        let _ = LAST_WORDS.set(Box::new(say));
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Refusal {
        if let Some(say) = LAST_WORDS.get() {
            say(&why);
            std::process::exit(1);
        }
        Refusal(why)
    }
}

impl From<&str> for Refusal {
    fn from(why: &str) -> Refusal {
        why.to_owned().into()
    }
}

async fn serve(
    settings: &Settings,
    log: LogControl,
    following: &Handle,
    predecessor: Option<Arc<Predecessor>>,
) -> Result<(), Refusal> {
    let turn = match predecessor {
        // Its sockets are there, and it is in nobody's way.
        Some(_) => None,
        None => Some(Turn::take(&folders(settings))?),
    };
    // What can be refused is refused before anything is made.
    let access = Access::new(settings.api_group.as_deref(), settings.access.clone())?;
    let audit = Audit::open(settings.audit.clone())?;
    let flow_log = FlowLog::open(settings.flow_log.clone(), &settings.ipfix)?;
    let gate = Gate::new(access.clone(), audit.clone());
    if settings.check_programs.is_some() && !rustix::process::geteuid().is_root() {
        return Err(
            "--check-programs: only root can run the programs as nobody; as this daemon's user \
             they could use its API (docs/install.md says what its unit needs)"
                .into(),
        );
    }
    let sockets = NicSockets::new(
        settings.vhost_owner.as_deref(),
        settings.vhost_group.as_deref(),
        settings.vhost_mode,
    )?;
    let names = sockets.names();
    let clients_reader = Reader::new("clients", settings.hang_secs);
    let v0_key = settings.v0_key.as_deref();
    let v0_key = v0_key.map(|path| KeyFile::read(path, clients_reader.clone()));
    let v0_key = v0_key.transpose()?.map(Arc::new);
    let certificates = v1::tls::Certificates::new(&settings.tls, clients_reader.clone())?;
    let certificates = certificates.map(Arc::new);
    let bgp = settings.balance_bgp.as_deref().map(bgp::Settings::load);
    let bgp = bgp.transpose().map_err(|e| e.to_string())?;
    if let Some(old) = predecessor.clone() {
        let paths = handed_paths(settings);
        waiting(move || old.greet().and_then(|()| old.has_paths(&paths))).await?;
    }
    let announced = predecessor.as_ref().map(|old| {
        let items = old.items("announcing");
        let (has_bgp, has_hook) = (bgp.is_some(), settings.balance_hook.is_some());
        announcing::Left::of(items, &announced_folders(settings), has_bgp, has_hook)
    });
    let announced = announced.transpose()?.unwrap_or_default();
    let mut listeners = Handed::new(predecessor.clone());
    let mut v1 = Vec::new();
    for endpoint in &settings.v1_endpoints {
        let handed = listeners.take("v1", endpoint);
        let bound =
            v1::server::Listener::bind(endpoint, handed, certificates.as_ref(), &access).await?;
        listeners.note("v1", endpoint, bound.descriptor())?;
        v1.push(bound);
    }
    let mut scraped = Vec::new();
    for endpoint in &settings.metrics {
        let (certificates, insecure) = (certificates.as_ref(), settings.insecure_metrics);
        let (served, handed) = (metrics::server::SERVED, listeners.take("metrics", endpoint));
        let bound = http::Listener::bind(served, endpoint, handed, certificates, insecure, &access);
        let bound = bound.await?;
        listeners.note("metrics", endpoint, bound.descriptor())?;
        scraped.push(bound);
    }
    let page_token = settings.page_token.as_deref().map(page::Token::read);
    let page_token = page_token.transpose()?;
    let mut pages = Vec::new();
    for endpoint in &settings.page {
        let (certificates, clear) = (certificates.as_ref(), page_token.is_some());
        let (served, handed) = (page::server::SERVED, listeners.take("page", endpoint));
        let bound = http::Listener::bind(served, endpoint, handed, certificates, clear, &access);
        let bound = bound.await?;
        listeners.note("page", endpoint, bound.descriptor())?;
        pages.push(bound);
    }
    let policy = v0::server::Policy {
        insecure: settings.insecure_api,
        access: access.clone(),
        gate: gate.clone(),
    };
    let v0 = match &settings.v0_endpoint {
        Some(endpoint) => {
            let handed = listeners.take("v0", endpoint);
            let reader = clients_reader;
            let key = v0_key.clone();
            let bound = v0::server::Listener::bind(endpoint, handed, key, policy, reader).await?;
            listeners.note("v0", endpoint, bound.descriptor())?;
            Some(bound)
        }
        None => None,
    };
    let open_store = {
        let (folder, revisions) = (settings.store.clone(), settings.store_revisions);
        let changes = gate.changes().clone();
        move || {
            let open = |folder: PathBuf| Stored::open(&folder, revisions, changes);
            folder.map(open).transpose()
        }
    };
    // The disk is waited for beside all that is made meanwhile; a daemon that gives way has the
    // file still.
    let (opening, open_store) = match predecessor {
        None => (Some(tokio::task::spawn_blocking(open_store)), None),
        Some(_) => (None, Some(open_store)),
    };
    drop(turn);
    // Signals that come from here on are not lost.
    let mut signals = Signals::new()?;

    let _bounds = match &settings.wake {
        Some((wake_us, cores)) => idle_states::Bounds::set(cores, *wake_us)?,
        None => idle_states::Bounds::default(),
    };
    let states = PortStates::default();
    let (breaks, broken) = uplinks::breaks();
    let held = settings.keeper.as_deref().map(|path| match &predecessor {
        None => Held::begin(path),
        Some(old) => {
            let held = Held::handed(path)?;
            held.leave_here(old.take_all(words::HELD));
            Ok(held)
        }
    });
    let held = held.transpose()?;
    let left = held.as_ref().map_or(0, |held| held.flows_left());
    let left = left.max(handover::are_left(&settings.socket_dir).into());
    let is_upgrade = predecessor.is_some();
    let options = worker_options(settings, &states, breaks, left, is_upgrade);
    let workers = Arc::new(WorkerThreads::start(options)?);
    let switch = workers.switch().clone();
    let start_gate = Arc::new(StartGate::new(switch.clone()));
    let handed = |kind| {
        predecessor
            .as_ref()
            .map(|old| old.items(kind))
            .unwrap_or_default()
    };
    // Those that programs of ours run on, of all features.
    let left_held = held.as_ref().filter(|_| predecessor.is_none());
    let points = match left_held {
        Some(held) => held.left_items(words::POINT),
        None => handed(words::POINT),
    };
    let left_points: Vec<String> = points.keys().cloned().collect();
    let mut interfaces = Interfaces::handed(points);
    if let Some(held) = held.clone() {
        interfaces.keep_points(move |name, point| match point {
            Some(point) => held.hold_item(words::POINT, name, &point),
            None => held.release_item(words::POINT, name),
        });
    }
    let interfaces = Arc::new(Mutex::new(interfaces));
    let kernel = Arc::new(Kernel::new(following.clone()));
    let interface_states = InterfaceStates::default();
    let (balanced, known_health) = match left_held {
        Some(held) => balancer::left(held),
        None => (handed("balancer"), None),
    };
    let engine = Arc::new(balancer::Engine::new(
        balancer_options(settings)?,
        interfaces.clone(),
        kernel.clone(),
        interface_states.clone(),
        balanced,
        held.clone(),
    ));
    // The daemon that gives way has looked at its start, and notes its own until then.
    if predecessor.is_none() {
        held.iter().for_each(|held| held.look_at_deaths());
    }
    let arrivals = Arrivals::new(start_gate.switch().clone(), interfaces.clone());
    let arrivals = Arc::new(arrivals);
    let setup = uplinks::Setup {
        dpdk: dpdk_uplink(settings)?,
        handed: handed("uplink"),
        apart: predecessor
            .as_ref()
            .map(|old| old.apart())
            .unwrap_or_default(),
        takes_left: left_held.is_some(),
        held: held.clone(),
        ..uplink_setup(
            settings,
            interfaces.clone(),
            kernel.clone(),
            start_gate.clone(),
            arrivals.clone(),
        )
    };
    let uplinks = Arc::new(uplinks::Control::start(setup, broken).await?);
    let traces = Folder::new(&settings.trace_dir, settings.trace_dir_max);
    let attachments = HostAttachments::start(
        start_gate.clone(),
        states.clone(),
        traces.clone(),
        sockets,
        &settings.socket_dir,
        Others {
            held: held.clone(),
            predecessor: predecessor.clone(),
            arrivals,
        },
        PairSettings {
            kind: settings.container_pairs.into(),
            flows: settings.kernel_flows,
        },
    )?
    .refusing_missing_pages(settings.guest_memory_populated);
    let vhost = attachments.vhost();
    let left_behind = attachments.left_behind();
    let are_loading = attachments.loading();
    let settings_of_control = control_settings(settings, uplinks.running())?;
    let endpoints: Vec<String> = settings
        .v0_endpoint
        .iter()
        .chain(&settings.v1_endpoints)
        .cloned()
        .collect();
    let programs = match &settings.check_programs {
        Some(folder) => health::Programs::of(folder)?,
        None => health::Programs::default(),
    };
    let acl = settings.router_acl.as_deref().map(List::read);
    let router = router::Control::start(
        settings.router,
        acl.transpose()?,
        interfaces.clone(),
        kernel,
        interface_states.clone(),
        held.clone(),
    );
    let router = Arc::new(router?);
    if predecessor.is_some() {
        // Interfaces that come before this process is the daemon wait until it is.
        engine.stand_still();
        router.stand_still().await.map_err(|e| e.to_string())?;
    }
    let router_acl = settings.router_acl.clone();
    let router_acl = router_acl.map(|file| router::AclFile::new(file, router.clone()));
    let due = Arc::new(Notify::new());
    let starting = Arc::new(AtomicBool::new(true));
    let refuses_none = Arc::new(AtomicBool::new(false));
    let option_interfaces = Arc::new(OptionInterfaces::of(settings));
    let features = HostFeatures {
        engine: engine.clone(),
        router: router.clone(),
        uplinks: uplinks.clone(),
        router_acl: settings.router_acl.clone(),
        programs: programs.clone(),
        due: due.clone(),
        starting: starting.clone(),
        refuses_none: refuses_none.clone(),
    };
    let controller = Controller::new(settings_of_control, Box::new(attachments), switch.clone())
        .with_features(Box::new(features));
    let mut next_hops = next_hops(settings, &uplinks, &switch)?;
    // Before they are taken up, which in an upgrade is when no frame moves.
    let left_by = held.clone();
    let learnt = waiting(move || {
        let left_by = left_by.as_deref();
        Ok::<_, String>(left_by.map_or_else(Vec::new, handover::learnt_hosts))
    });
    let learnt = learnt.await?;
    let (controller, stored, counted, left_connections, is_whole) = match &predecessor {
        None => {
            let stored = match opening {
                Some(opening) => opening.await.map_err(|_| "opening the store panicked")??,
                None => None,
            };
            let (held, switch) = (held.clone(), switch.clone());
            let folder = settings.socket_dir.clone();
            let planes = (switch, are_loading);
            let loading = load(controller, stored.clone(), held, planes, folder);
            let (mut controller, left) = loading.await?;
            if let Some(known) = known_health {
                let taken = tokio::task::block_in_place(|| controller.take_up_health(known));
                taken.map_err(|e| format!("servers' health: {e}"))?;
            }
            if let Some(next_hops) = &mut next_hops {
                next_hops.prepare(controller.reach(), &learnt).await;
            }
            (controller, stored, None, left, true)
        }
        Some(old) => {
            let (old, held, vhost) = (old.clone(), held.clone(), vhost.clone());
            let (gate, balancer) = (start_gate.clone(), engine.clone());
            let (switch, workers) = (switch.clone(), workers.clone());
            let runtime = Handle::current();
            let (named, router) = (option_interfaces.clone(), router.clone());
            let interfaces = interfaces.clone();
            let taking = move || {
                workers.wait_for_flow_memory();
                let prepare = |controller: &mut Controller| {
                    let kernel = || {
                        let mirror = runtime.block_on(router.mirror());
                        mirror.map(|it| it.snapshot()).map_err(|e| e.to_string())
                    };
                    let named = named.declare_handed(controller, &interfaces, kernel)?;
                    if let Some(next_hops) = &mut next_hops {
                        runtime.block_on(next_hops.prepare(controller.reach(), &learnt));
                    }
                    Ok::<_, String>(named)
                };
                let links = || take_links(&old, &gate, &balancer);
                let planes = (&*vhost, &*switch);
                let held = held.as_deref();
                let taken = take_over(controller, open_store, &old, held, planes, prepare, links)?;
                Ok::<_, Refusal>((taken, next_hops))
            };
            let taken;
            (taken, next_hops) = waiting(taking).await?;
            taken
        }
    };
    let sockets = v1.iter().filter_map(v1::server::Listener::path);
    let sockets = sockets.chain(v0.iter().filter_map(v0::server::Listener::path));
    let served = scraped.iter().chain(&pages);
    let sockets = sockets.chain(served.filter_map(http::Listener::path));
    let sockets = sockets.map(|path| reopen_socket(path, &access)).collect();
    let operations = Operations::new(controller, log, unix_secs);
    let operations = operations.with_store(stored).with_names(names);
    // All ports at once. In an upgrade they are here by now, and no frame moves.
    if predecessor.is_none() {
        vhost.catch_up();
    }
    start_gate.open().map_err(|e| e.to_string())?;
    if predecessor.is_none() {
        let folder = settings.socket_dir.clone();
        drop(tokio::task::spawn_blocking(move || remove_stale(&folder)));
    }
    if let Some(old) = &predecessor {
        old.moving();
        // Frames move already: what they count is added.
        if let Some(left) = &counted {
            handover::take_counts(&mut operations.control(), left);
        }
        // Before a VMM is heard: until then what the keeper has of its session is true.
        let (held, switch) = (held.clone(), workers.switch().clone());
        let (left, interfaces) = (left_connections.clone(), interfaces.clone());
        let enter = move || {
            // The kernel waits for a grace period with each. Meanwhile those of the daemon before
            // send frames to the same sockets and servers.
            if let Err(why) = put_programs(&interfaces) {
                tracing::error!("programs of the daemon before run on: {why}");
            }
            held.iter()
                .for_each(|held| handover::enter(held, &switch, left.as_ref(), is_whole));
        };
        drop(tokio::task::spawn_blocking(enter).await);
        vhost.begin();
        // The daemon before stands still until it ends.
        tokio::task::block_in_place(|| {
            left_behind.go_on();
            engine.go_on();
        });
        if let Err(why) = router.go_on().await {
            tracing::error!("{why}");
        }
    }
    // Behind the point at which the daemon before could go on, a part that cannot begin is missing,
    // and does not end the rest.
    let begun = |part: Result<(), String>| match part {
        Err(why) if predecessor.is_some() => {
            tracing::error!("{why}");
            Ok(())
        }
        part => part,
    };
    if let (Some(left), Some(held)) = (left_connections, &held) {
        begun(left.take_up(workers.switch().clone(), held.clone()))?;
    }
    let app = Arc::new(App::new(
        operations,
        workers.clone(),
        vhost,
        endpoints,
        Features {
            uplinks,
            balancer: engine.clone(),
            router,
            traces,
            reload: Reload::new(reload::Files {
                access: access.clone(),
                audit,
                flow_log: flow_log.clone(),
                certificates,
                v0_key,
                page_token: page_token.clone().zip(settings.page_token.clone()),
                router_acl,
                on_access: sockets,
            }),
            upgrade: Upgrade::new(upgrade::Parts {
                cannot: no_upgrade(settings),
                listeners: listeners.noted(),
                paths: handed_paths(settings),
                held: held.clone(),
                left_behind,
                interfaces: interfaces.clone(),
                changes: gate.changes().clone(),
            }),
            held: held.clone(),
        },
    ));
    begun(flow_log.start(app.operations.clone(), switch.clone()))?;
    begun(
        app.sflow
            .start(&settings.sflow, settings.sflow_rate, app.clone()),
    )?;
    let events = app.control().subscribe();
    refuses_none.store(is_upgrade, Ordering::Relaxed);
    begun(take_interfaces(option_interfaces, &app, is_upgrade).await)?;
    refuses_none.store(false, Ordering::Relaxed);
    if let Some(held) = left_held {
        let (engine, interfaces, held) = (engine.clone(), interfaces, held.clone());
        let uplinks = app.uplinks.clone();
        let take_up = move || {
            take_up_left(&engine, &interfaces, &held, &left_points)?;
            uplinks.forget_left();
            Ok::<_, String>(())
        };
        begun(waiting(take_up).await)?;
    }
    if let Some(words) = deaf::sentence(&app.control().deaf_networks()) {
        tracing::warn!("{words}");
    }
    begun(app.router.settle().await.map_err(|e| e.to_string()))?;
    starting.store(false, Ordering::Relaxed);
    if predecessor.is_some() {
        read_again(app.clone()).await;
    }

    // Those that serve clients end when the daemon stops; others go on for as long as they may.
    let (mut tasks, mut clients) = (JoinSet::new(), JoinSet::new());
    tasks.spawn(states.deliver(app.clone(), record_port));
    tasks.spawn(balancer::log(app.clone(), events));
    tasks.spawn(interface_states.deliver(app.clone(), record_interface));
    tasks.spawn(follow_next_hops(
        next_hops,
        underlay_options(settings),
        &app,
        switch,
    ));
    tasks.spawn(app.uplinks.clone().hold_those_that_come());
    let prober = balancer::Prober(engine);
    let answers = Reader::new("health answers", settings.hang_secs);
    let means = health::probe::Means {
        programs,
        asks: Apart(answers),
    };
    tasks.spawn(balancer::check(app.clone(), due, means, prober));
    let hook = settings.balance_hook.as_deref().map(|program| {
        let announced = announced.announced;
        let take = || balancer::hook::Announced::take(&announced_folders(settings));
        Hook::new(program, announced.unwrap_or_else(take))
    });
    if let Some(hook) = hook.clone() {
        tasks.spawn(hook.announce(app.clone()));
    }
    let announcer = match (bgp, &predecessor) {
        (None, _) => None,
        (Some(bgp), None) => Some(Announcer::start(app.clone(), bgp, &settings.socket_dir).await?),
        (Some(bgp), Some(_)) => {
            let (app, folder) = (app.clone(), &settings.socket_dir);
            Some(Announcer::go_on(app, bgp, folder, announced.pipes))
        }
    };
    app.upgrade.set_announcing(Announcing {
        speaker: announcer.as_ref().map(Announcer::speaker),
        hook: hook.as_ref().map(Hook::announced),
    });
    for listener in scraped {
        let metrics = metrics::server::Metrics::new(app.clone(), gate.clone());
        clients.spawn(listener.serve(app.clone(), access.clone(), gate.clone(), metrics));
    }
    if !pages.is_empty() {
        let history = page::history::History::default();
        tasks.spawn(history.clone().record(app.clone()));
        let services = v1::server::services(&app, &gate).await;
        let (turns, replies) = (app.turns.clone(), app.replies.clone());
        let services = page::transcode::Transcoder::new(services, turns, replies);
        let page = page::server::Page::new(services, history, gate.clone(), page_token);
        for listener in pages {
            clients.spawn(listener.serve(app.clone(), access.clone(), gate.clone(), page.clone()));
        }
    }
    for listener in v1 {
        clients.spawn(listener.serve(app.clone(), access.clone(), gate.clone()));
    }
    if let Some(listener) = v0 {
        clients.spawn(listener.serve(app.clone()));
    }
    let mut watched = workers.watched();
    watched.extend(Watched::runtime("API", &Handle::current()));
    watched.extend(Watched::runtime(kernel::THREAD, following));
    watched.push(Watched::vhost(&app.vhost)?);
    watched.push(Watched::controller(&app.operations)?);
    let watchdog = Watchdog::start(watched, settings.hang_secs, app.health.clone())?;
    app.upgrade.set_pause(watchdog.pause());
    announce(settings, &app, predecessor.is_none());
    app.health.set(true);
    if let Some(old) = predecessor {
        old.serving();
    }

    let again = app.clone();
    let on_hangup = move || {
        // What the files say is in the log.
        let _ = again.reload.now();
        if upgrade::was_replaced() {
            let _ = again.upgrade.run(&again, None, || ());
        }
    };
    // Who stops it by its API wants it gone; a signal may come from a restart.
    let for_good = tokio::select! {
        name = signals.stop(on_hangup) => {
            tracing::info!("stopping: {name}");
            false
        }
        () = app.stopping() => {
            if !app.upgrade.has_given_way() {
                tracing::info!("stopping");
            }
            true
        }
        _ = app.upgrade.over() => false,
    };
    let giving_up = app.clone();
    let _ = waiting(move || {
        giving_up.upgrade.stop();
        Ok::<(), String>(())
    })
    .await;
    if let Some(upgraded) = app.upgrade.is_over() {
        give_way(&upgraded, clients).await;
    }
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    let withdrawals = announcer.as_ref().map(Announcer::stop_within);
    let withdrawals = [
        withdrawals,
        hook.as_ref().map(|_| balancer::hook::STOP_WITHIN),
    ];
    ask_for_time(withdrawals.into_iter().flatten().sum());
    watchdog.stopping();
    app.health.set(false);
    // Routers choose others while packets still find their way here.
    if let Some(announcer) = announcer {
        announcer.stop().await;
    }
    app.stop();
    // Calls that are running are answered, also those of clients that are in no set.
    tokio::time::sleep(GRACE).await;
    clients.abort_all();
    tasks.abort_all();
    // What they hold, the file of what is announced among it, is free then.
    all_ended(&mut clients, GRACE).await;
    all_ended(&mut tasks, GRACE).await;
    if let Some(hook) = hook {
        hook.withdraw(&app).await;
    }
    let sflow = app.sflow.clone();
    let stopped = tokio::task::spawn_blocking(move || {
        flow_log.stop();
        sflow.stop();
    });
    if stopped.await.is_err() {
        tracing::warn!("the flow log did not end as it should");
    }
    let leave = !for_good && settings.store.is_some();
    take_down(app, &workers, held, leave, settings.socket_dir.clone()).await;
    tracing::info!("stopped");
    Ok(())
}

/// Has systemd wait as long as withdrawals may take, and what else a stop takes: it would kill this
/// process in the midst of them, and connections would not be left.
fn ask_for_time(withdrawals: Duration) {
    if withdrawals.is_zero() {
        return;
    }
    let micros = (withdrawals + STOP_REST).as_micros();
    let micros = u32::try_from(micros).unwrap_or(u32::MAX);
    let _ = sd_notify::notify(&[NotifyState::ExtendTimeoutUsec(micros)]);
}

/// Where it is kept what a program has announced: a service manager takes the folder of sockets
/// away when the service is stopped.
fn announced_folders(settings: &Settings) -> balancer::hook::Folders {
    let (store, state) = (settings.store.as_deref(), settings.state_dir.as_deref());
    balancer::hook::Folders::of(store, state, &settings.socket_dir)
}

/// Reads all files again, behind the last word of the daemon before: since this process has read
/// them, that one may have read newer ones, and said that they are in force. What it was asked to
/// read by its last word is no newer than what is read here.
async fn read_again(app: Arc<App>) {
    let reading = tokio::task::spawn_blocking(move || app.reload.now());
    // What the files say is in the log.
    if tokio::time::timeout(READ_WITHIN, reading).await.is_err() {
        tracing::error!(
            "the files of the daemon before are not read again in {} s: until they are, what was \
             read before is in force",
            READ_WITHIN.as_secs()
        );
    }
}

/// Starts DPDK and takes the device that was asked for.
fn dpdk_uplink(settings: &Settings) -> Result<Option<Arc<uplink::DpdkUplink>>, String> {
    let Some(wanted) = &settings.dpdk else {
        return Ok(None);
    };
    let refused = |error: dpdk::Error| format!("--dpdk-args: {error}");
    dpdk::start(&wanted.args, |line| tracing::debug!("DPDK: {line}")).map_err(refused)?;
    let number = match wanted.port {
        Some(port) => {
            u16::try_from(port).map_err(|_| format!("--dpdk-port {port}: no such number"))?
        }
        None => dpdk::ports().first().map_or(0, |(number, _)| *number),
    };
    let device = dpdk::Device::take(number).map_err(|error| match wanted.port {
        Some(port) => format!("--dpdk-port {port}: {error}"),
        None => format!("--dpdk-args {}: {error}", wanted.args.join(" ")),
    })?;
    let workers = u16::try_from(settings.workers.len()).unwrap_or(u16::MAX);
    let uplink = uplink::DpdkUplink::new(device, &wanted.interface(), workers)?;
    Ok(Some(Arc::new(uplink)))
}

/// What uplinks are made with, whenever the first one is.
fn uplink_setup(
    settings: &Settings,
    interfaces: Arc<Mutex<Interfaces>>,
    kernel: Arc<Kernel>,
    gate: Arc<StartGate>,
    arrivals: Arc<Arrivals>,
) -> uplinks::Setup {
    uplinks::Setup {
        settings: uplink::UplinkSettings {
            addresses: underlay_address(settings).into_iter().collect(),
            interfaces: settings.uplinks.clone(),
            by_address: settings.uplinks.is_empty(),
            tap: Some(UPLINK_TAP.to_owned()),
        },
        options: uplink::Options {
            port: settings.vxlan_port,
            groups: Some(match underlay_address(settings) {
                Some(IpAddr::V6(_)) => FLOOD_GROUPS_V6,
                _ => FLOOD_GROUPS_V4,
            }),
            frames: UPLINK_FRAMES,
            packet: settings.uplink_mode == UplinkMode::Packet,
            busy_poll: settings.busy_poll,
        },
        interfaces,
        arrivals,
        kernel,
        gate,
        alone: settings.alone,
        dpdk: None,
        handed: Items::new(),
        apart: Arc::default(),
        held: None,
        takes_left: false,
    }
}

/// Gives a socket to those who may connect by what was read last.
fn reopen_socket(path: &Path, access: &Access) -> reload::OnAccess {
    let (path, access) = (path.to_owned(), access.clone());
    Box::new(move || {
        let opened = unix_socket::open_to(&path, &access);
        opened.map_err(|e| {
            format!(
                "{} is not given to those who may connect by now: {e}",
                path.display()
            )
        })
    })
}

/// What a killed daemon has left of its NICs, but for those that are here again.
fn remove_stale(folder: &Path) {
    match unix_socket::remove_nic_sockets(folder) {
        0 => {}
        count => tracing::info!(
            "removed {count} sockets of NICs that nobody listens on from {}",
            folder.display()
        ),
    }
}

/// Where sockets of ours are made.
fn folders(settings: &Settings) -> Vec<std::path::PathBuf> {
    let v0 = settings
        .v0_endpoint
        .iter()
        .filter_map(|v0| v0.strip_prefix("ipc://"));
    let v1 = settings
        .v1_endpoints
        .iter()
        .filter_map(|v1| v1.strip_prefix("unix:"));
    let served = settings.metrics.iter().chain(&settings.page);
    let served = served.filter_map(|served| served.strip_prefix("unix:"));
    let sockets = v0.chain(
        v1.chain(served)
            .map(|path| path.strip_prefix("//").unwrap_or(path)),
    );
    let sockets = sockets.filter(|path| !path.is_empty() && !path.starts_with('@'));
    sockets
        .map(|path| lock::folder(path.as_ref()))
        .chain([settings.socket_dir.clone()])
        .collect()
}

/// Our address towards other hosts. A loopback's leads to none.
fn underlay_address(settings: &Settings) -> Option<IpAddr> {
    settings.ip.filter(|ip| !ip.is_loopback())
}

fn underlay_options(settings: &Settings) -> underlay::UnderlayOptions {
    underlay::UnderlayOptions {
        addresses: underlay_address(settings).into_iter().collect(),
        encapsulation: settings.encapsulation.clone(),
        follow_mtu: settings.mtu.is_none(),
    }
}

/// What finds the next hops to other hosts, if there is an uplink by now.
fn next_hops(
    settings: &Settings,
    uplinks: &uplinks::Control,
    switch: &Arc<Switch>,
) -> Result<Option<NextHopTask>, String> {
    let made = uplinks
        .running()
        .map(|uplinks| NextHopTask::new(underlay_options(settings), switch.clone(), uplinks));
    made.transpose()
}

/// Follows the next hops to other hosts, from the first uplink on.
fn follow_next_hops(
    now: Option<NextHopTask>,
    options: underlay::UnderlayOptions,
    app: &Arc<App>,
    switch: Arc<Switch>,
) -> impl Future<Output = ()> + Send + 'static {
    let (uplinks, app) = (app.uplinks.clone(), Arc::downgrade(app));
    async move {
        if let Some(next_hops) = now {
            return next_hops.follow(app).await;
        }
        uplinks.begun().await;
        let Some(uplinks) = uplinks.running() else {
            return;
        };
        match NextHopTask::new(options, switch, uplinks) {
            Ok(next_hops) => next_hops.follow(app).await,
            Err(why) => tracing::error!("other hosts are not reached: {why}"),
        }
    }
}

/// Runs what may wait.
async fn waiting<T: Send + 'static, E: From<&'static str> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| "a thread panicked")?
}

/// Listening sockets: those of the daemon before, and all for the next one.
struct Handed {
    predecessor: Option<Arc<Predecessor>>,
    noted: Vec<(String, OwnedFd)>,
}

impl Handed {
    fn new(predecessor: Option<Arc<Predecessor>>) -> Handed {
        Handed {
            predecessor,
            noted: Vec::new(),
        }
    }

    fn take(&self, served: &str, endpoint: &str) -> Option<OwnedFd> {
        let old = self.predecessor.as_ref()?;
        old.take(&format!("{served} {endpoint}"))
    }

    fn note(
        &mut self,
        served: &str,
        endpoint: &str,
        socket: std::io::Result<OwnedFd>,
    ) -> Result<(), String> {
        let socket = socket.map_err(|e| format!("the socket of {endpoint}: {e}"))?;
        self.noted.push((format!("{served} {endpoint}"), socket));
        Ok(())
    }

    fn noted(self) -> Vec<(String, OwnedFd)> {
        self.noted
    }
}

/// Where lies what is handed over, by the options that say so.
fn handed_paths(settings: &Settings) -> Vec<(&'static str, PathBuf)> {
    let paths = [
        ("--store", settings.store.as_ref()),
        ("--keeper", settings.keeper.as_ref()),
        ("--socket-dir", Some(&settings.socket_dir)),
    ];
    let said = |(option, path): (_, Option<&PathBuf>)| Some((option, path?.clone()));
    paths.into_iter().filter_map(said).collect()
}

/// What in the settings leaves no upgrade.
fn no_upgrade(settings: &Settings) -> Option<String> {
    let restart = "cannot be handed over: restart the daemon instead";
    if settings.dpdk.is_some() {
        return Some(format!("a device that DPDK drives (--dpdk-args) {restart}"));
    }
    (settings.store.is_none() || settings.keeper.is_none()).then(|| upgrade::NEEDS.to_owned())
}

/// What a daemon that takes another's place begins with: the controller, the store, and the memory
/// of what that one has counted, connections that are still to be taken up, and whether all that is
/// stored is there.
type TakenOver = (
    Controller,
    Option<Arc<Stored>>,
    Option<OwnedFd>,
    Option<LeftConnections>,
    bool,
);

/// Makes the controller what the daemon before has declared, and takes its place when that stands
/// still: with what is returned this process is the daemon. `prepare` declares beside it what
/// options name of what is handed over, and says what that is.
fn take_over(
    mut controller: Controller,
    open_store: Option<impl FnOnce() -> Result<Option<Arc<Stored>>, String>>,
    old: &Predecessor,
    held: Option<&Held>,
    (vhost, switch): (&Server, &Switch),
    prepare: impl FnOnce(&mut Controller) -> Result<Vec<Named>, String>,
    take_links: impl FnOnce() -> Result<(), String>,
) -> Result<TakenOver, Refusal> {
    let start = Instant::now();
    let packed = old.bytes("objects")?.unwrap_or_default();
    let objects = stored::load_packed(&mut controller, &packed)?;
    tracing::info!(
        "{objects} objects are there from the daemon before, in {} ms",
        start.elapsed().as_millis()
    );
    let of_options = prepare(&mut controller)?;
    let held = held.ok_or(upgrade::NEEDS)?;
    let flows = held
        .flows()
        .map_err(|e| format!("its memory of flows: {e}"))?;
    let early = EarlySessions::prepare(old, held, vhost, &controller)?;
    old.ready()?;
    let stored = open_store.map_or(Ok(None), |open| open())?;
    let is_whole = match &stored {
        Some(stored) => {
            stored.has_all(&packed)?;
            stored.is_whole(&mut controller)?
        }
        None => true,
    };
    let readable = flows.as_ref().map(handover::is_readable);
    if let Some(Err(why)) = &readable {
        tracing::info!("connections come in the API's format: of its memory of them, {why}");
    }
    let used = old.opened(matches!(readable, Some(Ok(()))))?;
    let start = Instant::now();
    let taken = match (old.bytes("connections")?, flows) {
        (Some(bytes), _) => connections::import_all(&mut controller, &bytes, 0).map(|_| None),
        (None, Some(flows)) => handover::take_flows(&controller, switch, &flows, used),
        (None, None) => return Err("the daemon before has no memory of flows".into()),
    };
    let connections = taken.map_err(|e| format!("connections are not taken up: {e}"))?;
    let sessions = early.take_up(old, held, vhost, &controller)?;
    let counted = held
        .state()
        .map_err(|e| format!("its memory of counters: {e}"))?;
    if let Some(left) = &counted {
        handover::take_macs(&controller, switch, left);
    }
    if let Some(known) = old.bytes("health")? {
        let known = balancer::handover::read(&known)?;
        let taken = controller.take_up_health(known);
        taken.map_err(|e| format!("servers' health: {e}"))?;
    }
    tracing::info!(
        "{sessions} sessions of VMMs are taken up, in {} us",
        start.elapsed().as_micros()
    );
    take_links()?;
    old.taken()?;
    held.note_deaths();
    let controller = match &stored {
        Some(stored) => {
            stored.are_of_options(&of_options);
            controller.with_journal(stored.journal())
        }
        None => controller,
    };
    Ok((controller, stored, counted, connections, is_whole))
}

/// Goes on with uplinks and the load balancer where the daemon before has left them.
fn take_links(
    old: &Predecessor,
    gate: &StartGate,
    balancer: &balancer::Engine,
) -> Result<(), String> {
    gate.take_up(old.all_bytes("left")?)?;
    balancer.take_up(old.bytes("tables")?.as_deref())
}

/// Has the programs of this daemon run where those of the one before do.
fn put_programs(interfaces: &Mutex<Interfaces>) -> Result<(), String> {
    let mut interfaces = interfaces.lock().unwrap_or_else(PoisonError::into_inner);
    interfaces.take_over().map_err(|e| e.to_string())
}

/// Goes on with services where a daemon that was killed or stopped has ended, and has the programs
/// of this one run where that one's did. What nobody wants any more goes.
fn take_up_left(
    balancer: &balancer::Engine,
    interfaces: &Mutex<Interfaces>,
    held: &Held,
    points: &[String],
) -> Result<(), String> {
    balancer.take_up_left()?;
    put_programs(interfaces)?;
    let interfaces = interfaces.lock().unwrap_or_else(PoisonError::into_inner);
    for point in points.iter().filter(|point| !interfaces.is_kept(point)) {
        held.release_item(words::POINT, point);
    }
    if balancer.running().is_none() {
        balancer.release();
    }
    Ok(())
}

/// Returns when all of these have ended, or so long has passed.
async fn all_ended(tasks: &mut JoinSet<()>, within: Duration) {
    let ended = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(within, ended).await;
}

/// The end, after another program has taken over: nothing is taken down.
async fn give_way(upgraded: &Upgraded, mut clients: JoinSet<()>) -> ! {
    // Calls that are running are answered.
    all_ended(&mut clients, ANSWERS_WITHIN).await;
    // systemd, which was told of the next process, is to have read that before it hears of this
    // end.
    tokio::time::sleep(GRACE).await;
    tracing::info!("process {} goes on in this one's place", upgraded.pid);
    std::process::exit(0);
}

/// Makes the controller what was stored, before anybody can ask it for anything else. Besides it
/// the connections that are still to be taken up.
async fn load(
    mut controller: Controller,
    stored: Option<Arc<Stored>>,
    held: Option<Arc<Held>>,
    (switch, are_loading): (Arc<Switch>, Loading),
    folder: PathBuf,
) -> Result<(Controller, Option<LeftConnections>), String> {
    let Some(stored) = stored else {
        return Ok((controller, None));
    };
    let loading = tokio::task::spawn_blocking(move || {
        let start = Instant::now();
        let mut load = |held: Option<&Held>| stored.load(&mut controller, held);
        are_loading.store(true, Ordering::Release);
        let loaded = match &held {
            Some(held) => held.while_loading(|| load(Some(held))),
            None => load(None),
        };
        are_loading.store(false, Ordering::Release);
        let loaded = loaded?;
        if loaded.objects > 0 {
            tracing::info!(
                "{} objects are there again from the store, in {} ms",
                loaded.objects,
                start.elapsed().as_millis()
            );
        }
        match handover::take(&mut controller, &folder) {
            Ok(0) => (),
            Ok(count) => tracing::info!("{count} connections go on"),
            Err(why) => tracing::error!("connections are not taken up: {why}"),
        }
        let mut left = None;
        if let Some(held) = held {
            left = handover::take_memory(&controller, &switch, &held);
            handover::take_state(&mut controller, &switch, &held);
            // Of an object that could not be made something may be left, for the next start.
            if loaded.whole {
                held.release_left();
            }
        }
        Ok((controller.with_journal(stored.journal()), left))
    });
    loading.await.map_err(|_| "reading the store panicked")?
}

/// Takes the interfaces that options name; in an upgrade those that can be had.
async fn take_interfaces(
    named: Arc<OptionInterfaces>,
    app: &Arc<App>,
    is_upgrade: bool,
) -> Result<(), String> {
    let app = app.clone();
    let take = move || match is_upgrade {
        true => {
            named.take_all_that_can_be(&app);
            Ok(())
        }
        false => named.take(&app),
    };
    let taken = tokio::task::spawn_blocking(take).await;
    taken.map_err(|_| "taking the interfaces that options name panicked")?
}

fn worker_options(
    settings: &Settings,
    states: &PortStates,
    breaks: Breaks,
    left: usize,
    is_upgrade: bool,
) -> WorkerOptions {
    let states = states.clone();
    WorkerOptions {
        cores: settings.workers.clone(),
        max_flows: settings.max_flows,
        memory: flow_memory(settings),
        left,
        is_upgrade,
        poll: Duration::from_micros(settings.poll_us),
        on_broken: Arc::new(move |slot, why| {
            if slot.is_uplink() {
                return breaks.leave(slot, &why);
            }
            tracing::warn!(
                "the port in slot {} is stopped, its guest broke the protocol: {why}",
                slot.0
            );
            states.leave(slot.0, NicState::Broken(why));
        }),
    }
}

fn balancer_options(settings: &Settings) -> Result<::balancer::Options, String> {
    let options = ::balancer::Options {
        max_flows: settings.balance_max_flows,
        ..::balancer::Options::default()
    };
    options
        .with_seed_of(settings.balance_seed.as_deref())
        .map_err(|why| format!("--balance-seed: {why}"))
}

/// Where connections are, if they are to outlive a daemon that is killed: then somebody has to hold
/// their memory, and the next one has to know their NICs before it is asked for anything.
fn flow_memory(settings: &Settings) -> Option<FlowMemory> {
    if settings.keeper.is_none() || settings.store.is_none() {
        return None;
    }
    let made = FlowMemory::new(settings.max_flows);
    made.inspect_err(|e| tracing::error!("connections are lost if this daemon is killed: {e}"))
        .ok()
}

/// What is to be known when the first NIC comes: also how much the uplinks carry that are there
/// already.
fn control_settings(
    settings: &Settings,
    uplinks: Option<&Uplinks>,
) -> Result<control::HostSettings, String> {
    let address = underlay_address(settings);
    let carried =
        uplinks.and_then(|uplinks| underlay::inner_mtu(address.as_slice(), &uplinks.facts()));
    let utf8 = |what: &str, dir: &Path| {
        let text = dir.to_str().map(str::to_owned);
        text.ok_or_else(|| format!("{what}'s path is not UTF-8: {}", dir.display()))
    };
    Ok(control::HostSettings {
        socket_dir: utf8("the socket directory", &settings.socket_dir)?,
        default_mtu: settings.mtu.or(carried).unwrap_or(DEFAULT_MTU),
        offloads: settings.offloads,
        trace_dir: utf8("the folder of traces", &settings.trace_dir)?,
        trace_default: settings.packet_trace,
        pid: std::process::id(),
        flow_share: settings.max_flows_per_nic,
        overlay: uplinks.is_some(),
        underlay_ipv6: address.is_some_and(|ip| ip.is_ipv6()),
        started_unix_secs: unix_secs(),
    })
}

/// "Ready", to people and, at a first start, to systemd.
fn announce(settings: &Settings, app: &App, first: bool) {
    tracing::info!(
        "butterflyd {} is ready: APIs on {}, sockets in {}",
        api::VERSION,
        match app.endpoints.as_slice() {
            [] => "none".to_owned(),
            endpoints => endpoints.join(", "),
        },
        settings.socket_dir.display()
    );
    if !first {
        return;
    }
    if let Err(e) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::warn!("systemd could not be told: {e}");
    }
}

/// Sockets, devices and the workers, in this order: whoever closes a port needs its worker.
/// With `leave` the next daemon finds connections, and devices if they are held.
async fn take_down(
    app: Arc<App>,
    workers: &Arc<WorkerThreads>,
    held: Option<Arc<Held>>,
    leave: bool,
    folder: PathBuf,
) {
    let workers = workers.clone();
    let down = tokio::task::spawn_blocking(move || {
        // While frames move still.
        workers.switch().wait_for_left();
        // The kernel has its interfaces back before anything else goes.
        app.router.stop();
        app.uplinks.stop();
        let mut in_memory = false;
        if leave {
            held.iter().for_each(|held| held.stay());
            match handover::leave(&app.control(), workers.switch(), &app.vhost, &folder) {
                Ok(left) => {
                    let count = left.count;
                    in_memory = left.in_memory;
                    tracing::info!("{count} connections are left for the next daemon");
                }
                Err(why) => tracing::error!("no connections are left for the next daemon: {why}"),
            }
            if app.balancer.stay() {
                tracing::info!("services are balanced on, as they are, for the next daemon");
            }
        }
        // Others are in the file, or not to be found again.
        held.iter().for_each(|held| held.end_told(in_memory));
        if let Err(e) = app.control().apply(Config::default(), false) {
            tracing::warn!("not everything could be taken down: {e}");
        }
        if !leave {
            app.balancer.release();
            if let Some(held) = &held {
                held.release_items(words::POINT);
                held.release_items(router::HELD);
            }
        }
        workers.stop();
    });
    if down.await.is_err() {
        tracing::error!("taking down panicked");
    }
}

/// A thread of ours that panics ends the process, with a line in the log; the runtime's threads
/// belong to single requests, which fail alone.
fn abort_on_panic() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tracing::error!("panic: {info}");
        default(info);
        if std::thread::current().name() != Some("api") {
            deaths::note();
            std::process::abort();
        }
    }));
}

/// Each guest takes some ten descriptors, and the usual limit is 1024.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(e) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("the limit of open files stays at {:?}: {e}", limit.current);
    }
}

/// Has the kernel's table of our descriptors as large as they will be. A process of several threads
/// waits for an RCU grace period, up to 20 ms, whenever it has to grow: thrice in the start of a
/// daemon with 64 guests.
fn make_room_for_descriptors() {
    // The highest one makes it so large, and it never becomes smaller. With a limit below that it
    // grows as before.
    drop(rustix::io::fcntl_dupfd_cloexec(
        std::io::stderr(),
        DESCRIPTORS - 1,
    ));
}

/// SIGTERM and SIGINT stop; with SIGHUP the files are read again that can be, and a program that is
/// in the place of this one by now takes over.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Signals, String> {
        let catch = |kind| signal(kind).map_err(|e| format!("signals cannot be caught: {e}"));
        Ok(Signals {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
            hangup: catch(SignalKind::hangup())?,
        })
    }

    /// Waits to be stopped; gives what by. `read_again` may take as long as a directory of users
    /// does that does not answer: it runs beside, one at a time, and signals that come meanwhile
    /// are one more.
    async fn stop(&mut self, read_again: impl Fn() + Clone + Send + 'static) -> &'static str {
        let mut reading = JoinSet::new();
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv(), if reading.is_empty() => {
                    reading.spawn_blocking(read_again.clone());
                }
                Some(_) = reading.join_next() => (),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn who_stops_it_is_heard_while_files_are_read_again() {
        let (begun, begins) = channel();
        let (ends, ended) = channel();
        let ended = Arc::new(Mutex::new(ended));
        let read_again = move || {
            begun.send(()).unwrap();
            let _ = ended.lock().unwrap().recv();
        };
        let mut signals = Signals::new().unwrap();
        let stop = tokio::spawn(async move { signals.stop(read_again).await });
        let begins = tokio::task::spawn_blocking(move || {
            let say = |signal| kill_process(getpid(), signal).unwrap();
            say(Signal::HUP);
            begins.recv_timeout(PATIENCE).unwrap();
            // Two while it goes on are one more behind it.
            (0..2).for_each(|_| say(Signal::HUP));
            ends.send(()).unwrap();
            begins.recv_timeout(PATIENCE).unwrap();
            say(Signal::TERM);
            (begins, ends)
        });
        let (begins, ends) = begins.await.unwrap();
        let stopped = tokio::time::timeout(PATIENCE, stop).await;
        assert_eq!(stopped.unwrap().unwrap(), "SIGTERM");
        assert!(begins.try_recv().is_err());
        drop(ends);
    }
}
