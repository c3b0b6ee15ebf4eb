//! What is logged, and what is not.

use std::{
    convert::Infallible,
    io,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Outcome, Policy, ReserveError,
    classify::ByStatus,
    extract::{Header, PeerAddressExtension},
    response::Denial,
    store::MemoryStore,
};

/// Everything that is logged by this thread while it is there.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let guard = tracing::subscriber::set_default(subscriber);
        (log, guard)
    }

    pub fn count(&self, text: &str) -> usize {
        self.text().matches(text).count()
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn layer() -> LoginRateLimitLayer {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    LoginRateLimitLayer::new(limiter)
        .with_user(Header::new(http::HeaderName::from_static("x-user")))
}

/// One request whose handler says all of this, with this status.
async fn request(layer: &LoginRateLimitLayer, said: &[Outcome], status: u16) -> Response<()> {
    let said = said.to_vec();
    let service = layer.layer(service_fn(move |request: Request<Full<Bytes>>| {
        let attempt = request.extensions().get::<LoginAttempt>().cloned().unwrap();
        for outcome in &said {
            attempt.record(*outcome);
        }
        let mut response = Response::new(Full::<Bytes>::default());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        std::future::ready(Ok::<_, Infallible>(response))
    }));
    let mut request = Request::new(Full::default());
    *request.method_mut() = http::Method::POST;
    request
        .headers_mut()
        .insert("x-user", "somebody".parse().unwrap());
    let peer = PeerAddressExtension("192.0.2.1:5000".parse().unwrap());
    request.extensions_mut().insert(peer);
    service.oneshot(request).await.unwrap().map(drop)
}

const NO_OUTCOME: &str = "recorded no outcome for a login attempt";

#[tokio::test]
async fn a_handler_that_records_nothing_is_logged_once() {
    let (log, _guard) = Log::start();
    let layer = layer();
    request(&layer, &[], 500).await;
    assert_eq!(
        log.count(NO_OUTCOME),
        0,
        "the server failed, and there was nothing to say"
    );
    for _ in 0..3 {
        request(&layer, &[], 401).await;
    }
    assert_eq!(log.count(NO_OUTCOME), 1, "{}", log.text());
    assert!(log.text().contains("`succeeded()`"));
    // Another layer may have another handler behind it.
    request(&self::layer(), &[], 401).await;
    assert_eq!(log.count(NO_OUTCOME), 2);
    // With a classifier, no warning is needed.
    request(&self::layer().with_classifier(ByStatus), &[], 401).await;
    assert_eq!(log.count(NO_OUTCOME), 2);
}

#[tokio::test]
async fn contradicting_oneself_is_reported_and_the_first_word_counts() {
    let (log, _guard) = Log::start();
    let layer = layer();
    request(&layer, &[Outcome::Failure, Outcome::Failure], 401).await;
    assert_eq!(log.count("two different outcomes"), 0);
    request(&layer, &[Outcome::Failure, Outcome::Success], 200).await;
    assert_eq!(log.count("two different outcomes"), 1);
    let report = layer
        .limiter()
        .check(("192.0.2.1".parse().unwrap(), "somebody"))
        .await
        .unwrap();
    assert_eq!(report.remaining(), Some(3));
}

#[tokio::test]
async fn shadow_mode_reports_what_it_would_have_done_and_names_no_user() {
    let (log, _guard) = Log::start();
    let layer = layer().with_shadow(true);
    for i in 0..7 {
        let response = request(&layer, &[Outcome::Failure], 401).await;
        assert_eq!(response.status(), 401);
        let denial = response.extensions().get::<Denial>();
        assert_eq!(denial.and_then(Denial::refusal).is_some(), i >= 5);
    }
    assert_eq!(log.count("login attempt refused"), 2);
    assert_eq!(log.count("shadow=true"), 2);
    assert!(!log.text().contains("somebody"), "{}", log.text());
}

#[tokio::test]
async fn a_late_outcome_is_logged_and_identifies_no_user() {
    let (log, _guard) = Log::start();
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    let service = layer().layer(service_fn(move |request: Request<Full<Bytes>>| {
        *keep.lock().unwrap() = request.extensions().get::<LoginAttempt>().cloned();
        std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
    }));
    let mut request = Request::new(Full::default());
    let peer = PeerAddressExtension("192.0.2.1:5000".parse().unwrap());
    request.extensions_mut().insert(peer);
    service.oneshot(request).await.unwrap();
    let attempt = kept.lock().unwrap().take().unwrap();
    attempt.succeeded();
    assert_eq!(log.count("already settled"), 1);
    let identified = attempt.identify("victim").await;
    assert!(matches!(identified, Err(ReserveError::Settled)));
    assert_eq!((attempt.remaining(), attempt.usage()), (None, None));
}
