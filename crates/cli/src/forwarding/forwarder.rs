//! The router as `butterfly forward` runs it, on a thread of its own, which is in the network
//! namespace of its interfaces: takes their forwarding over, and gives it back to the kernel.

use std::sync::mpsc;

use router::layout::Counter;
use router::{Options, Service};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use xdp::{Interfaces, Mode};

/// The router's thread, which ends when this is dropped.
#[derive(Debug)]
pub struct Forwarder {
    orders: UnboundedSender<Order>,
}

/// What it forwards.
#[derive(Clone, Debug)]
pub struct State {
    /// Where its program runs, for sentences.
    pub places: Vec<String>,
    /// Why packets are left to the kernel.
    pub notes: Vec<String>,
    /// Packets that it has forwarded so far.
    pub forwarded: u64,
}

#[derive(Debug)]
enum Order {
    /// Take the interfaces over.
    Take(mpsc::Sender<Result<State, String>>),
    /// Say what it does.
    Say(mpsc::Sender<Result<State, String>>),
    /// Give them back.
    Give(mpsc::Sender<Result<State, String>>),
}

impl Forwarder {
    /// Starts it: forwards nothing yet. `prepare` is the first that its thread does.
    ///
    /// # Errors
    /// The router cannot be loaded. The text is for people.
    pub fn start(
        interfaces: [String; 2],
        mode: Option<Mode>,
        prepare: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Result<Forwarder, String> {
        let (orders, asked) = unbounded_channel();
        let (ready, begun) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|e| e.to_string());
            let started = prepare().and(runtime).and_then(|runtime| {
                let service = runtime.block_on(Service::start(&Options::default()));
                let mut service = service.map_err(|e| e.to_string())?;
                service.watch().map_err(|e| e.to_string())?;
                Ok((runtime, service))
            });
            match started {
                Ok((runtime, service)) => {
                    let _ = ready.send(Ok(()));
                    runtime.block_on(serve(service, &interfaces, mode, asked));
                }
                // Who started it has gone otherwise.
                Err(why) => drop(ready.send(Err(why))),
            }
        });
        begun.recv().map_err(|_| gone())??;
        Ok(Forwarder { orders })
    }

    /// Takes the forwarding over.
    ///
    /// # Errors
    /// An interface takes no program. The text is for people.
    pub fn take_over(&self) -> Result<State, String> {
        self.order(Order::Take)
    }

    /// What it does.
    ///
    /// # Errors
    /// The kernel refuses to say. The text is for people.
    pub fn state(&self) -> Result<State, String> {
        self.order(Order::Say)
    }

    /// Gives the forwarding back to the kernel.
    ///
    /// # Errors
    /// The router's tables cannot be written. The text is for people.
    pub fn give_back(&self) -> Result<State, String> {
        self.order(Order::Give)
    }

    fn order(
        &self,
        order: impl FnOnce(mpsc::Sender<Result<State, String>>) -> Order,
    ) -> Result<State, String> {
        let (answer, done) = mpsc::channel();
        self.orders.send(order(answer)).map_err(|_| gone())?;
        done.recv().map_err(|_| gone())?
    }
}

fn gone() -> String {
    "the router's thread has ended".into()
}

async fn serve(
    mut service: Service,
    interfaces: &[String; 2],
    mode: Option<Mode>,
    mut asked: UnboundedReceiver<Order>,
) {
    let mut attached = Interfaces::new();
    loop {
        let change = tokio::select! {
            order = asked.recv() => {
                let (answer, done) = match order {
                    Some(Order::Take(answer)) => {
                        (answer, take(&mut service, &mut attached, interfaces, mode).await)
                    }
                    Some(Order::Say(answer)) => (answer, Ok(())),
                    Some(Order::Give(answer)) => {
                        (answer, give(&mut service, &mut attached, interfaces))
                    }
                    None => return,
                };
                let _ = answer.send(done.and_then(|()| state(&service)));
                continue;
            }
            change = service.next() => change,
        };
        service.take(change).await;
        service.follow(&mut attached);
    }
}

async fn take(
    service: &mut Service,
    attached: &mut Interfaces,
    interfaces: &[String; 2],
    mode: Option<Mode>,
) -> Result<(), String> {
    for name in interfaces {
        let added = service.add(name, attached, mode).await;
        added.map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn give(
    service: &mut Service,
    attached: &mut Interfaces,
    interfaces: &[String; 2],
) -> Result<(), String> {
    for name in interfaces {
        let removed = service.router.remove(name, attached);
        removed.map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn state(service: &Service) -> Result<State, String> {
    let report = service.router.report().map_err(|e| e.to_string())?;
    let interfaces = report.interfaces.iter();
    let forwarded = interfaces.clone().map(|one| one.total(Counter::Forwarded));
    Ok(State {
        places: interfaces
            .map(|one| format!("{}: {}", one.name, one.place))
            .collect(),
        forwarded: forwarded.sum(),
        notes: report.notes,
    })
}
