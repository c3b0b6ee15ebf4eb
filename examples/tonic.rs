//! A gRPC login server, and a client that guesses: `cargo run --example tonic`.
//!
//! A gRPC body is not for the layer to read, so the handler names the user. Once refused, the client
//! sees `RESOURCE_EXHAUSTED` with the time until the block lifts. `LISTEN` sets the server's address
//! (default `127.0.0.1:50051`); it goes on serving until Ctrl-C.

use std::{env, error::Error, net::SocketAddr};

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status, transport::Server};
use tonic_types::StatusExt;
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore,
};

#[allow(unreachable_pub, clippy::all)]
#[path = "proto/login.rs"]
mod login;

use login::{
    Credentials, Session,
    login_client::LoginClient,
    login_server::{Login, LoginServer},
};

struct Handler;

#[tonic::async_trait]
impl Login for Handler {
    async fn log_in(&self, request: Request<Credentials>) -> Result<Response<Session>, Status> {
        let attempt = LoginAttempt::of(request.extensions())?;
        let Credentials { username, password } = request.into_inner();

        // Before the password is looked at. A refusal becomes a status with the retry delay.
        attempt.identify(&username).await?;

        if (&*username, &*password) == ("user", "correct-horse") {
            attempt.succeeded();
            let greeting = format!("welcome, {username}");
            Ok(Response::new(Session { greeting }))
        } else {
            attempt.failed();
            Err(Status::unauthenticated("wrong user or password"))
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:50051".to_owned());
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    // The one method that logs in; others, for health checks say, are left alone.
    let layer = LoginRateLimitLayer::new(limiter.clone())
        .with_routes(http::Method::POST, ["/login.Login/LogIn"]);
    let server = Server::builder()
        .layer(layer)
        .add_service(LoginServer::new(Handler))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), async {
            drop(tokio::signal::ctrl_c().await);
        });
    let server = tokio::spawn(server);
    println!("Serving gRPC at {address}; now somebody guesses:");
    guess(address).await?;
    println!("Still serving, until Ctrl-C.");
    server.await??;
    limiter.all_settled().await?;
    Ok(())
}

async fn guess(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let mut client = LoginClient::connect(format!("http://{address}")).await?;
    for i in 1..=6 {
        let credentials = Credentials {
            username: "user".to_owned(),
            password: format!("guess {i}"),
        };
        match client.log_in(credentials).await {
            Ok(session) => println!("{i}: {}", session.into_inner().greeting),
            Err(status) if status.code() == Code::ResourceExhausted => {
                let delay = status
                    .get_details_retry_info()
                    .and_then(|info| info.retry_delay);
                println!("{i}: {}; come back in {delay:?}", status.message());
            }
            Err(status) => println!("{i}: {}", status.message()),
        }
    }
    Ok(())
}
