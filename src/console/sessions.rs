//! Sessions of the console, in bounded memory.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chacha20poly1305::{Key, aead::Generate};
use http::{HeaderMap, HeaderValue, header};
use tokio::{sync::watch, time::Instant};

const COOKIE: &str = "login-console";
/// How many sessions there are at most. Beyond that, the one that was not used for longest ends.
const CAPACITY: usize = 1_000;
/// How many there are of one token, so that one operator does not end the sessions of all others.
const EACH: usize = 32;

/// A time that every clock can add.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// By the hash of their id: what is compared with a cookie is not secret.
type Id = [u8; 32];

pub(super) struct Sessions {
    sessions: Mutex<HashMap<Id, Session>>,
    idle: Duration,
    lasts: Duration,
    secure: bool,
}

struct Session {
    authorization: HeaderValue,
    began: Instant,
    used: Instant,
    /// Dropped with the session, which ends the streams that wait for it.
    open: watch::Sender<()>,
}

impl Sessions {
    pub(super) fn new(idle: Duration, lasts: Duration, secure: bool) -> Self {
        Self {
            sessions: Mutex::default(),
            idle,
            lasts,
            secure,
        }
    }

    /// Begins a session with this value of `Authorization`, and returns its cookie. `None` if the system has no
    /// random numbers.
    pub(super) fn begin(
        &self,
        mut authorization: HeaderValue,
        request: &HeaderMap,
        path: &str,
    ) -> Option<HeaderValue> {
        authorization.set_sensitive(true);
        let random = Key::try_generate().ok()?;
        let secret = URL_SAFE_NO_PAD.encode(random);
        let now = Instant::now();
        let mut sessions = self.lock();
        sessions.retain(|_, session| self.ends(session) > now);
        end_oldest(&mut sessions, EACH, |session| {
            session.authorization == authorization
        });
        end_oldest(&mut sessions, CAPACITY, |_| true);
        let session = Session {
            authorization,
            began: now,
            used: now,
            open: watch::Sender::default(),
        };
        sessions.insert(id_of(&secret), session);
        self.cookie(&secret, self.lasts.as_secs(), request, path)
    }

    /// The `Authorization` of the session that a request belongs to, and its id. It is used by it, unless the page
    /// has sent the request by itself.
    pub(super) fn find(&self, request: &HeaderMap, is_used: bool) -> Option<(Id, HeaderValue)> {
        let now = Instant::now();
        let mut sessions = self.lock();
        // Another path or host may have set a cookie of this name too.
        let mut ids = cookies_of(request).map(id_of);
        let id = ids.find(|id| sessions.contains_key(id))?;
        let session = sessions.get_mut(&id)?;
        if self.ends(session) <= now {
            sessions.remove(&id);
            return None;
        }
        if is_used {
            session.used = now;
        }
        Some((id, session.authorization.clone()))
    }

    /// Ends the session of a request, and returns a cookie that removes its cookie.
    pub(super) fn end(&self, request: &HeaderMap, path: &str) -> Option<HeaderValue> {
        for secret in cookies_of(request) {
            self.lock().remove(&id_of(secret));
        }
        self.cookie("", 0, request, path)
    }

    /// Returns when a session has ended.
    pub(super) async fn ended(&self, id: Id) {
        loop {
            let (ends, mut open) = match self.lock().get(&id) {
                Some(session) => (self.ends(session), session.open.subscribe()),
                None => return,
            };
            if ends <= Instant::now() {
                return;
            }
            // Nothing is ever sent: either the session is gone, or it is time to look again.
            let _ = tokio::time::timeout_at(ends, open.changed()).await;
        }
    }

    fn ends(&self, session: &Session) -> Instant {
        let far = |from: Instant, lasts: Duration| from + lasts.min(LONGEST);
        far(session.began, self.lasts).min(far(session.used, self.idle))
    }

