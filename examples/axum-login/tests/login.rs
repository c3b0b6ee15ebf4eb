//! The recipe, run as a process: real sessions, SQLite and argon2.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use reqwest::{Client, Method, Response, redirect::Policy};

struct App {
    process: Child,
    url: String,
    client: Client,
}

impl App {
    fn start(database: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_axum-login-recipe"))
            .envs([("LISTEN", "127.0.0.1:0"), ("DATABASE", database)])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let url = line.trim().strip_prefix("Open ").unwrap().to_owned();
        let client = Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .build()
            .unwrap();
        Self {
            process,
            url,
            client,
        }
    }

    async fn send(&self, method: Method, path: &str, cookie: &str, form: &str) -> Response {
        let request = self.client.request(method, format!("{}{path}", self.url));
        let request = request
            .header("accept", "text/html")
            .header("content-type", "application/x-www-form-urlencoded")
            .header("cookie", cookie);
        request.body(form.to_owned()).send().await.unwrap()
    }

    async fn log_in(&self, email: &str, password: &str) -> Response {
        let form = format!("email={email}&password={password}");
        self.send(Method::POST, "/login", "", &form).await
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn a_guarded_login_with_sessions() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().join("users.sqlite");
    let app = App::start(database.to_str().unwrap());

    // The hash is in SQLite.
    let connection = rusqlite::Connection::open(&database).unwrap();
    let hash: String = connection
        .query_row("SELECT hash FROM users", [], |row| row.get(0))
        .unwrap();
    assert!(hash.starts_with("$argon2id$"), "{hash}");

    // Without a session: to the form, which counts nowhere.
    let home = app.send(Method::GET, "/", "", "").await;
    assert_eq!(home.status(), 307);
    assert!(
        home.headers()["location"]
            .to_str()
            .unwrap()
            .starts_with("/login")
    );
    for _ in 0..30 {
        assert_eq!(app.send(Method::GET, "/login", "", "").await.status(), 200);
    }

    // Logged in, again and again: a success is no failure.
    for _ in 0..7 {
        let response = app.log_in("user%40example.com", "correct-horse").await;
        assert_eq!(response.status(), 303);
        let cookie = response.headers()["set-cookie"].to_str().unwrap();
        let cookie = cookie.split(';').next().unwrap();
        let home = app.send(Method::GET, "/", cookie, "").await;
        assert!(
            home.text()
                .await
                .unwrap()
                .contains("Welcome, user@example.com")
        );
        assert_eq!(
            app.send(Method::POST, "/logout", cookie, "").await.status(),
            303
        );
        assert_eq!(app.send(Method::GET, "/", cookie, "").await.status(), 307);
    }

    // A user who exists, in any spelling, and one who does not are refused alike.
    for emails in [
        [
            "user%40example.com",
            "USER%40example.com",
            "+user%40example.com",
        ],
        ["nobody%40example.com"; 3],
    ] {
        for i in 0..5 {
            let response = app.log_in(emails[i % 3], "guess").await;
            assert_eq!(response.status(), 401);
            let page = response.text().await.unwrap();
            let expected = match i {
                4 => "Logging in is blocked for 1 day.".to_owned(),
                _ => format!("Attempts left: {}.", 4 - i),
            };
            assert!(page.contains(&expected), "{page}");
        }
        let refused = app.log_in(emails[0], "correct-horse").await;
        assert_eq!(refused.status(), 429);
        assert!(!refused.headers().contains_key("set-cookie"));
        assert!(
            refused
                .text()
                .await
                .unwrap()
                .contains("<h1>Too many failed attempts")
        );
    }
}
