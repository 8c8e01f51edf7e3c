//! The ports that checks are sent from: few, and each one's for one check at a time. Who finds none
//! waits for its turn, in the order in which they came.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;

/// Those of one protocol.
pub struct Ports {
    free: Mutex<Vec<u16>>,
    /// As many as are free.
    turns: Semaphore,
}

impl Ports {
    pub fn new(all: RangeInclusive<u16>) -> Arc<Ports> {
        let free: Vec<u16> = all.collect();
        Arc::new(Ports {
            turns: Semaphore::new(free.len()),
            free: Mutex::new(free),
        })
    }

    /// One that nobody has. From anywhere: a server need not see the same port twice in a row.
    pub async fn take(self: &Arc<Ports>) -> Port {
        let turn = self.turns.acquire().await;
        turn.expect("it is never closed").forget();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = rand::random_range(..free.len());
        Port {
            number: free.swap_remove(at),
            ports: self.clone(),
        }
    }
}

/// Somebody's, until it is dropped.
pub struct Port {
    pub number: u16,
    ports: Arc<Ports>,
}

impl Drop for Port {
    fn drop(&mut self) {
        let free = self.ports.free.lock();
        free.unwrap_or_else(PoisonError::into_inner)
            .push(self.number);
        self.ports.turns.add_permits(1);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn who_finds_no_port_waits_for_one() {
        let ports = Ports::new(1..=3);
        let mut taken = Vec::new();
        for _ in 0..3 {
            taken.push(ports.take().await);
        }
        let mut numbers: Vec<u16> = taken.iter().map(|port| port.number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2, 3]);
        let (mut first, mut second) = (pin!(ports.take()), pin!(ports.take()));
        assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
        let freed = taken.remove(1).number;
        assert!(poll(second.as_mut()).is_pending(), "it came later");
        let Poll::Ready(port) = poll(first.as_mut()) else {
            panic!("a port is free");
        };
        assert_eq!(port.number, freed);
    }
}