    fn cookie(
        &self,
        secret: &str,
        seconds: u64,
        request: &HeaderMap,
        path: &str,
    ) -> Option<HeaderValue> {
        let secure = if self.secure || is_https(request) {
            "; Secure"
        } else {
            ""
        };
        let text = format!(
            "{COOKIE}={secret}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
        );
        let mut cookie = HeaderValue::try_from(text).ok()?;
        cookie.set_sensitive(true);
        Some(cookie)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the one of these that was not used for longest, if there are as many as there may be.
fn end_oldest(
    sessions: &mut HashMap<Id, Session>,
    maximum: usize,
    is_counted: impl Fn(&Session) -> bool,
) {
    let counted = sessions.iter().filter(|(_, session)| is_counted(session));
    if counted.clone().count() >= maximum
        && let Some((id, _)) = counted.min_by_key(|(_, session)| session.used)
    {
        let id = *id;
        sessions.remove(&id);
    }
}

fn id_of(secret: &str) -> Id {
    *blake3::hash(secret.as_bytes()).as_bytes()
}

/// The values of all cookies of this name.
fn cookies_of(request: &HeaderMap) -> impl Iterator<Item = &str> {
    let cookies = request.get_all(header::COOKIE).iter();
    let pairs = cookies
        .filter_map(|cookies| cookies.to_str().ok())
        .flat_map(|cookies| cookies.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    pairs.filter_map(|(name, value)| (name == COOKIE).then_some(value))
}

/// Whether the browser came by HTTPS, perhaps through a proxy: a form is posted with its origin. `X-Forwarded-Proto` is not
/// asked, since any client can send it.
fn is_https(request: &HeaderMap) -> bool {
    let origin = request.get(header::ORIGIN);
    origin.is_some_and(|origin| origin.as_bytes().starts_with(b"https:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> Sessions {
        let minute = Duration::from_secs(60);
        Sessions::new(minute, 10 * minute, false)
    }

    fn begin(sessions: &Sessions) -> HeaderMap {
        begin_with(sessions, "secret")
    }

    fn begin_with(sessions: &Sessions, token: &str) -> HeaderMap {
        let authorization = HeaderValue::try_from(format!("Bearer {token}")).unwrap();
        let cookie = sessions
            .begin(authorization, &HeaderMap::new(), "/console/")
            .unwrap();
        let text = cookie.to_str().unwrap().to_owned();
        assert!(text.contains("HttpOnly; SameSite=Strict") && !text.contains("Secure"));
        let pair = text.split(';').next().unwrap();
        let cookies = format!("theme=dark; {pair}; other=1");
        HeaderMap::from_iter([(header::COOKIE, HeaderValue::try_from(cookies).unwrap())])
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_unused_at_its_end_and_by_logout() {
        let sessions = sessions();
        let request = begin(&sessions);
        for _ in 0..19 {
            tokio::time::advance(Duration::from_secs(30)).await;
            assert!(sessions.find(&request, true).is_some());
        }
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(sessions.find(&request, true).is_none());

        let request = begin(&sessions);
        tokio::time::advance(Duration::from_secs(30)).await;
        // A page that is only left open.
        let (_, header) = sessions.find(&request, false).unwrap();
        assert_eq!(header, "Bearer secret");
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(sessions.find(&request, false).is_none());

        let request = begin(&sessions);
        let (id, _) = sessions.find(&request, true).unwrap();
        let ended = sessions.ended(id);
        let removed = sessions.end(&request, "/console/").unwrap();
        assert!(removed.to_str().unwrap().contains("Max-Age=0"));
        ended.await;
        assert!(sessions.find(&request, true).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_cookie_that_another_host_has_set_hides_no_session() {
        let sessions = Sessions::new(Duration::MAX, Duration::MAX, false);
        let mut request = HeaderMap::new();
        request.append(header::COOKIE, HeaderValue::from_static("login-console=x"));
        let own = begin(&sessions)[header::COOKIE].clone();
        request.append(header::COOKIE, own);
        assert!(sessions.find(&request, true).is_some());
        sessions.end(&request, "/console");
        assert!(sessions.find(&request, true).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded_and_the_cookie_is_secure_over_https() {
        let sessions = sessions();
        let (first, other) = (begin(&sessions), begin_with(&sessions, "other"));
        for _ in 0..EACH {
            tokio::time::advance(Duration::from_millis(1)).await;
            begin(&sessions);
        }
        assert_eq!(sessions.lock().len(), EACH + 1);
        assert!(sessions.find(&first, false).is_none());
        assert!(sessions.find(&other, false).is_some());
        for i in 0..CAPACITY {
            tokio::time::advance(Duration::from_millis(1)).await;
            begin_with(&sessions, &format!("secret {i}"));
        }
        assert_eq!(sessions.lock().len(), CAPACITY);
        assert!(sessions.find(&other, false).is_none());

        let https = HeaderMap::from_iter([(
            header::ORIGIN,
            HeaderValue::from_static("https://console.example"),
        )]);
        let cookie = sessions.begin(HeaderValue::from_static("Bearer secret"), &https, "/");
        assert!(cookie.unwrap().to_str().unwrap().ends_with("; Secure"));
    }
}
