//! A clock that goes only when everybody waits: hours pass in milliseconds, and nothing depends on the machine's speed.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use tenure_core::clock::Alarm;
use tenure_core::{BootInstant, Clock};

/// Time that is moved by [`SimClock::run`].
#[derive(Debug, Clone)]
pub(crate) struct SimClock(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    now: BootInstant,
    serial: u64,
    alarms: BTreeMap<Alarm, Waker>,
}

impl SimClock {
    pub(crate) fn new() -> Self {
        let now = BootInstant::from_nanos(1_000_000_000_000);
        Self(Arc::new(Mutex::new(State { now, serial: 0, alarms: BTreeMap::new() })))
    }

    /// Runs `future` on the current-thread runtime it is called in. Whenever no task can go on, time moves to the next
    /// alarm.
    pub(crate) async fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            // Every task that was woken gets its turn before time moves: a yielding task queues behind them.
            for _ in 0..64 {
                let turn = std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx)));
                if let std::task::Poll::Ready(output) = turn.await {
                    return output;
                }
                tokio::task::yield_now().await;
            }
            let next = {
                let mut state = self.0.lock().unwrap();
                let (alarm, waker) = state.alarms.pop_first().expect("everybody waits, and nobody for time");
                state.now = state.now.max(alarm.at);
                waker
            };
            next.wake();
        }
    }
}

impl Clock for SimClock {
    fn now(&self) -> BootInstant {
        self.0.lock().unwrap().now
    }

    fn unix_micros(&self) -> u64 {
        1_700_000_000_000_000 + self.now().as_nanos() / 1000
    }

    fn wake_at(&self, at: BootInstant, waker: Waker) -> Alarm {
        let mut state = self.0.lock().unwrap();
        state.serial += 1;
        let alarm = Alarm { at, serial: state.serial };
        state.alarms.insert(alarm, waker);
        alarm
    }

    fn cancel(&self, alarm: Alarm) {
        let waker = self.0.lock().unwrap().alarms.remove(&alarm);
        drop(waker);
    }
}
