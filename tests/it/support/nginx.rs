//! A real nginx, with a configuration of the examples.

use std::{
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use super::wait_until;

/// A proxy on a free port, stopped when dropped.
pub struct Nginx {
    process: Child,
    pub url: String,
    _directory: TempDir,
}

impl Nginx {
    /// In front of this app, as in `examples/nginx`.
    pub fn start(app: &str) -> Self {
        Self::with(
            include_str!("../../../examples/nginx/nginx.conf"),
            &[("http://127.0.0.1:3000;", &format!("{app};"))],
        )
    }

    /// With this configuration, in which these texts are replaced.
    pub fn with(configuration: &str, replaced: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let listen = format!("listen 127.0.0.1:{port};");
        let mut configuration = configuration.to_owned();
        for (text, by) in replaced.iter().copied().chain([("listen 8080;", &*listen)]) {
            assert!(configuration.contains(text), "{text}");
            configuration = configuration.replace(text, by);
        }
        let file = directory.path().join("nginx.conf");
        std::fs::write(&file, configuration).expect("a configuration");
        let process = Command::new(std::env::var("NGINX").as_deref().unwrap_or("nginx"))
            .arg("-c")
            .arg(&file)
            .arg("-p")
            .arg(directory.path())
            // The master would leave its workers behind when it is killed.
            .args(["-g", "daemon off; master_process off;"])
            .stderr(Stdio::inherit())
            .spawn()
            .expect("nginx is missing: install it, or set NGINX to its path");
        wait_until("nginx does not listen", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Self {
            process,
            url: format!("http://127.0.0.1:{port}"),
            _directory: directory,
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
