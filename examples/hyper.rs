//! A login server with plain hyper, no framework: `cargo run --example hyper`, then
//!
//! ```sh
//! curl -i -u user:guess http://127.0.0.1:3001/
//! ```
//!
//! `LISTEN` sets the server's address.

use std::{convert::Infallible, env, error::Error, net::SocketAddr};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tower::{ServiceBuilder, ServiceExt};
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy,
    extract::{BasicAuth, PeerAddressExtension},
    store::MemoryStore,
};

async fn log_in(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let attempt = request
        .extensions()
        .get::<LoginAttempt>()
        .expect("the layer is there");
    let authorization = request.headers().get(header::AUTHORIZATION);
    // user:correct-horse
    if authorization.is_some_and(|value| value == "Basic dXNlcjpjb3JyZWN0LWhvcnNl") {
        attempt.succeeded();
        return Ok(Response::new(Full::from("welcome\n")));
    }
    match authorization {
        Some(_) => attempt.failed(),
        None => attempt.not_an_attempt(), // a browser asks without a password first
    }
    let mut response = Response::new(Full::from("wrong user or password\n"));
    *response.status_mut() = StatusCode::UNAUTHORIZED;
    let ask = header::HeaderValue::from_static("Basic realm=\"login\"");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
    Ok(response)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let layer = LoginRateLimitLayer::new(limiter).with_user(BasicAuth);
    let service = ServiceBuilder::new().layer(layer).service_fn(log_in);

    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3001".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    let address: SocketAddr = listener.local_addr()?;
    println!("Listening. Try: curl -i -u user:guess http://{address}/");
    loop {
        let (stream, peer) = listener.accept().await?;
        // hyper does not say where a request comes from; so we do.
        let service = service
            .clone()
            .map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(PeerAddressExtension(peer));
                request
            });
        tokio::spawn(async move {
            let connection = Builder::new(TokioExecutor::new());
            let service = TowerToHyperService::new(service);
            if let Err(error) = connection
                .serve_connection(TokioIo::new(stream), service)
                .await
            {
                eprintln!("connection of {peer}: {error}");
            }
        });
    }
}
