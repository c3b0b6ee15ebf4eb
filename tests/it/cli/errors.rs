//! What goes wrong, in one line, and without secrets.

use std::{io::Read, process::Stdio};

use super::{Ran, attacked, program, redis, run};
use crate::support::{RedisServer, free_port};

const PASSWORD: &str = "hunter2hunter2";

fn run_with(url: &str, words: &[&str]) -> Ran {
    let mut command = program();
    Ran::of(command.env("REDIS_URL", url).args(words).output().unwrap())
}

#[test]
fn stores_that_are_missing_wrong_or_down_have_different_exit_codes() {
    let ran = Ran::of(program().arg("blocked").output().unwrap()).ends_with(2);
    assert!(
        ran.error.contains("--store") && ran.error.contains("REDIS_URL"),
        "{ran:?}"
    );
    for url in [
        "http://localhost",
        "redis+cluster://",
        "nonsense",
        "redis://:p@h:x",
    ] {
        let ran = run_with(url, &["blocked"]).ends_with(1);
        assert!(ran.error.contains("invalid Redis URL"), "{ran:?}");
    }
    let nowhere = format!("redis://127.0.0.1:{}", free_port());
    for words in [
        &["blocked"][..],
        &["explain", "192.0.2.1"],
        &["policy", "show"],
        &["top"],
        &["events"],
    ] {
        let ran = run_with(&nowhere, words).ends_with(4);
        assert!(
            ran.error.contains("127.0.0.1") && ran.error.lines().count() == 1,
            "{ran:?}"
        );
    }
    assert_eq!(
        run_with(&nowhere, &["doctor"])
            .ends_with(4)
            .out
            .matches("problem  connection")
            .count(),
        1
    );
    let change = ["unblock", "192.0.2.1", "--reason", "r"];
    run_with(&nowhere, &change).ends_with(4);
}

#[test]
fn a_password_is_never_printed_and_no_argument() {
    let redis = RedisServer::start();
    let port = redis.port();
    // Other connections of the test would need it too, so it is taken back at the end.
    let mut connection = redis.connection();
    let mut require = |password: &str| {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("requirepass").arg(password);
        command.exec(&mut connection).unwrap();
    };
    require("another password");
    for url in [
        format!("redis://:{PASSWORD}@127.0.0.1:{port}"),
        format!("redis://user:{PASSWORD}@127.0.0.1:{port}"),
        format!("redis+cluster://:{PASSWORD}@127.0.0.1:{port}"),
        format!("redis://:{PASSWORD}@127.0.0.1:{}", free_port()),
        format!("redis://:{PASSWORD}@127.0.0.1:{port}/x"),
    ] {
        for words in [
            &["blocked"][..],
            &["doctor"],
            &["events"],
            &["serve"],
            &["--help"],
        ] {
            let mut command = program();
            command
                .env("REDIS_URL", &url)
                .env("API_TOKEN", "0123456789abcdef0123");
            let output = command.args(words).output().unwrap();
            let ran = Ran::of(output);
            assert!(ran.code != 0 || words == ["--help"], "{ran:?}");
            assert!(!format!("{ran:?}").contains(PASSWORD), "{ran:?}");
        }
        let ran = Ran::of(
            program()
                .args(["blocked", "--store", &url])
                .output()
                .unwrap(),
        );
        let ran = ran.ends_with(2);
        assert!(
            ran.error.contains("REDIS_URL") && !ran.error.contains(PASSWORD),
            "{ran:?}"
        );
    }
    require("");
}

#[tokio::test]
async fn a_reader_that_goes_away_is_no_error() {
    let redis = redis();
    attacked(&redis).await;
    for words in [
        &["events", "--json", "--follow", "--since", "1h"][..],
        &["events"],
        &["completions", "bash"],
    ] {
        let mut command = program();
        command.env("REDIS_URL", redis.url()).args(words);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut out = process.stdout.take().unwrap();
        out.read_exact(&mut [0; 10]).unwrap();
        drop(out);
        // What is written after that fails.
        let _: redis::Value = redis.command(&[
            "XADD",
            "login:events",
            "*",
            "e",
            r#"{"at":"2026-11-18T07:00:00Z","event":"settled","outcome":"success"}"#,
        ]);
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{words:?} {output:?}");
        assert!(output.stderr.is_empty(), "{words:?} {output:?}");
    }
}

#[test]
fn every_command_has_help_with_examples_and_completions() {
    let help = Ran::of(program().arg("--help").output().unwrap())
        .ends_with(0)
        .out;
    for command in [
        "blocked",
        "explain",
        "unblock",
        "forgive",
        "block",
        "allow",
        "deny",
        "known",
        "top",
        "policy",
        "replay",
        "events",
        "doctor",
        "serve",
        "completions",
    ] {
        assert!(
            help.contains(&format!("\n  {command} ")),
            "{command}: {help}"
        );
        let help = Ran::of(program().args([command, "--help"]).output().unwrap())
            .ends_with(0)
            .out;
        assert!(help.contains("Examples:\n  "), "{help}");
    }
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = Ran::of(program().args(["completions", shell]).output().unwrap())
            .ends_with(0)
            .out;
        assert!(
            script.contains("login-rate-limit") && script.contains("unblock"),
            "{shell}"
        );
    }
    let redis = RedisServer::start();
    run(&redis, &["unblok"]).ends_with(2);
}
