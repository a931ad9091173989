//! A headless browser that a test drives through the WebDriver protocol: plain HTTP with JSON.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{self, PATIENCE};

/// The name of an element's id in the protocol.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// The pause between two looks at a page.
const PAUSE: Duration = Duration::from_millis(50);

/// How long the driver waits for an element that a page does not have yet.
const FIND_MS: u32 = 10_000;

/// A browser with one window. It ends when it is dropped.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
}

impl Browser {
    /// Starts a browser.
    pub fn start() -> Browser {
        Browser::with(&[], json!({}))
    }

    /// Starts a browser that runs no scripts of pages.
    pub fn without_scripts() -> Browser {
        let prefs = json!({"profile.managed_default_content_settings.javascript": 2});
        Browser::with(&[], prefs)
    }

    /// Starts a browser with more arguments and preferences.
    pub fn with(args: &[&str], prefs: Value) -> Browser {
        let mut driver = Command::new("chromedriver")
            .args(["--port=0", "--log-level=SEVERE"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver is installed: ./test installs it");
        let port = port_of(&mut driver);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut browser = Browser {
            driver,
            address,
            session: String::new(),
        };
        let mut all = vec![
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-dev-shm-usage",
            "--disable-sync",
            "--no-first-run",
            "--hide-scrollbars",
        ];
        all.extend(args);
        let options = json!({"args": all, "prefs": prefs});
        let capabilities = json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "timeouts": {"implicit": FIND_MS}}}});
        let created = browser.send("POST", "/session", &capabilities);
        browser.session = created["sessionId"]
            .as_str()
            .unwrap_or_else(|| panic!("no session: {created}"))
            .to_owned();
        browser
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = (method != "GET").then(|| body.to_string().into_bytes());
        let request = client::request(self.address, method, path, &[], body.as_deref());
        exchange(self.address, &request)["value"].take()
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        let value = self.send(method, &format!("/session/{}{path}", self.session), body);
        assert!(value.get("error").is_none(), "{path}: {value}");
        value
    }

    /// Opens a URL and waits until the page is loaded.
    pub fn open(&self, url: &str) {
        self.command("POST", "/url", &json!({"url": url}));
    }

    /// Returns the URL of the page.
    pub fn url(&self) -> String {
        let url = self.command("GET", "/url", &Value::Null);
        url.as_str().unwrap_or_default().to_owned()
    }

    /// Goes back, as the button of the browser does.
    pub fn back(&self) {
        self.command("POST", "/back", &json!({}));
    }

    /// Loads the page again.
    pub fn reload(&self) {
        self.command("POST", "/refresh", &json!({}));
    }

    /// Runs a function body in the page and returns its result.
    pub fn run(&self, script: &str) -> Value {
        self.command(
            "POST",
            "/execute/sync",
            &json!({"script": script, "args": []}),
        )
    }

    /// Returns the text of the first element that matches, or nothing.
    pub fn text(&self, selector: &str) -> String {
        let element = self.find(selector);
        let path = format!("/element/{element}/text");
        self.command("GET", &path, &Value::Null)
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// Clicks the first element that matches.
    pub fn click(&self, selector: &str) {
        let element = self.find(selector);
        self.command("POST", &format!("/element/{element}/click"), &json!({}));
    }

    /// Clicks the first element that matches and waits until the browser is at another URL.
    pub fn follow(&self, selector: &str) {
        let (before, mut left) = (self.url(), PATIENCE);
        self.click(selector);
        while self.url() == before {
            assert!(!left.is_zero(), "{selector} leads nowhere from {before}");
            std::thread::sleep(PAUSE);
            left = left.saturating_sub(PAUSE);
        }
    }

    /// Types text into the first element that matches.
    pub fn type_into(&self, selector: &str, text: &str) {
        let element = self.find(selector);
        self.command(
            "POST",
            &format!("/element/{element}/value"),
            &json!({"text": text}),
        );
    }

    /// Presses keys one after the other, wherever the focus is.
    pub fn press(&self, keys: &str) {
        let actions = keys.chars().flat_map(|key| {
            let key = key.to_string();
            [
                json!({"type": "keyDown", "value": key}),
                json!({"type": "keyUp", "value": key}),
            ]
        });
        let source =
            json!({"type": "key", "id": "keyboard", "actions": actions.collect::<Vec<_>>()});
        self.command("POST", "/actions", &json!({"actions": [source]}));
    }

    /// Presses keys until a function body returns true in the page: keys that a busy browser
    /// delivers too late for a sequence are pressed again.
    pub fn press_until(&self, keys: &str, what: &str, script: &str) {
        for _ in 0..20 {
            self.press(keys);
            for _ in 0..20 {
                if self.run(script) == Value::Bool(true) {
                    return;
                }
                std::thread::sleep(PAUSE);
            }
        }
        panic!("never after {keys}: {what}");
    }

    fn find(&self, selector: &str) -> String {
        let body = json!({"using": "css selector", "value": selector});
        let found = self.command("POST", "/element", &body);
        found[ELEMENT]
            .as_str()
            .unwrap_or_else(|| panic!("{selector}: {found}"))
            .to_owned()
    }

    /// Sets the size of the page.
    pub fn resize(&self, width: u32, height: u32) {
        // A scrollbar would take a part of the width.
        self.command(
            "POST",
            "/goog/cdp/execute",
            &json!({
                "cmd": "Emulation.setScrollbarsHidden", "params": {"hidden": true},
            }),
        );
        self.command("POST", "/goog/cdp/execute", &json!({
            "cmd": "Emulation.setDeviceMetricsOverride",
            "params": {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        }));
    }

    /// Lets the system prefer light or dark.
    pub fn prefer_scheme(&self, scheme: &str) {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.command(
            "POST",
            "/goog/cdp/execute",
            &json!({
                "cmd": "Emulation.setEmulatedMedia", "params": {"features": [feature]},
            }),
        );
    }

    /// Sets the time zone of the browser.
    pub fn live_in(&self, zone: &str) {
        self.command(
            "POST",
            "/goog/cdp/execute",
            &json!({
                "cmd": "Emulation.setTimezoneOverride", "params": {"timezoneId": zone},
            }),
        );
    }

    /// Returns a PNG of the whole page, base64 encoded.
    pub fn screenshot(&self) -> String {
        let shot = self.command(
            "POST",
            "/goog/cdp/execute",
            &json!({
                "cmd": "Page.captureScreenshot", "params": {"captureBeyondViewport": true},
            }),
        );
        shot["data"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a function body returns true in the page.
    pub fn until(&self, what: &str, script: &str) {
        let mut left = PATIENCE;
        while self.run(script) != Value::Bool(true) {
            let text = || self.run("return document.body.innerText.slice(0, 3000)");
            assert!(!left.is_zero(), "never: {what}\n{}", text());
            std::thread::sleep(PAUSE);
            left = left.saturating_sub(PAUSE);
        }
    }
}

/// Sends a request and reads the response by its length: the driver keeps connections open.
fn exchange(address: SocketAddr, request: &[u8]) -> Value {
    let mut stream = TcpStream::connect(address).expect("the driver listens");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("a timeout can be set");
    stream.write_all(request).expect("the driver reads");
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("the driver answers");
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().expect("a length is a number");
        }
    }
    let mut body = vec![0; length];
    reader
        .read_exact(&mut body)
        .expect("the driver sends its whole answer");
    serde_json::from_slice(&body).expect("the driver answers with JSON")
}

/// Reads the port that the driver chose from its output.
fn port_of(driver: &mut Child) -> u16 {
    let output = driver.stdout.take().expect("its output is piped");
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let started = lines.find_map(|line| {
        let (_, port) = line.split_once("started successfully on port ")?;
        port.trim_end_matches('.').parse().ok()
    });
    let port = started.expect("the driver says its port");
    // Keep reading, so that the driver never blocks on its output.
    std::thread::spawn(move || lines.for_each(drop));
    port
}

impl Drop for Browser {
    fn drop(&mut self) {
        let path = format!("/session/{}", self.session);
        if !self.session.is_empty() && !std::thread::panicking() {
            self.send("DELETE", &path, &json!({}));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
