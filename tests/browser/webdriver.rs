//! A headless Chromium, driven through the WebDriver protocol.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::{
    client::client,
    trace::{self, Task},
};

/// A browser session, closed when dropped.
pub struct Browser {
    driver: Child,
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub async fn start() -> Self {
        Self::start_with("--no-first-run").await
    }

    /// With one more argument for the browser.
    pub async fn start_with(argument: &str) -> Self {
        Self::start_so(argument, json!({})).await
    }

    /// With a trace of what pages do: see [`windows`](Self::windows).
    pub async fn start_traced() -> Self {
        // Little else than that, so that the buffer suffices.
        let categories =
            "-*,blink.user_timing,devtools.timeline,disabled-by-default-devtools.timeline";
        let logs =
            json!({"enableNetwork": false, "enablePage": false, "traceCategories": categories});
        Self::start_so("--no-first-run", json!({"perfLoggingPrefs": logs})).await
    }

    async fn start_so(argument: &str, mut options: Value) -> Self {
        let driver = std::env::var("CHROMEDRIVER").unwrap_or_else(|_| "chromedriver".to_owned());
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let process = Command::new(&driver)
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{driver} cannot be started ({error}): run tests/run.sh, which installs it, or set CHROMEDRIVER")
            });
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Self {
            driver: process,
            session: format!("http://127.0.0.1:{port}"),
            _profile: profile,
        };
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            argument,
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=800,600",
            &format!("--user-data-dir={}", browser._profile.path().display()),
        ]
        .map(str::to_owned);
        options["args"] = json!(arguments);
        let is_traced = options["perfLoggingPrefs"].is_object();
        let mut capabilities = json!({"goog:chromeOptions": options});
        if is_traced {
            capabilities["goog:loggingPrefs"] = json!({"performance": "ALL"});
        }
        let capabilities = json!({"capabilities": {"alwaysMatch": capabilities}});
        for _ in 0..200 {
            let url = format!("{}/session", browser.session);
            if let Ok(response) = client().post(url).json(&capabilities).send().await {
                let answer: Value = response.json().await.unwrap();
                let id = answer["value"]["sessionId"].as_str();
                let id = id.unwrap_or_else(|| panic!("no browser: {answer}"));
                browser.session = format!("{}/session/{id}", browser.session);
                return browser;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{driver} does not respond");
    }

    async fn command(&self, path: &str, body: Value) -> Value {
        let url = format!("{}/{path}", self.session);
        let response = client().post(url).json(&body).send().await.unwrap();
        let answer: Value = response.json().await.unwrap();
        assert!(answer["value"]["error"].is_null(), "{path}: {answer}");
        answer["value"].clone()
    }

    pub async fn open(&self, url: &str) {
        self.command("url", json!({"url": url})).await;
    }

    async fn element(&self, id: &str) -> String {
        let by = json!({"using": "css selector", "value": format!("#{id}")});
        let found = self.command("element", by).await;
        let element = found.as_object().and_then(|found| found.values().next());
        element
            .and_then(Value::as_str)
            .expect("an element")
            .to_owned()
    }

    pub async fn type_into(&self, id: &str, text: &str) {
        let element = self.element(id).await;
        self.command(&format!("element/{element}/clear"), json!({}))
            .await;
        self.command(&format!("element/{element}/value"), json!({"text": text}))
            .await;
    }

    pub async fn click(&self, id: &str) {
        let element = self.element(id).await;
        self.command(&format!("element/{element}/click"), json!({}))
            .await;
    }

    pub async fn log_in(&self, email: &str, password: &str) {
        self.type_into("email", email).await;
        self.type_into("password", password).await;
        self.click("submit").await;
    }

    /// The result of a script.
    pub async fn run(&self, script: &str) -> Value {
        let script = json!({"script": script, "args": []});
        self.command("execute/sync", script).await
    }

    /// The result of a command of the browser's own protocol.
    pub async fn devtools(&self, command: &str, parameters: Value) -> Value {
        let command = json!({"cmd": command, "params": parameters});
        self.command("goog/cdp/execute", command).await
    }

    /// All that is drawn as text, what comes from styles included.
    pub async fn drawn_texts(&self) -> Vec<String> {
        let nothing = json!({"computedStyles": []});
        let snapshot = self.devtools("DOMSnapshot.captureSnapshot", nothing).await;
        let text = |index: &Value| {
            let index = usize::try_from(index.as_i64()?).ok()?;
            snapshot["strings"][index].as_str().map(str::to_owned)
        };
        let drawn = snapshot["documents"][0]["layout"]["text"].as_array();
        drawn.expect("a layout").iter().filter_map(text).collect()
    }

    /// Begins a window of the trace, in a browser that is traced.
    pub async fn mark(&self, name: &str) {
        let mark = json!(format!("{}{name}", trace::WINDOW));
        self.run(&format!("performance.mark({mark})")).await;
    }

    /// What a site's pages have done in each window of the trace. To be called once: a trace that begins anew lacks
    /// pages that are open.
    pub async fn windows(&self, site: &str) -> Vec<(String, Vec<Task>)> {
        let log = self.command("se/log", json!({"type": "performance"})).await;
        let entries = log.as_array().expect("entries").iter();
        let events = entries.filter_map(|entry| {
            let entry: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let message = &entry["message"];
            (message["method"] == "Tracing.dataCollected").then(|| message["params"].clone())
        });
        trace::windows(&events.collect::<Vec<_>>(), site)
    }

    /// What axe-core finds wrong with the page, one line for each rule.
    pub async fn accessibility_violations(&self) -> Vec<String> {
        let axe = std::env::var("AXE").unwrap_or_else(|_| {
            let target = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
            let target = target.expect("a directory").display();
            format!("{target}/axe/node_modules/axe-core/axe.min.js")
        });
        let script = std::fs::read_to_string(&axe).unwrap_or_else(|error| {
            panic!("{axe} cannot be read ({error}): run tests/run.sh, which installs axe-core, or set AXE to its axe.min.js")
        });
        let run = "return axe.run(document).then(found => ({
            passes: found.passes.length,
            violations: found.violations.map(rule => `${rule.id}: ${rule.help}: ${rule.nodes.map(node => node.html)}`),
            incomplete: found.incomplete.map(rule => `${rule.id} could not be decided: ${rule.nodes.map(node => node.html)}`),
        }))";
        let found = self.run(&format!("{script};\n{run}")).await;
        let passes = found["passes"].as_u64().unwrap_or_default();
        assert!(passes >= 10, "axe-core has examined nothing: {found}");
        let lines = ["violations", "incomplete"].into_iter();
        let lines = lines.flat_map(|kind| found[kind].as_array().cloned().unwrap_or_default());
        lines.map(|line| line.to_string()).collect()
    }

    /// Waits until the page contains `text`, and returns all that a person reads on it. For pages that replace
    /// each other: between two of them there are no elements, and a script may be aborted.
    pub async fn page_reads(&self, text: &str) -> String {
        let script = json!({"script": "return document.body.innerText", "args": []});
        let mut page = String::new();
        for _ in 0..600 {
            let url = format!("{}/execute/sync", self.session);
            let response = client().post(url).json(&script).send().await.unwrap();
            let answer: Value = response.json().await.unwrap();
            page = answer["value"].as_str().unwrap_or_default().to_owned();
            if page.contains(text) {
                return page;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the page shows {page:?}, not {text:?}");
    }

    pub async fn text(&self, id: &str) -> String {
        self.ask(id, "text")
            .await
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    pub async fn shows(&self, id: &str) -> bool {
        self.ask(id, "displayed").await == true
    }

    async fn ask(&self, id: &str, what: &str) -> Value {
        let element = self.element(id).await;
        self.get(&format!("element/{element}/{what}")).await
    }

    async fn get(&self, path: &str) -> Value {
        let response = client()
            .get(format!("{}/{path}", self.session))
            .send()
            .await;
        let answer: Value = response.unwrap().json().await.unwrap();
        answer["value"].clone()
    }

    /// Waits until the message on the page contains `text`, and returns the whole message.
    pub async fn reads(&self, text: &str) -> String {
        let mut message = String::new();
        for _ in 0..600 {
            message = self.text("message").await;
            if message.contains(text) {
                return message;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the page shows {message:?}, not {text:?}");
    }

    /// The element that a CSS selector finds, as soon as it is there.
    async fn find(&self, selector: &str) -> String {
        let by = json!({"using": "css selector", "value": selector});
        for _ in 0..600 {
            let url = format!("{}/element", self.session);
            let response = client().post(url).json(&by).send().await.unwrap();
            let answer: Value = response.json().await.unwrap();
            let element = answer["value"]
                .as_object()
                .filter(|_| answer["value"]["error"].is_null());
            if let Some(id) = element.and_then(|found| found.values().next()?.as_str()) {
                return id.to_owned();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let page = self.run("return document.body.innerText").await;
        panic!("there is no {selector} on {page}");
    }

    /// Clicks what a selector finds, as a mouse does.
    pub async fn press(&self, selector: &str) {
        // On a phone the edge of the page is below the navigation.
        let scroll = format!(
            "document.querySelector({})?.scrollIntoView({{block: 'center'}})",
            json!(selector)
        );
        let mut answer = Value::Null;
        for _ in 0..100 {
            let element = self.find(selector).await;
            self.run(&scroll).await;
            let url = format!("{}/element/{element}/click", self.session);
            let response = client().post(url).json(&json!({})).send().await.unwrap();
            answer = response.json().await.unwrap();
            // Something moves, or is drawn again.
            if answer["value"]["error"].is_null() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{selector} can't be clicked: {answer}");
    }

    /// Replaces the text of a field, key by key.
    pub async fn fill(&self, selector: &str, text: &str) {
        let element = self.find(selector).await;
        self.command(&format!("element/{element}/clear"), json!({}))
            .await;
        self.command(&format!("element/{element}/value"), json!({"text": text}))
            .await;
    }

    pub async fn choose(&self, selector: &str, value: &str) {
        self.find(selector).await;
        let script = format!(
            "const field = document.querySelector({}); field.value = {}; \
             for (const name of ['input', 'change']) field.dispatchEvent(new Event(name, {{bubbles: true}}))",
            json!(selector),
            json!(value)
        );
        self.run(&script).await;
    }

    /// Waits until a script returns true.
    pub async fn wait_for(&self, script: &str) {
        for _ in 0..600 {
            if self.run(script).await == true {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let page = self.run("return document.body.innerText").await;
        panic!("never true: {script}, on {page}");
    }

    /// Presses keys one after the other, on whatever has the focus.
    pub async fn keys(&self, keys: &[&str]) {
        let actions = keys
            .iter()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key})));
        let actions: Vec<_> = actions.collect();
        let source = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.command("actions", json!({"actions": [source]})).await;
    }

    /// The size of the page, and the theme of the system.
    pub async fn resize(&self, width: u32, height: u32, theme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.devtools("Emulation.setDeviceMetricsOverride", size)
            .await;
        let theme = json!({"features": [{"name": "prefers-color-scheme", "value": theme}]});
        self.devtools("Emulation.setEmulatedMedia", theme).await;
        let hidden = json!({"hidden": true});
        self.devtools("Emulation.setScrollbarsHidden", hidden).await;
    }

    pub async fn screenshot(&self) -> Vec<u8> {
        let picture = self.get("screenshot").await;
        BASE64_STANDARD.decode(picture.as_str().unwrap()).unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Closing the session ends the browser process as well.
        let session = self.session.clone();
        let quit = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().ok()?;
            runtime.block_on(async { client().delete(session).send().await.ok() })
        });
        let _ = quit.join();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
