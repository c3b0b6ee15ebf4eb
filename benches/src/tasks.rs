//! Tasks that do one operation after the other, each waiting for its own.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{runtime::Runtime, task::JoinSet};

/// Something to do, given a number that nobody else has.
pub type Operation =
    Arc<dyn Fn(u64) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync + 'static>;

pub fn operation<F: Future<Output = ()> + Send + 'static>(
    operation: impl Fn(u64) -> F + Send + Sync + 'static,
) -> Operation {
    Arc::new(move |n| Box::pin(operation(n)))
}

/// How long a turn takes.
const TURN: Duration = Duration::from_millis(400);
/// Far more than a task gets done in a turn: a bound on the load if a clock should stand still.
const MOST: usize = 1_000_000;

/// What the tasks of one turn saw.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Operations per second, of all of them.
    pub rate: f64,
    /// Microseconds that an operation took.
    pub p50: f64,
    pub p99: f64,
    pub worst: f64,
    /// What the task that got least done got done, of what one got done on average.
    pub least_share: f64,
}

/// Lets so many tasks repeat an operation for a while.
pub fn take_turn(runtime: &Runtime, tasks: usize, operation: &Operation) -> Turn {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    runtime.block_on(async {
        let started = Instant::now();
        let mut running = JoinSet::new();
        for _ in 0..tasks {
            let operation = Arc::clone(operation);
            running.spawn(async move {
                let mut waits = Vec::with_capacity(1 << 12);
                while started.elapsed() < TURN && waits.len() < MOST {
                    let begun = Instant::now();
                    operation(NEXT.fetch_add(1, Ordering::Relaxed)).await;
                    waits.push(begun.elapsed());
                }
                waits
            });
        }
        let waits = running.join_all().await;
        Turn::of(&waits, started.elapsed())
    })
}

impl Turn {
    fn of(tasks: &[Vec<Duration>], time: Duration) -> Self {
        let mut waits: Vec<_> = tasks.iter().flatten().copied().collect();
        waits.sort_unstable();
        let micros = |wait: Duration| wait.as_secs_f64() * 1e6;
        let at = |share: f64| micros(waits[((waits.len() - 1) as f64 * share) as usize]);
        let least = tasks.iter().map(Vec::len).min().unwrap_or(0);
        Self {
            rate: waits.len() as f64 / time.as_secs_f64(),
            p50: at(0.5),
            p99: at(0.99),
            worst: at(1.0),
            least_share: least as f64 / (waits.len() as f64 / tasks.len() as f64),
        }
    }
}
