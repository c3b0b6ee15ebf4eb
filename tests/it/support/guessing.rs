//! Wrong passwords all the time, through several app servers, and a tally of what was let through.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;
use tower_login_rate_limit::{LoginLimiter, Outcome, ReserveError, store::StoreError};

/// Guesses for each app server.
const TASKS: u32 = 16;
/// More users of each address than it may fail at.
const ADDRESSES: u32 = 6;
const USERS: u32 = 7;

/// Guesses that go on until they are ended.
///
/// They are at the same pairs of user and address, through every server. Pairs come in waves, so that
/// at any moment some are new and some are long blocked; half of the guesses are at what is new.
pub struct Guessing {
    limiters: Vec<LoginLimiter>,
    wave: Arc<AtomicU32>,
    tally: Arc<Mutex<Tally>>,
    tasks: JoinSet<()>,
}

/// What became of guesses.
#[derive(Default, Debug)]
pub struct Tally {
    pub of_pairs: HashMap<(IpAddr, u32), usize>,
    pub of_addresses: HashMap<IpAddr, usize>,
    pub refused: usize,
    pub errors: Vec<StoreError>,
}

impl Guessing {
    /// Through these servers, at new pairs every so often.
    pub fn start(limiters: Vec<LoginLimiter>, every: Duration) -> Self {
        let mut this = Self {
            limiters,
            wave: Arc::default(),
            tally: Arc::default(),
            tasks: JoinSet::new(),
        };
        for (server, limiter) in this.limiters.iter().enumerate() {
            for task in 0..TASKS {
                let number = server as u32 * TASKS + task;
                let (wave, tally) = (Arc::clone(&this.wave), Arc::clone(&this.tally));
                let guesses = guess_on(limiter.clone(), number, wave, tally);
                this.tasks.spawn(guesses);
            }
        }
        let wave = Arc::clone(&this.wave);
        this.tasks.spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                wave.fetch_add(1, Ordering::Relaxed);
            }
        });
        this
    }

    pub fn limiters(&self) -> &[LoginLimiter] {
        &self.limiters
    }

    /// Every address that was guessed from.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let waves = 0..=self.wave.load(Ordering::Relaxed);
        waves.flat_map(|wave| (0..ADDRESSES).map(move |number| address(wave, number)))
    }

    pub async fn end(mut self) -> Tally {
        self.tasks.shutdown().await;
        std::mem::take(&mut self.tally.lock().expect("a tally"))
    }
}

impl Tally {
    pub fn admitted(&self) -> usize {
        self.of_addresses.values().sum()
    }

    fn count(&mut self, address: IpAddr, user: u32) {
        *self.of_pairs.entry((address, user)).or_default() += 1;
        *self.of_addresses.entry(address).or_default() += 1;
    }

    /// How often the pair was admitted that was most often.
    pub fn most_of_a_pair(&self) -> usize {
        self.of_pairs.values().copied().max().unwrap_or(0)
    }

    /// Nobody was admitted more than so many times as often as the default policy admits.
    pub fn assert_within(&self, times: usize) {
        for (pair, admitted) in &self.of_pairs {
            assert!(
                *admitted <= 5 * times,
                "{pair:?} was admitted {admitted} times"
            );
        }
        for (address, admitted) in &self.of_addresses {
            assert!(
                *admitted <= 25 * times,
                "{address} was admitted {admitted} times"
            );
        }
    }
}

fn address(wave: u32, number: u32) -> IpAddr {
    let [_, _, high, low] = wave.to_be_bytes();
    IpAddr::from([10, high, low, number as u8])
}

async fn guess_on(
    limiter: LoginLimiter,
    number: u32,
    wave: Arc<AtomicU32>,
    tally: Arc<Mutex<Tally>>,
) {
    for step in number.. {
        let (newest, pick) = (wave.load(Ordering::Relaxed), step / 2);
        let wave = match step % 2 {
            0 => newest,
            _ => pick.wrapping_mul(31) % (newest + 1),
        };
        let address = address(wave, pick % ADDRESSES);
        let user = pick / ADDRESSES % USERS;
        let error = match limiter.reserve((address, &*format!("user {user}"))).await {
            Ok(attempt) => {
                tally.lock().expect("a tally").count(address, user);
                attempt.settle(Outcome::Failure).await.err()
            }
            Err(ReserveError::Refused(_)) => {
                tally.lock().expect("a tally").refused += 1;
                None
            }
            Err(ReserveError::Store(error)) => Some(error),
            Err(error) => panic!("{error:?}"),
        };
        tally.lock().expect("a tally").errors.extend(error);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
